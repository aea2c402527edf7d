"""Clients of very different sizes take their steps in one stack, which is cut to those that have not finished."""

from dataclasses import replace

import pytest
import torch

from corymb.core.objective import Examples
from corymb.engines.vectorised.kernels import Kernels, groups, together
from corymb.engines.vectorised.kernels.steps import Steps
from corymb.engines.vectorised.traits import traits_of
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.local.reference import descend_one
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.trees import take
from tests.tiny import farthest

SIZES = (1, 2, 2, 3, 3, 3, 4, 9, 40)
EPOCHS = Descent(lr=0.1, epochs=2, batch=2)
HOWS = {
    "plain": EPOCHS,
    "momentum": replace(EPOCHS, momentum=0.9, weight_decay=0.01),
    "adam": replace(EPOCHS, lr=0.01, optimiser="adam"),
    "proximal": replace(EPOCHS, proximal=0.5, clip_gradient=0.5),
    "safe": replace(EPOCHS, lr=9.0, safe=True, momentum=0.5),
    "safe, plain": replace(EPOCHS, lr=9.0, safe=True),
}


def job(sizes=SIZES):
    objective = Classification(Network(mlp(4, [6], 3), dtype=torch.float64), 3)
    draw, n, m = torch.Generator().manual_seed(0), len(sizes), max(sizes)
    on = Examples(
        torch.randn(n, m, 4, generator=draw, dtype=torch.float64),
        torch.randint(3, (n, m), generator=draw),
        (torch.arange(m) < torch.tensor(sizes)[:, None]).double(),
    )
    params = {name: value.expand(n, *value.shape).clone() for name, value in objective.init(root(0)).items()}
    kernels = Kernels(traits_of(objective, take(params, 0), take(take(on, 0), slice(0, 1))), "cpu", 1)
    return kernels, objective, params, on, fold(root(1), torch.arange(n))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("few", [9, 4], ids=["at once", "in groups"])
@pytest.mark.parametrize("name", HOWS)
def test_clients_of_very_different_sizes_have_the_reference_models(name, few, own, monkeypatch):
    kernels, objective, params, on, key = job()
    how, kernel = HOWS[name], "fused" if HOWS[name].plain else "foreach"
    monkeypatch.setattr(groups, "CACHE_BYTES", few * kernels.traits.parameter_bytes)
    want = [
        descend_one(objective, {n: p[i] for n, p in params.items()}, Examples(*(t[i, :m] for t in on)), key[i], how)
        for i, m in enumerate(SIZES)
    ]
    got, loss = replace(kernels, only=kernel).descend(objective, params, on, key, how, own=own)
    for i, one in enumerate(want):
        assert farthest(take(got, i), one.params) < 1e-9
        assert abs(float(loss[i] - one.loss)) < 1e-9


@pytest.mark.parametrize("name", HOWS)
def test_finished_clients_are_hardly_computed(name, monkeypatch):
    kernels, objective, params, on, key = job()
    taken = list[int]()

    def counting(method):
        def counted(self, objective, params, *rest, **options):
            taken.append(len(next(iter(params.values()))))
            return method(self, objective, params, *rest, **options)

        return counted

    for method in ("fused", "slopes"):
        monkeypatch.setattr(Steps, method, counting(getattr(Steps, method)))
    kernels.descend(objective, params, on, key, HOWS[name])
    wanted = 2 * sum(-(-m // 2) for m in SIZES)
    assert len(taken) == 2 * 20
    assert wanted <= sum(taken) <= 1.5 * wanted


def test_a_single_client_in_batches_takes_the_steps_of_one_model(monkeypatch):
    kernels, objective, params, on, key = job((7,))
    want, want_loss = replace(kernels, only="foreach").descend(objective, params, on, key, EPOCHS)
    monkeypatch.setattr(together, "Stepper", None)
    monkeypatch.setattr(Steps, "fused", None)
    got, loss = kernels.descend(objective, params, on, key, EPOCHS)
    assert farthest(got, want) < 1e-9
    assert farthest(loss, want_loss) < 1e-9
