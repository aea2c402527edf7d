"""The captured implementations of a step give the results of plain vmap; one that differs is not used."""

import logging

import pytest
import torch
from torch import nn

from corymb.core.objective import Draws, Examples
from corymb.engines.placement import Placement
from corymb.engines.vectorised.graphs import MIN_STEPS, MIXED_TOLERANCE, Graphs
from corymb.engines.vectorised.graphs.variants import at_once, by_streams
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.kernels.steps import gradients
from corymb.engines.vectorised.traits import traits_of
from corymb.local import Descent
from corymb.trees import align_leading, take
from tests.engines.vectorised.test_single import NETWORKS, M, N, job

RATES = torch.tensor([0.1, 0.02, 0.5], dtype=torch.float64)


def variants(objective, traits, *, steps):
    device = torch.device("cpu")
    return {
        "vmap": at_once(objective, traits, steps=steps),
        "streams": by_streams(objective, device, traits, steps=steps),
    }


def draws(key, step=0):
    return Draws(key, step, torch.arange(M).expand(N, M))


def plain(objective):
    def step(params, on, drawn, rates):
        slopes, loss = gradients(objective, params, on, drawn)
        for name, slope in slopes.items():
            params[name] -= align_leading(rates, slope) * slope
        return [loss]

    return step


@pytest.mark.parametrize("variant", ["vmap", "streams"])
@pytest.mark.parametrize("name", NETWORKS)
def test_steps_and_gradients_are_those_of_plain_vmap(name, variant):
    objective, params, on, key, kernels = job(NETWORKS[name][0])
    got, want = ({n: p.clone() for n, p in params.items()} for _ in range(2))
    step = variants(objective, kernels.traits, steps=True)[variant]
    for number in range(3):
        slopes, _ = gradients(objective, want, on, draws(key, number))
        found = variants(objective, kernels.traits, steps=False)[variant](want, on, draws(key, number), RATES)
        lie = {n: slope.stride() == want[n].stride() for n, slope in zip(want, found[1:], strict=True)}
        assert all(lie[n] for n in kernels.traits.layers)
        torch.testing.assert_close(found[1:], list(slopes.values()), rtol=0, atol=1e-12)
        losses = plain(objective)(want, on, draws(key, number), RATES)
        torch.testing.assert_close(step(got, on, draws(key, number), RATES), losses, rtol=0, atol=1e-12)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    assert all((got[n][:2] != params[n][:2]).any() for n in params)  # the third client has no examples


@pytest.mark.parametrize("variant", ["vmap", "streams"])
def test_in_a_mixed_precision_products_are_low_and_steps_are_not(variant):
    objective, params, on, key, kernels = job(NETWORKS["convolution first"][0])
    objective = objective.to("cpu", torch.float32)
    params, on = {n: p.float() for n, p in params.items()}, Examples(on.x.float(), on.y, on.weight.float())
    rates = torch.full((N,), 1e-4)  # such steps are lost where weights have eight bits
    got, want = ({n: p.clone() for n, p in params.items()} for _ in range(2))
    with Placement(mixed=True).computing():
        for number in range(3):
            variants(objective, kernels.traits, steps=True)[variant](got, on, draws(key, number), rates)
    for number in range(3):
        plain(objective)(want, on, draws(key, number), rates)
    for name, value in want.items():
        step, apart = (value - params[name]).norm(), (got[name] - value).norm()
        assert 1e-5 * step < apart < MIXED_TOLERANCE * step  # of a step that is lost, or taken twice, all of it


def on_gpu(objective, params, on):
    return Kernels(traits_of(objective, take(params, 0), Examples(*(t[0, :1] for t in on))), "cuda", 1)


@pytest.mark.parametrize(
    "how", [Descent(lr=0.1, steps=MIN_STEPS, decay=0.5), Descent(lr=0.1, steps=MIN_STEPS, safe=True)]
)
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_plain_descents_of_every_step_size_have_one_graph(kind, how):
    network = lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 4))  # noqa: E731
    objective, params, on, key, _ = job(network if kind == "linear" else NETWORKS["convolution first"][0])
    kernels = on_gpu(objective, params, on)
    for t in range(3):
        got, loss = kernels.descend(objective, params, on, key, how.at(t))
        want, before = Kernels(kernels.traits, "cpu", 1, only="serial").descend(objective, params, on, key, how.at(t))
        torch.testing.assert_close((got, loss), (want, before), rtol=0, atol=1e-12)
    assert [seen.player is not None for seen in kernels.graphs.seen.values()] == [True]


def test_only_variants_that_give_the_plain_step_are_used(caplog):
    objective, params, on, key, kernels = job(NETWORKS["convolution first"][0])
    params = {n: p.clone() for n, p in params.items()}
    params["3.weight"][0, 0] = float("nan")  # one client diverged
    right = variants(objective, kernels.traits, steps=True)["vmap"]

    def wrong(own, here, drawn, rates):
        return right(own, here, drawn, rates * torch.tensor([1, 1 + 1e-6, 1]))

    def found(**variants):
        graphs, of, given = Graphs(), (objective, "foreach", True), (params, on, draws(key), RATES)
        for _ in range(MIN_STEPS):
            graphs.count(of, *given[:3])
        return graphs.find(of, lambda: variants, plain(objective), *given)

    with caplog.at_level(logging.WARNING):
        assert found(right=right).variant == "right"
        assert caplog.messages == []
        assert found(wrong=wrong) is None
        assert "the captured step by wrong" in caplog.messages[0]
        assert "is not used" in caplog.messages[0]
        assert found(wrong=wrong, right=right).variant == "right"
