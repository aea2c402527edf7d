"""Captured steps: their own tensors, the way that is chosen, and what is never captured. There is no GPU here: a
"capture" is the work itself, and all else is as on one."""

import pytest
import torch
from torch import nn

from corymb.engines.vectorised.graphs import WORTH
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.recurrent import Cells
from corymb.engines.vectorised.traits import watch
from corymb.local import Descent
from corymb.models import Network
from corymb.objectives import Classification
from corymb.trees import take
from tests.engines.vectorised.test_tape import job


def small(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))


def on_gpu(objective) -> Kernels:
    params, on, _ = job(objective, 0)
    return Kernels(watch(objective, take(params, 0), take(take(on, 0), slice(0, 1))), "cuda", 1, only="foreach")


@pytest.mark.parametrize("batch", [None, 2])
def test_captured_descents_are_those_of_the_plain_kernel(batch):
    objective, how = Classification(Network(lambda: small(nn.Tanh())), 3), Descent(lr=0.1, steps=WORTH, batch=batch)
    plain, kernels = on_gpu(objective), on_gpu(objective)
    object.__setattr__(plain, "device", "cpu")
    for seed in range(4):  # the first is not captured yet; the others start from other models on other examples
        params, on, key = job(objective, seed)
        want, want_loss = plain.descend(objective, params, on, key, how)
        got, loss = kernels.descend(objective, params, on, key, how)
        again, _ = kernels.descend(objective, params, on, key, how)
        assert torch.allclose(loss, want_loss, rtol=1e-6)
        for name in want:
            assert torch.allclose(got[name], want[name], rtol=1e-5, atol=1e-6)
            assert torch.equal(got[name], again[name]) or not seed  # what was given is not written into afterwards
    assert [seen.player is not None for seen in kernels.graphs.seen.values()] == [True]


def test_dropout_and_other_optimisers_are_not_captured():
    objective = Classification(Network(lambda: small(nn.Dropout(0.5))), 3)
    kernels = on_gpu(objective)
    for how in (Descent(lr=0.1, steps=WORTH), Descent(lr=0.1, steps=WORTH, momentum=0.5)):
        for _ in range(2):
            kernels.descend(objective, *job(objective, 0), how)
    assert all(seen.player is None for seen in kernels.graphs.seen.values())


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(2, 5, num_layers=2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.lstm(x.reshape(len(x), 2, 2))[0][:, -1])


def test_the_cells_of_an_lstm_give_its_numbers_and_can_be_stacked():
    module, x = Reader().double(), torch.randn(7, 4, dtype=torch.float64)
    with Cells():
        apart = module(x)
    assert torch.allclose(apart, module(x), rtol=1e-12, atol=1e-12)
    objective = Classification(Network(Reader), 3)
    params, on, key = job(objective, 1)
    kernels = on_gpu(objective)
    assert kernels.traits.lstm
    got, loss = kernels.descend(objective, params, on, key, Descent(lr=0.1, steps=2))
    serial = Kernels(kernels.traits, "cpu", 1)
    want, want_loss = serial.descend(objective, params, on, key, Descent(lr=0.1, steps=2))
    assert serial.pick(None) == "serial"
    assert torch.allclose(loss, want_loss, rtol=1e-5)
    assert all(torch.allclose(got[name], want[name], rtol=1e-4, atol=1e-6) for name in want)
