"""Recurrent layers with keyed dropout are torch's layers, but for the inputs that are dropped between them."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import corymb
from corymb.core.objective import Draws
from corymb.keys import root
from corymb.local import Descent
from corymb.models import Network
from corymb.models.recurrent import _forward
from corymb.settings import InvalidInput
from tests.tiny import farthest

M, T, F, H = 5, 6, 3, 4


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


STACKS = {
    "lstm": lambda **more: nn.LSTM(F, H, **more),
    "gru": lambda **more: nn.GRU(F, H, **more),
    "rnn": lambda **more: nn.RNN(F, H, nonlinearity="relu", **more),
    "projected": lambda **more: nn.LSTM(F, H, proj_size=2, **more),
}
FORMS = {
    "batch first": {"batch_first": True},
    "series first": {},
    "both ways": {"batch_first": True, "bidirectional": True},
    "without bias": {"batch_first": True, "bias": False},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", STACKS)
def test_without_dropout_they_are_torchs_layers(kind, form):
    stack = STACKS[kind](num_layers=3, **FORMS[form]).double()
    x = drawn(M, T, F) if FORMS[form].get("batch_first") else drawn(T, M, F)
    ends = stack(x)[1]
    for start in (None, tuple(map(torch.tanh, ends)) if isinstance(ends, tuple) else ends.tanh()):
        (got, got_ends), (want, want_ends) = _forward(stack, 0.0, x, start), stack(x, start)
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(got_ends, want_ends, rtol=1e-10, atol=1e-10)


class Series(nn.Module):
    def __init__(self, kind: str = "lstm", **form: object) -> None:
        super().__init__()
        self.stack = STACKS[kind](num_layers=2, dropout=0.3, **form)
        width = 2 if kind == "projected" else H
        self.out = nn.Linear(2 * width if form.get("bidirectional") else width, 2)
        self.batch_first = bool(form.get("batch_first"))

    def forward(self, x):
        x = x.unflatten(-1, (T, F))
        out, _ = self.stack(x if self.batch_first else x.transpose(0, 1))
        return self.out(out[:, -1] if self.batch_first else out[-1])


@pytest.mark.parametrize("form", ["batch first", "series first", "both ways"])
@pytest.mark.parametrize("kind", STACKS)
def test_dropout_between_layers_is_the_same_on_every_engine(kind, form):
    draw = torch.Generator().manual_seed(0)
    data = corymb.FederatedDataset.from_clients(
        {
            f"c{i}": (torch.randn(m, T * F, generator=draw).numpy(), (torch.arange(m) % 2).numpy())
            for i, m in enumerate((12, 7, 12, 9))
        },
        test=0,
    )

    def model():
        return Series(kind, **FORMS[form])

    algorithm = corymb.FedAvg(rounds=2, local=Descent(lr=0.1, epochs=1, batch=4))
    double = {"precision": "float64", "progress": False}
    want = corymb.fit(algorithm, data, model, engine="loop", **double)
    for kernel in ("foreach", "serial"):
        got = corymb.fit(algorithm, data, model, kernel=kernel, **double)
        assert farthest(got.models, want.models) < 1e-9
    off = corymb.fit(algorithm, data, model, dropout="off", **double)
    assert farthest(off.models, want.models) > 1e-5


def test_only_inputs_between_layers_are_dropped():
    """With zero weights from the first layer to the second, dropout changes nothing."""
    network = Network(lambda: Series(batch_first=True), dtype=torch.float64)
    params, x = network.init(root(1)), drawn(M, T * F)
    steps = [network.training(params, x, Draws(root(0), step)) for step in range(2)]
    assert not torch.equal(*steps)
    blind = {name: 0 * value if name == "stack.weight_ih_l1" else value for name, value in params.items()}
    torch.testing.assert_close(network.training(blind, x, Draws(root(0))), network(blind, x), rtol=1e-12, atol=1e-12)


class Packed(Series):
    def forward(self, x):
        x = x.unflatten(-1, (T, F))
        packed = pack_padded_sequence(x, torch.full((len(x),), T), batch_first=True, enforce_sorted=False)
        _, (last, _) = self.stack(packed)
        return self.out(last[-1])


def test_packed_sequences_with_dropout_between_layers_are_refused_in_one_line():
    network = Network(lambda: Packed(batch_first=True))
    with pytest.raises(InvalidInput, match=r"LSTM has dropout 0.3 .* gets packed sequences: .*dropout='off'") as error:
        network.training(network.init(root(0)), torch.zeros(M, T * F), Draws(root(0)))
    assert "\n" not in str(error.value)


class Shifted(nn.LSTM):
    """A layer with a forward pass of its own."""

    def forward(self, input, hx=None):
        return super().forward(input + 1, hx)


def test_a_layer_with_a_forward_pass_of_its_own_is_refused_with_dropout():
    with pytest.raises(InvalidInput, match=r"Layer '' \(Shifted\) has dropout 0.3 .*dropout='off'") as error:
        Network(lambda: Shifted(F, H, num_layers=2, dropout=0.3))
    assert "\n" not in str(error.value)
    Network(lambda: Shifted(F, H, num_layers=2))


def test_a_single_layer_has_nothing_to_drop_between():
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
        network = Network(lambda: nn.LSTM(F, H, num_layers=1, dropout=0.5))
    assert not network.drops
