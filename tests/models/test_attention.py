"""Attention with keyed dropout is torch's attention, but for the weights that are dropped."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import corymb
from corymb.core.objective import Draws
from corymb.keys import root
from corymb.local import Descent
from corymb.models import Network
from corymb.models.attention import _forward, attend
from corymb.settings import InvalidInput
from tests.tiny import farthest

M, L, S, E, HEADS = 5, 4, 6, 8, 2


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


ALLOWED = torch.ones(L, S, dtype=torch.bool).tril(1)
MASKS = {
    "none": {},
    "allowed": {"attn_mask": ALLOWED},
    "added": {"attn_mask": drawn(L, S, seed=4)},
    "causal": {"is_causal": True},
    "one query has no key": {"attn_mask": ALLOWED & (torch.arange(L) != 2)[:, None]},
    "scale": {"scale": 0.3},
}


@pytest.mark.parametrize("name", MASKS)
def test_without_dropout_it_is_torchs_attention(name):
    q, k, v = (drawn(M, HEADS, length, E, seed=i) for i, length in enumerate((L, S, S)))
    got, want = attend(q, k, v, **MASKS[name]), scaled_dot_product_attention(q, k, v, **MASKS[name])
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_grouped_queries():
    q, k, v = (drawn(M, heads, L, E, seed=heads) for heads in (4, 2, 2))
    want = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(attend(q, k, v, enable_gqa=True), want, rtol=1e-12, atol=1e-12)


PADDING = torch.arange(S) >= torch.tensor([6, 3, 5, 1, 6])[:, None]
LAYERS = {
    "batch first": ({"batch_first": True}, {}),
    "positions first": ({}, {}),
    "no bias": ({"bias": False, "batch_first": True}, {}),
    "other widths": ({"kdim": 5, "vdim": 3, "batch_first": True}, {}),
    "keys left out": ({"batch_first": True}, {"key_padding_mask": PADDING}),
    "both masks": ({"batch_first": True}, {"key_padding_mask": PADDING, "attn_mask": ~torch.ones(L, S).tril(3).bool()}),
    "a mask per head": ({"batch_first": True}, {"attn_mask": drawn(M * HEADS, L, S, seed=7)}),
    "weights of heads": ({"batch_first": True}, {"average_attn_weights": False}),
    "no weights": ({"batch_first": True}, {"need_weights": False}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_without_dropout_the_layer_is_torchs_layer(name):
    options, masks = LAYERS[name]
    layer = nn.MultiheadAttention(E, HEADS, **options).double()
    widths = E, options.get("kdim", E), options.get("vdim", E)
    given = [drawn(M, length, width, seed=i) for i, (length, width) in enumerate(zip((L, S, S), widths, strict=True))]
    given = given if options.get("batch_first") else [t.transpose(0, 1) for t in given]
    (out, weights), (want, want_weights) = _forward(layer, 0.0, *given, **masks), layer(*given, **masks)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-10)
    assert (weights is None) == (want_weights is None)
    if weights is not None:
        torch.testing.assert_close(weights, want_weights, rtol=1e-10, atol=1e-10)


class Encoder(nn.Module):
    """A transformer as users write it: torch's layer with its usual dropout of 0.1."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(E, HEADS, 16, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(E, 2)

    def forward(self, x):
        return self.out(self.encoder(x.unflatten(-1, (-1, E))).mean(1))


class Scaled(Encoder):
    """Attention by torch's function, as in the models of transformers."""

    def forward(self, x):
        x = x.unflatten(-1, (-1, E))
        x = scaled_dot_product_attention(x, x, x, dropout_p=0.3 if self.training else 0.0)
        return self.out(self.encoder(x).mean(1))


def clients():
    draw = torch.Generator().manual_seed(0)
    return {
        f"c{i}": (torch.randn(m, 3 * E, generator=draw).numpy(), (torch.arange(m) % 2).numpy())
        for i, m in enumerate((12, 7, 12, 9))
    }


@pytest.mark.parametrize("model", [Encoder, Scaled])
@pytest.mark.parametrize("kernel", ["foreach", "serial"])
def test_dropout_in_attention_is_the_same_on_every_engine(model, kernel):
    data = corymb.FederatedDataset.from_clients(clients(), test=0)
    algorithm = corymb.FedAvg(rounds=2, local=Descent(lr=0.1, epochs=1, batch=4))
    double = {"precision": "float64", "progress": False}
    got = corymb.fit(algorithm, data, model, kernel=kernel, **double)
    want = corymb.fit(algorithm, data, model, engine="loop", **double)
    assert farthest(got.models, want.models) < 1e-9
    off = corymb.fit(algorithm, data, model, dropout="off", **double)
    assert farthest(off.models, want.models) > 1e-4


def test_draws_differ_between_steps_and_examples_and_keep_the_mean():
    """With a rate of 0.5 half of the weights are dropped and the others doubled, so that the mean stays."""
    network = Network(lambda: Only(0.5), dtype=torch.float64)
    params, x = network.init(root(1)), drawn(1, 3 * E).expand(64, -1)
    plain = network(params, x)[0]
    steps = torch.stack([network.training(params, x, Draws(root(0), step)) for step in range(64)])
    assert not torch.equal(steps[0, 0], steps[1, 0])
    assert not torch.equal(steps[0, 0], steps[0, 1])
    error = (steps.flatten(0, 1).mean(0) - plain).abs() / (steps.flatten(0, 1).std(0) / math.sqrt(64 * 64))
    assert float(error.max()) < 5


class Only(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.look = nn.MultiheadAttention(E, HEADS, dropout=rate, batch_first=True)

    def forward(self, x):
        x = x.unflatten(-1, (-1, E))
        return self.look(x, x, x)[0].flatten(1)


def test_what_is_not_supported_with_dropout_is_refused_in_one_line():
    with pytest.raises(InvalidInput, match=r"add_bias_kv .*dropout='off'") as error:
        Network(lambda: nn.MultiheadAttention(E, HEADS, dropout=0.1, add_bias_kv=True))
    assert "\n" not in str(error.value)
    Network(lambda: nn.MultiheadAttention(E, HEADS, dropout=0.1, add_bias_kv=True), dropout="off")
