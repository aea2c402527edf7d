"""Weights of recurrent layers in one piece of memory: found by name, and taken by cuDNN as they are."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from corymb.core.objective import Examples
from corymb.engines.vectorised.flat_weights import Recurrence, flattened
from corymb.engines.vectorised.traits import traits_of
from corymb.keys import root
from corymb.models import Network
from corymb.objectives import Classification
from corymb.trees import take
from tests.engines.vectorised.test_recurrent import FORMS, KINDS, drawn


class Last(nn.Module):
    """A recurrent layer and a head; with `packed`, of series whose lengths are values."""

    def __init__(self, packed=False):
        super().__init__()
        self.cells, self.out, self.packed = nn.GRU(2, 3, batch_first=True, bidirectional=True), nn.Linear(3, 2), packed

    def forward(self, x):
        if self.packed:
            lengths = (x[..., 0] > 0).sum(1).clamp_min(1).cpu()
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.cells(x)[1][0])


@pytest.mark.parametrize("packed", [False, True])
def test_the_layers_of_a_model_are_found_by_name(packed):
    objective = Classification(Network(lambda: Last(packed)), 2)
    one = Examples(drawn(1, 4, 2, dtype=torch.float32), torch.zeros(1, dtype=torch.int64), torch.ones(1))
    names = tuple(f"cells.{name}" for name in Last().cells._flat_weights_names)
    params = objective.init(root(0))
    assert traits_of(objective, params, one).recurrences == (Recurrence("gru", names, True, 1, True),)
    assert traits_of(objective, params, one).lstm is False


def test_without_cudnn_nothing_is_copied():
    params = dict(nn.GRU(2, 3).named_parameters())
    assert flattened(params, [Recurrence("gru", tuple(params), True, 1, False)]) == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_cudnn_takes_them_as_they_are(kind, form):
    if form == "projected" and kind != "lstm":
        pytest.skip("torch has projections of LSTMs only")
    module, x = KINDS[kind](2, 6, **FORMS[form]).cuda(), drawn(5, 4, 2, dtype=torch.float32).cuda()
    names = tuple(module._flat_weights_names)
    stacked = {n: torch.stack([p.detach(), p.detach()]) for n, p in module.named_parameters()}
    model, name = take(stacked, 1), {"rnn-tanh": "rnn_tanh", "rnn-relu": "rnn_relu"}.get(kind, kind)
    flat = flattened(model, [Recurrence(name, names, module.bias, module.num_layers, module.bidirectional)])
    assert flat.keys() == model.keys()
    assert all(torch.equal(flat[n], model[n]) for n in model)
    assert offsets([flat[n] for n in names]) == offsets(module._flat_weights)  # as in torch's own module
    got = functional_call(module, flat, (x,))[0]
    torch.testing.assert_close(got, module(x)[0], rtol=1e-5, atol=1e-6)


def offsets(weights):
    """Where weights are in their common memory."""
    assert len({w.untyped_storage().data_ptr() for w in weights}) == 1
    return [w.storage_offset() for w in weights]
