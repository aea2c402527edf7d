"""Attention with keyed dropout is torch's attention, but for the weights that are dropped."""

import math
import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

import corymb
from corymb.core.objective import Draws
from corymb.keys import root
from corymb.local import Descent
from corymb.models import Network
from corymb.models.attention import attend, attend_by_heads
from corymb.models.drawing import KeyedDropout
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
    "no weights, keys left out": ({"batch_first": True}, {"need_weights": False, "key_padding_mask": PADDING}),
    "no weights, no keys": ({}, {"need_weights": False, "attn_mask": (torch.arange(L) == 2)[:, None].expand(L, S)}),
    "a key of its own": ({"add_bias_kv": True}, {"key_padding_mask": PADDING}),
    "a zero key": ({"add_zero_attn": True, "batch_first": True}, {"attn_mask": ~torch.ones(L, S).tril(3).bool()}),
    "both, other widths": ({"add_bias_kv": True, "add_zero_attn": True, "kdim": 5, "vdim": 3}, {}),
}


class ByDefinition(TorchFunctionMode):
    """Torch's layer, with its function replaced."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return (attend_by_heads if func is multi_head_attention_forward else func)(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", LAYERS)
def test_without_dropout_the_layer_is_torchs_layer(name):
    options, masks = LAYERS[name]
    layer = nn.MultiheadAttention(E, HEADS, **options).double()
    widths = E, options.get("kdim", E), options.get("vdim", E)
    given = [drawn(M, length, width, seed=i) for i, (length, width) in enumerate(zip((L, S, S), widths, strict=True))]
    given = given if options.get("batch_first") else [t.transpose(0, 1) for t in given]
    with ByDefinition():
        out, weights = layer(*given, **masks)
    want, want_weights = layer(*given, **masks)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-10)
    assert (weights is None) == (want_weights is None)
    if weights is not None:
        torch.testing.assert_close(weights, want_weights, rtol=1e-10, atol=1e-10)


def test_the_layer_attends_to_itself_and_takes_keys_and_values_computed_before():
    layer, x = nn.MultiheadAttention(E, HEADS).double(), drawn(L, M, E)
    weights = layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0, layer.out_proj.weight, None
    keys, values = (drawn(M * HEADS, S, E // HEADS, seed=i) for i in (1, 2))
    for given in ({}, {"static_k": keys, "static_v": values}, {"training": False}):
        got, want = (f(x, x, x, E, HEADS, *weights, **given) for f in (attend_by_heads, multi_head_attention_forward))
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_a_query_whose_keys_are_all_left_out_is_nan_where_it_is_in_torch():
    layer, x = nn.MultiheadAttention(E, HEADS, batch_first=True).double(), drawn(M, S, E)
    nothing = torch.ones(M, S, dtype=torch.bool)
    with ByDefinition():
        got = layer(x, x, x, key_padding_mask=nothing)[0]
    assert layer(x, x, x, key_padding_mask=nothing)[0].isnan().all()
    assert got.isnan().all()


class Encoder(nn.Module):
    """A transformer as users write it: torch's layer with its usual dropout of 0.1."""

    def __init__(self, **form: object) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(E, HEADS, 16, **{"batch_first": True, **form})
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(E, 2)

    def forward(self, x):
        return self.out(self.encoder(x.unflatten(-1, (-1, E))).mean(1))


class Scaled(Encoder):
    """Attention by torch's function, as in the models of transformers."""

    def forward(self, x):
        x = x.unflatten(-1, (-1, E))
        x = scaled_dot_product_attention(x, x, x, dropout_p=0.3 if self.training else 0.0)
        return self.out(self.encoder(x).mean(1))


class PositionsFirstEncoder(Encoder):
    """With torch's default order of axes, in which its layers drop inputs with positions on the first axis."""

    def __init__(self) -> None:
        super().__init__(batch_first=False, norm_first=True, activation="gelu")

    def forward(self, x):
        return self.out(self.encoder(x.unflatten(-1, (-1, E)).transpose(0, 1)).mean(0))


