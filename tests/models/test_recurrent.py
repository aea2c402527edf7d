"""Recurrent layers with keyed dropout are torch's layers, but for the inputs that are dropped between them."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.overrides import TorchFunctionMode

import corymb
from corymb.core.objective import Draws
from corymb.keys import root
from corymb.local import Descent
from corymb.models import Network
from corymb.models.recurrent import LAYERS, one_layer_after_another
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


class Apart(TorchFunctionMode):
    """Torch's layers, computed one after another."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in LAYERS:
            return one_layer_after_another(func, *args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", STACKS)
def test_without_dropout_they_are_torchs_layers(kind, form):
    stack = STACKS[kind](num_layers=3, **FORMS[form]).double()
    x = drawn(M, T, F) if FORMS[form].get("batch_first") else drawn(T, M, F)
    ends = stack(x)[1]
    for start in (None, tuple(map(torch.tanh, ends)) if isinstance(ends, tuple) else ends.tanh()):
        with Apart():
            got, got_ends = stack(x, start)
        want, want_ends = stack(x, start)
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


def test_a_layer_with_a_forward_pass_of_its_own_keeps_it():
    x, params = drawn(M, T, F), None
    results = []
    for kind in (nn.LSTM, Shifted):
        network = Network(lambda kind=kind: First(kind), dtype=torch.float64)
        params = params or network.init(root(1))
        results.append(network.training(params, x + 1 if kind is nn.LSTM else x, Draws(root(0))))
    assert torch.equal(*results)
    assert not torch.equal(results[0], network(params, x))


class First(nn.Module):
    """The outputs of a recurrent layer."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.stack = kind(F, H, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.stack(x)[0].mean(1)


def test_an_input_of_another_width_is_refused_by_torchs_own_line():
    network = Network(lambda: First(nn.LSTM))
    with pytest.raises(RuntimeError, match="Expected 3, got 4"):
        network.training(network.init(root(0)), torch.zeros(M, T, F + 1), Draws(root(0)))


def test_the_rate_between_layers_is_part_of_the_description():
    """Or a run would be continued with another model than it was started with."""
    networks = [Network(lambda rate=rate: nn.GRU(F, H, num_layers=2, dropout=rate)) for rate in (0.1, 0.2)]
    assert networks[0].describe() != networks[1].describe()


def test_a_single_layer_has_nothing_to_drop_between():
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
        network = Network(lambda: nn.LSTM(F, H, num_layers=1, dropout=0.5))
    assert not network.drops
