"""Losses that depend on the other examples of a batch: clients with equally many examples run together."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from corymb.core.objective import Examples
from corymb.engines import Placement, VectorisedEngine
from corymb.engines.vectorised.kernels import steps
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.local.reference import descend_one
from corymb.models import Network
from corymb.objectives import Classification
from corymb.trees import stack, take

SIZES = (5, 3, 5, 0, 3, 5, 4)
CLASSES = 3


class Centred(nn.Module):
    """Subtracts the mean of its batch."""

    def __init__(self, width: int = 8, drop: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(drop), nn.Linear(width, CLASSES))

    def forward(self, x):
        return self.body(x - x.mean(0))


class Sorted(Centred):
    """A Python loop over values, which vmap cannot run."""

    def forward(self, x):
        return self.body(x - min(x[:, 0].tolist()))


def job(make, *, zero: bool = False):
    """The kernels for a model, models in double precision, and clients of the sizes above in one padded stack."""
    draw, n, m = torch.Generator().manual_seed(1), len(SIZES), max(SIZES)
    x = torch.randn(n, m, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(CLASSES, (n, m), generator=draw)
    weight = (torch.arange(m) < torch.tensor(SIZES)[:, None]).double()
    if zero:
        weight[2, 1] = 0
    real = weight > 0
    offsets = torch.tensor([0, *real.sum(1).cumsum(0).tolist()])
    table = SimpleNamespace(x=x[real].float(), y=y[real], offsets=offsets)
    data = SimpleNamespace(names=[f"client-{i}" for i in range(n)], train=table, test=table)
    objective = Classification(Network(make, dtype=torch.float64), CLASSES)
    engine = VectorisedEngine(objective, data, Placement(dtype=torch.float64))
    params = stack([objective.init(root(seed)) for seed in range(n)])
    return engine.kernels, objective, params, Examples(x, y, weight), fold(root(2), torch.arange(n))


def sizes_of_stacks(monkeypatch) -> list[int]:
    """The number of clients in each stack that gradients are computed for."""
    seen, gradients = [], steps.gradients

    def noted(objective, params, on, draws, **options):
        seen.append(len(on.weight))
        return gradients(objective, params, on, draws, **options)

    monkeypatch.setattr(steps, "gradients", noted)
    return seen


HOWS = {
    "all": Descent(lr=0.1, steps=5),
    "short last batches": Descent(lr=0.1, epochs=3, batch=2),
    "more steps than a pass": Descent(lr=0.1, steps=7, batch=2),
    "large batches": Descent(lr=0.1, steps=4, batch=20),
    "momentum": Descent(lr=0.1, steps=4, batch=3, momentum=0.5),
    "safe": Descent(lr=0.5, steps=4, batch=2, safe=True),
}


@pytest.mark.parametrize("drop", [0.0, 0.4])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("how", HOWS)
def test_the_loops_numbers_in_stacks_of_equal_lengths(how, own, drop, monkeypatch):
    kernels, objective, params, on, key = job(lambda: Centred(drop=drop))
    assert kernels.equal
    stacks, before = sizes_of_stacks(monkeypatch), {name: value.clone() for name, value in params.items()}
    got, loss = kernels.descend(objective, params, on, key, HOWS[how], own=own)
    assert set(stacks) == {3, 2}  # clients of 5 and of 3 examples; the others run by themselves
    for i, m in enumerate(SIZES):
        want = descend_one(objective, take(before, i), Examples(*(t[i, :m] for t in on)), key[i], HOWS[how])
        torch.testing.assert_close(loss[i], want.loss, rtol=0, atol=1e-12)
        for name in params:
            torch.testing.assert_close(got[name][i], want.params[name], rtol=0, atol=1e-12)
    if not own:
        assert all(torch.equal(params[name], before[name]) for name in params)


def test_a_client_with_an_example_of_weight_0_runs_by_itself(monkeypatch):
    kernels, objective, params, on, key = job(Centred, zero=True)
    stacks = sizes_of_stacks(monkeypatch)
    got, _ = kernels.descend(objective, params, on, key, HOWS["short last batches"])
    assert set(stacks) == {2}
    want = descend_one(objective, take(params, 2), take(on, 2), key[2], HOWS["short last batches"])
    for name in params:
        torch.testing.assert_close(got[name][2], want.params[name], rtol=0, atol=1e-12)


def test_progress_never_falls_back():
    kernels, objective, params, on, key = job(Centred)
    told = []
    kernels.watch.report = told.append
    kernels.descend(objective, params, on, key, HOWS["all"])
    steps = [part for part in told if part > 0]
    assert steps == sorted(steps)
    assert steps[-1] == 1


def test_large_models_and_those_that_vmap_cannot_run_stay_one_by_one(monkeypatch):
    stacks = sizes_of_stacks(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    kernels, objective, params, on, key = job(lambda: Centred(width=20_000))
    stacks.clear()
    kernels.descend(objective, params, on, key, HOWS["all"])
    assert stacks == []
    kernels, *_ = job(Sorted)
    assert not kernels.equal