class Translator(nn.Module):
    """An encoder and a decoder with masks, in torch's default order of axes."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings(action="ignore"):  # that batch_first would be faster
            self.both, self.out = nn.Transformer(E, HEADS, 1, 1, 16), nn.Linear(E, 2)

    def forward(self, x):
        x = x.unflatten(-1, (-1, E)).transpose(0, 1)
        causal = nn.Transformer.generate_square_subsequent_mask(2, dtype=x.dtype)
        padding = torch.zeros(x.shape[1], len(x), dtype=torch.bool, device=x.device)
        out = self.both(x, x[:2], tgt_mask=causal, tgt_is_causal=True, src_key_padding_mask=padding)
        return self.out(out.mean(0))


class Functional(Encoder):
    """Attention by torch's function for it, with a dropout of its own, and a subclass of torch's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.look = Shifted(E, HEADS, dropout=0.2, add_bias_kv=True, add_zero_attn=True)

    def forward(self, x):
        x = x.unflatten(-1, (-1, E)).transpose(0, 1)
        look, rest = self.look, (None, None, False, 0.3)
        of_layer = look.in_proj_weight, look.in_proj_bias, *rest, look.out_proj.weight, look.out_proj.bias
        out, _ = multi_head_attention_forward(x, x, x, E, HEADS, *of_layer, training=self.training)
        return self.out(look(out, x, x)[0].mean(0))


class Shifted(nn.MultiheadAttention):
    """A layer with a forward pass of its own."""

    def forward(self, query, *more, **options):
        return super().forward(query + 1, *more, **options)


def clients():
    draw = torch.Generator().manual_seed(0)
    return {
        f"c{i}": (torch.randn(m, 3 * E, generator=draw).numpy(), (torch.arange(m) % 2).numpy())
        for i, m in enumerate((12, 7, 12, 9))
    }


@pytest.mark.parametrize("model", [Encoder, Scaled, PositionsFirstEncoder, Translator, Functional])
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


@pytest.mark.parametrize("model", [Encoder, Scaled, PositionsFirstEncoder, Translator, Functional, partial(Only, 0.2)])
def test_what_is_dropped_of_an_example_depends_on_no_other(model):
    """Not even where there are as many examples as positions, so that shapes alone do not tell the axes apart."""
    network, x = Network(model, dtype=torch.float64), drawn(6, 3 * E)
    params = network.init(root(1))
    for m in (3, 6, 4):
        out = network.training(params, x[:m], Draws(root(0)))
        some = torch.tensor([2, 0])
        few = network.training(params, x[some], Draws(root(0), rows=some))
        torch.testing.assert_close(few, out[some], rtol=1e-10, atol=1e-10)


class OverPositions(nn.Module):
    """Dropout on an input with positions on its first axis."""

    def __init__(self, attention: bool = False) -> None:
        super().__init__()
        self.out, self.attention = nn.Linear(E, 2), attention

    def forward(self, x):
        x = x.unflatten(-1, (-1, E)).transpose(0, 1)
        rate = 0.3 if self.training else 0.0
        if self.attention:
            heads = x.unsqueeze(2)
            return self.out(scaled_dot_product_attention(heads, heads, heads, dropout_p=rate).mean((0, 2)))
        return self.out(dropout(x, 0.3, self.training).mean(0))


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 6])
def test_dropout_over_another_axis_is_refused_whatever_its_length(m, attention):
    network = Network(partial(OverPositions, attention))
    with pytest.raises(InvalidInput, match=r"wanted examples on the first axis.* dropout='off'") as error:
        network.training(network.init(root(0)), torch.randn(m, 6 * E), Draws(root(0)))
    assert "\n" not in str(error.value)


IN_HEADS = torch.ones(3 * E, E), None, None, None
CALLS = {
    "a query of shape [5, 8]": lambda x: multi_head_attention_forward(
        x, x, x, E, HEADS, *IN_HEADS, False, 0.3, torch.eye(E), None
    )[0],
    "is_causal=True: give attn_mask, too": lambda x: multi_head_attention_forward(
        *[x[:, None]] * 3, E, HEADS, *IN_HEADS, False, 0.3, torch.eye(E), None, is_causal=True
    )[0],
    "is_causal=True and an attn_mask": lambda x: scaled_dot_product_attention(
        x[None], x[None], x[None], torch.ones(5, 5), 0.1, is_causal=True
    ),
}


@pytest.mark.parametrize("line", CALLS)
def test_calls_that_torch_refuses_are_refused_in_one_line(line):
    x = drawn(M, E).float()
    with pytest.raises(InvalidInput) as error, KeyedDropout(Draws(root(0)), M):
        CALLS[line](x)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_the_rates_of_attention_and_recurrent_layers_are_part_of_the_description():
    """Or a run would be continued with another model than it was started with."""
    rates = [Network(lambda rate=rate: Only(rate)).describe() for rate in (0.1, 0.2)]
    assert rates[0] != rates[1]
    off = [Network(lambda rate=rate: Only(rate), dropout="off").describe() for rate in (0.1, 0.2)]
    assert off[0] == off[1]
