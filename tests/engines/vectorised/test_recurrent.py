"""Recurrent layers of a stack of clients: the values and gradients of torch's own, in every form."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from corymb.engines.vectorised.recurrent import Cells
from corymb.trees import take
from tests.tiny import farthest

CLIENTS, BATCH, TIME = 3, 4, 5


def drawn(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


FORMS = {
    "plain": {},
    "layers": {"num_layers": 3},
    "batch-first": {"batch_first": True, "num_layers": 2},
    "no-biases": {"bias": False, "num_layers": 2},
    "both-directions": {"bidirectional": True, "num_layers": 2},
    "projected": {"proj_size": 4, "num_layers": 2, "bidirectional": True},
}
KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn-tanh": nn.RNN,
    "rnn-relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}


@pytest.mark.parametrize("given", [False, True], ids=["from-zeros", "from-a-state"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_slopes_are_those_of_torch(kind, form, given):
    if form == "projected" and kind != "lstm":
        pytest.skip("torch has projections of LSTMs only")
    module = KINDS[kind](2, 6, **FORMS[form]).double()
    shape = (CLIENTS, BATCH, TIME, 2) if module.batch_first else (CLIENTS, TIME, BATCH, 2)
    scale = 6 if kind == "rnn-relu" else 2  # nothing bounds the states of the former
    stacked = {name: drawn(CLIENTS, *p.shape) / scale for name, p in module.named_parameters()}
    x, parts = drawn(*shape), (1, 0.5) if kind == "lstm" else (1,)
    rows = module.num_layers * (2 if module.bidirectional else 1)
    widths = (module.proj_size or 6, 6)  # of the hidden states and of the memory
    start = [drawn(CLIENTS, rows, BATCH, w) * part for w, part in zip(widths, parts, strict=False)] if given else []

    def score(params, own, *state):
        state = (tuple(state) if kind == "lstm" else state[0]) if state else None
        out, last = functional_call(module, params, (own, state))
        h, c = last if kind == "lstm" else (last, last)
        return out.sin().sum() + (2 * h).cos().sum() + (c * c).sum() + out.movedim(int(module.batch_first), 0)[-1].sum()

    def slopes(scores, *inputs):
        return dict(enumerate(torch.autograd.grad(scores, inputs, retain_graph=True)))

    leaves = [*stacked.values(), x, *start]
    for leaf in leaves:
        leaf.requires_grad_()

    def all_of(params, own, *state):
        with Cells():
            return score(params, own, *state)

    together = vmap(all_of)(stacked, x, *start)
    apart = torch.stack([score(take(stacked, i), x[i], *(s[i] for s in start)) for i in range(CLIENTS)])
    assert farthest(together.detach(), apart.detach()) < 1e-12
    assert farthest(slopes(together.sum(), *leaves), slopes(apart.sum(), *leaves)) < 1e-12
    with Cells():  # and of one client by itself
        alone = score(take(stacked, 0), x[0], *(s[0] for s in start))
    assert farthest(slopes(alone, *leaves), slopes(apart[0], *leaves)) < 1e-12


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_cells_of_a_gpu_are_the_cpus(kind, bias):
    module = KINDS[kind](2, 6, bias=bias, bidirectional=True).double()
    x = drawn(TIME, BATCH, 2)
    found = []
    for device in ("cpu", "cuda"):
        module, on = module.to(device), x.to(device).requires_grad_()
        with Cells():
            out, _ = module(on)
            found.append(torch.autograd.grad(out.sin().sum(), [on, *module.parameters()]))
    assert max(float((a - b.cpu()).abs().max()) for a, b in zip(*found, strict=True)) < 1e-12


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "make",
    [nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda *sizes, **options: nn.RNNCell(*sizes, nonlinearity="relu", **options)],
    ids=["lstm", "gru", "rnn-tanh", "rnn-relu"],
)
def test_cells_that_a_model_steps_itself(make, bias):
    module = make(2, 3, bias=bias).double()
    # Small weights, since nothing bounds the states of an RNN with ReLU: slopes of 35 differ by more than 1e-12.
    stacked = {name: (drawn(CLIENTS, *p.shape) / 4).requires_grad_() for name, p in module.named_parameters()}
    x = drawn(CLIENTS, TIME, BATCH, 2)

    def score(params, own):
        state = None
        for now in own:
            state = functional_call(module, params, (now, state))
        return state[0].sin().sum() + state[1].sum() if isinstance(state, tuple) else state.sin().sum()

    def with_cells(params, own):
        with Cells():
            return score(params, own)

    together = vmap(with_cells)(stacked, x)
    apart = torch.stack([score(take(stacked, i), x[i]) for i in range(CLIENTS)])
    assert farthest(together.detach(), apart.detach()) < 1e-12
    got, want = (torch.autograd.grad(scores.sum(), list(stacked.values())) for scores in (together, apart))
    assert farthest(dict(enumerate(got)), dict(enumerate(want))) < 1e-12


@pytest.mark.parametrize("what", ["output", "memory"])
def test_slopes_where_only_a_part_is_used(what):
    module = nn.LSTM(2, 3, num_layers=2).double()
    x = drawn(1, BATCH, 2)  # a single time step

    def score():
        out, (_, c) = module(x)
        return out[-1].sum() if what == "output" else c.square().sum()

    want = dict(enumerate(torch.autograd.grad(score(), list(module.parameters()))))
    with Cells():
        got = torch.autograd.grad(score(), list(module.parameters()))
    assert farthest(dict(enumerate(got)), want) < 1e-12


def test_a_shared_start_and_shared_examples_are_expanded_to_all_clients():
    module = nn.LSTM(2, 3).double()
    stacked = {name: drawn(CLIENTS, *p.shape) for name, p in module.named_parameters()}
    x = drawn(TIME, BATCH, 2)

    def last(params):
        with Cells():
            return functional_call(module, params, (x,))[0][-1]

    with torch.no_grad():
        got = vmap(last)(stacked)
        want = torch.stack([functional_call(module, take(stacked, i), (x,))[0][-1] for i in range(CLIENTS)])
    assert farthest(got, want) < 1e-12


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn-tanh"])  # a ReLU near zero goes either way
def test_products_in_a_lower_precision_stay_near(kind):
    module, x = KINDS[kind](8, 16, num_layers=2), drawn(TIME, BATCH, 8, dtype=torch.float32)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(drawn(*p.shape) / 4)
    want = dict(enumerate(torch.autograd.grad(module(x)[0].sum(), list(module.parameters()))))
    with torch.autocast("cpu", torch.bfloat16), Cells():
        out = module(x)[0]
    got = dict(enumerate(torch.autograd.grad(out.float().sum(), list(module.parameters()))))
    scale = max(float(slope.abs().max()) for slope in want.values())
    assert 0 < farthest(got, want) < 0.05 * scale


def test_dropout_between_layers_has_no_cells():
    with pytest.raises(NotImplementedError, match="dropout between them"), Cells():
        nn.LSTM(2, 3, num_layers=2, dropout=0.5)(drawn(TIME, BATCH, 2, dtype=torch.float32))


def test_packed_sequences_have_no_cells():
    packed = nn.utils.rnn.pack_padded_sequence(drawn(TIME, BATCH, 2, dtype=torch.float32), [5, 4, 2, 1])
    with pytest.raises(NotImplementedError, match="packed"), Cells():
        nn.GRU(2, 3)(packed)
