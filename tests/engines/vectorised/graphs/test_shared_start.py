"""The first step of clients that all start from one model: the step of plain vmap, and used only where it applies."""

import logging

import pytest
import torch
from torch import nn

from corymb.core.objective import Draws, Examples
from corymb.engines.placement import Placement
from corymb.engines.vectorised import graphs
from corymb.engines.vectorised.graphs import MIN_STEPS, MIXED_TOLERANCE, Graphs, start_from_one
from corymb.engines.vectorised.graphs.shared_start import from_one_model
from corymb.engines.vectorised.graphs.variants import at_once
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.kernels.steps import gradients
from corymb.keys import root
from corymb.local import Descent
from corymb.trees import align_leading, take
from tests.engines.vectorised.graphs.test_variants import RATES, draws, on_gpu, plain
from tests.engines.vectorised.test_single import CLASSES, NETWORKS, M, N, job, layers

MORE = {
    "attention": layers(
        nn.Flatten(1, 2),
        nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=True),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    ),
    "norms": layers(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, CLASSES)),
    "frozen": layers(nn.Flatten(), nn.Linear(16, 6), nn.Sigmoid(), nn.Linear(6, CLASSES).requires_grad_(False)),
}


class Reader(nn.Module):
    """Codes looked up, one of which is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 3, padding_idx=0), nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.out(self.embed(x.flatten(1).abs().long().clamp(max=4)).mean(1))


NAMED = {name: network for name, (network, _) in NETWORKS.items()} | MORE | {"embedding": Reader}


def from_one(params):
    """The first client's model, as all clients' start."""
    return {name: value[:1].expand_as(value) for name, value in params.items()}


@pytest.mark.parametrize("name", NAMED)
def test_it_is_the_step_of_plain_vmap(name):
    objective, params, on, key, kernels = job(NAMED[name])
    start = from_one(params)
    want = {n: p.clone() for n, p in start.items()}
    slopes, _ = gradients(objective, want, on, draws(key), traits=kernels.traits)
    losses = plain(objective)(want, on, draws(key), RATES) if name != "embedding" else None
    for steps in (True, False):
        got = {n: torch.full_like(p, float("nan"), memory_format=torch.contiguous_format) for n, p in start.items()}
        loss, *found = from_one_model(objective, kernels.traits, steps=steps)(
            got, take(start, 0), on, draws(key), RATES
        )
        if steps:
            ends = {n: start[n] - align_leading(RATES, slope) * slope for n, slope in slopes.items()}
            torch.testing.assert_close(got, ends, rtol=0, atol=1e-12)
        else:
            torch.testing.assert_close(found, list(slopes.values()), rtol=0, atol=1e-12)
            torch.testing.assert_close(got, {n: p.clone() for n, p in start.items()}, rtol=0, atol=0)
        if losses is not None:
            torch.testing.assert_close([loss], losses, rtol=0, atol=1e-12)


def test_gradients_of_linear_layers_lie_in_memory_as_their_weights_do():
    objective, params, on, key, kernels = job(NETWORKS["convolution first"][0])
    start = from_one(params)
    got = {n: p.clone() for n, p in start.items()}
    _, *found = from_one_model(objective, kernels.traits, steps=False)(got, take(start, 0), on, draws(key), RATES)
    lie = {n: slope.is_contiguous() for n, slope in zip(params, found, strict=True)}
    assert kernels.traits.layers
    assert all(lie[n] for n in kernels.traits.layers)


def test_in_a_mixed_precision_products_are_low_and_the_step_is_not():
    objective, params, on, key, kernels = job(NETWORKS["convolution first"][0])
    objective = objective.to("cpu", torch.float32)
    start = from_one({n: p.float() for n, p in params.items()})
    on, rates = Examples(on.x.float(), on.y, on.weight.float()), torch.full((N,), 1e-4)
    got, want = ({n: p.clone() for n, p in start.items()} for _ in range(2))
    with Placement(mixed=True).computing():
        from_one_model(objective, kernels.traits, steps=True)(got, take(start, 0), on, draws(key), rates)
    plain(objective)(want, on, draws(key), rates)
    for name, value in want.items():
        step, apart = (value - start[name]).norm(), (got[name] - value).norm()
        assert 1e-5 * step < apart < MIXED_TOLERANCE * step


@pytest.fixture
def always_faster(monkeypatch):
    """Every captured step takes less time than the one before it."""
    clock = iter(range(10**6, 0, -1))
    monkeypatch.setattr(graphs, "_seconds", lambda *_: float(next(clock)))


@pytest.mark.parametrize(
    "how",
    [
        Descent(lr=0.1, steps=MIN_STEPS),
        Descent(lr=0.1, steps=MIN_STEPS, batch=3, decay=0.5),
        Descent(lr=0.1, steps=MIN_STEPS, safe=True),
        Descent(lr=0.05, steps=MIN_STEPS, momentum=0.9, weight_decay=0.01),
        Descent(lr=0.01, epochs=MIN_STEPS, batch=3, optimiser="adam"),
    ],
)
@pytest.mark.parametrize("name", ["convolution first", "dropout", "attention", "embedding"])
def test_descents_from_one_model_and_from_several_are_those_of_the_plain_kernel(name, how, always_faster):
    objective, params, on, key, _ = job(NAMED[name])
    kernels = on_gpu(objective, params, on)
    begun = []
    for t, start in enumerate((from_one(params), from_one(params), params, from_one(params))):
        got, loss = kernels.descend(objective, start, on, key, how.at(t))
        want, before = Kernels(kernels.traits, "cpu", 1, only="serial").descend(objective, start, on, key, how.at(t))
        torch.testing.assert_close((got, loss), (want, before), rtol=0, atol=1e-8)  # Adam divides by tiny numbers
        begun += [player.shared is not None for seen in kernels.graphs.seen.values() if (player := seen.player)]
    assert begun[-1]


def test_it_is_captured_for_clients_that_start_from_one_model_and_only_once(always_faster, monkeypatch):
    objective, params, on, key, _ = job(NETWORKS["convolution first"][0])
    kernels, how, tried = on_gpu(objective, params, on), Descent(lr=0.1, steps=MIN_STEPS), []
    capture = graphs._capture_shared_start
    monkeypatch.setattr(graphs, "_capture_shared_start", lambda *given: (tried.append(1), capture(*given))[1])
    for start in (params, params, params):
        kernels.descend(objective, start, on, key, how)
    assert tried == []
    for _ in range(3):
        kernels.descend(objective, from_one(params), on, key, how)
    assert tried == [1]


def found(objective, params, on, key, kernels, shared):
    """The captured step for models like these, with a first step from one model if `shared` is used."""
    all_graphs, of, given = Graphs(), (objective, "foreach", True), (params, on, draws(key), RATES)
    for _ in range(MIN_STEPS):
        all_graphs.count(of, *given[:3])
    variants = {"vmap": at_once(objective, kernels.traits, steps=True)}
    return all_graphs.find(of, lambda: variants, plain(objective), *given, shared)


def test_a_first_step_is_used_only_if_it_is_right_and_faster(caplog, monkeypatch):
    objective, params, on, key, kernels = job(NETWORKS["convolution first"][0])
    right, start = from_one_model(objective, kernels.traits, steps=True), from_one(params)

    def wrong(own, one, here, drawn, rates):
        return right(own, one, here, drawn, rates * torch.tensor([1, 1 + 1e-6, 1]))

    def broken(own, one, here, drawn, rates):
        raise ValueError("no kernel")

    monkeypatch.setattr(graphs, "_seconds", lambda *_: 1.0)
    assert found(objective, start, on, key, kernels, right).shared is None  # not faster
    clock = iter(range(100, 0, -1))
    monkeypatch.setattr(graphs, "_seconds", lambda *_: float(next(clock)))
    with caplog.at_level(logging.INFO):
        assert found(objective, start, on, key, kernels, right).shared is not None
        assert found(objective, params, on, key, kernels, right).shared is None  # models differ
        assert found(objective, start, on, key, kernels, wrong).shared is None
        assert any("first step from one model is not used" in line for line in caplog.messages)
        assert found(objective, start, on, key, kernels, broken).shared is None
        assert "no kernel" in caplog.messages[-1]


def test_one_model_in_memory():
    one = {"a": torch.ones(1, 2).expand(3, 2), "b": torch.ones(1).expand(3)}
    assert start_from_one(one)
    assert not start_from_one({**one, "b": torch.ones(3)})
    assert not start_from_one({"a": torch.ones(1, 2)})  # a single client has nothing to share


def test_draws_are_those_of_each_client():
    objective, params, on, key, kernels = job(NETWORKS["dropout"][0])
    start = from_one(params)
    same = Examples(*(t[:1].expand_as(t) for t in on))  # the same examples everywhere, so only draws differ
    got = {n: p.clone() for n, p in start.items()}
    step = from_one_model(objective, kernels.traits, steps=True)
    losses = step(got, take(start, 0), same, Draws(key, 0, torch.arange(M).expand(N, M)), RATES)[0]
    assert len(losses.unique()) == N
    again = step(got, take(start, 0), same, Draws(root(9).expand(N), 0, torch.arange(M).expand(N, M)), RATES)[0]
    assert len(again.unique()) == 1
