"""Packed sequences of a stack of clients: the values and gradients of torch's own."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from corymb.engines.vectorised.recurrent import Cells
from corymb.trees import take
from tests.engines.vectorised.test_recurrent import BATCH, CLIENTS, FORMS, KINDS, TIME, drawn
from tests.tiny import farthest

LENGTHS = torch.tensor([[5, 1, 3, 3], [2, 4, 1, 2], [1, 1, 1, 1]])  # clients b: one has no series of full length


def score(module, params, x, lengths, *, again=False, start=None):
    """A number that depends on all that a recurrent layer returns for packed sequences."""
    first = module.batch_first
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=first, enforce_sorted=False)
    out, last = functional_call(module, params, (packed, start))
    h, c = last if isinstance(module, nn.LSTM) else (last, last)
    total = (2 * h).cos().sum() + (c * c).sum() + h[:, 1].sum()
    if again:
        padded, found = pad_packed_sequence(out, batch_first=first, padding_value=0.5, total_length=TIME)
        total = total + padded.sin().sum() + (found * padded.movedim(int(not first), 0).sum((1, 2))).sum()
    return total


@pytest.mark.parametrize("again", [False, True], ids=["states", "padded-again"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_slopes_are_those_of_torch(kind, form, again):
    if form == "projected" and kind != "lstm":
        pytest.skip("torch has projections of LSTMs only")
    module = KINDS[kind](2, 6, **FORMS[form]).double()
    x = drawn(*((CLIENTS, BATCH, TIME, 2) if module.batch_first else (CLIENTS, TIME, BATCH, 2))).requires_grad_()
    stacked = {n: (drawn(CLIENTS, *p.shape) / 4).requires_grad_() for n, p in module.named_parameters()}

    def with_cells(params, own, lengths):
        with Cells():
            return score(module, params, own, lengths, again=again)

    together = vmap(with_cells)(stacked, x, LENGTHS)
    apart = torch.stack([score(module, take(stacked, i), x[i], LENGTHS[i], again=again) for i in range(CLIENTS)])
    assert farthest(together.detach(), apart.detach()) < 1e-12
    got, want = (torch.autograd.grad(scores.sum(), [*stacked.values(), x]) for scores in (together, apart))
    assert farthest(dict(enumerate(got)), dict(enumerate(want))) < 1e-12


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_state_to_start_from_goes_with_its_series(kind):
    module, x = KINDS[kind](2, 3, bidirectional=True).double(), drawn(TIME, BATCH, 2)
    start = drawn(2, BATCH, 3)
    start = (start, start.sin()) if kind == "lstm" else start
    params = dict(module.named_parameters())
    want = score(module, params, x, LENGTHS[1], start=start)
    with Cells():
        got = score(module, params, x, LENGTHS[1], start=start)
    assert farthest(got.detach(), want.detach()) < 1e-12


def test_padding_with_nan_reaches_nothing():
    module, x = nn.GRU(2, 3).double(), drawn(TIME, BATCH, 2)
    x[torch.arange(TIME)[:, None] >= LENGTHS[0]] = torch.nan
    with Cells():
        total = score(module, dict(module.named_parameters()), x, LENGTHS[0], again=True)
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(total, list(module.parameters())))


def test_a_result_as_long_as_the_longest_series_is_refused():
    module, x = nn.GRU(2, 3), drawn(TIME, BATCH, 2, dtype=torch.float32)
    with Cells(), pytest.raises(NotImplementedError, match="without total_length=5"):
        pad_packed_sequence(module(pack_padded_sequence(x, LENGTHS[1], enforce_sorted=False))[0])


def test_rows_that_a_model_computes_with_are_nan_or_refused():
    module, x = nn.GRU(2, 3), drawn(TIME, BATCH, 2, dtype=torch.float32)
    with Cells():
        packed = pack_padded_sequence(x, LENGTHS[1], enforce_sorted=False)
        assert packed.data.mean().isnan()
        with pytest.raises(NotImplementedError, match="one by one"):
            module(PackedSequence(2 * packed.data, *packed[1:]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("move", [lambda t: t.cpu(), lambda t: t.to("cpu"), lambda t: t.to(device="cpu")])
def test_lengths_stay_on_a_gpu(move):
    module, x = nn.LSTM(2, 3, bidirectional=True).double().cuda(), drawn(TIME, BATCH, 2).cuda()
    lengths = LENGTHS[1].cuda()
    want = module(pack_padded_sequence(x, lengths.cpu(), enforce_sorted=False))[1][0]
    with Cells():
        assert move(lengths).is_cuda
        got = module(pack_padded_sequence(x, move(lengths), enforce_sorted=False))[1][0]
    assert farthest(got.detach(), want.detach()) < 1e-12
