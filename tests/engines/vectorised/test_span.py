"""Steps of the first layer in the span of the examples: the loop's results, and only if it pays."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from corymb.core.objective import Examples
from corymb.engines.vectorised.graphs import MIN_STEPS
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.span import Span, pays
from corymb.engines.vectorised.traits import Entry, traits_of
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.local.reference import descend_one
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.trees import stack, take

N, M, D, CLASSES = 3, 6, 40, 5
PLAIN = Descent(lr=0.1, steps=7)
WIDE = 120  # D × WIDE weights are enough for it to pay


def layers(*parts: nn.Module):
    return lambda: nn.Sequential(*parts)


NETWORKS = {
    "linear": layers(nn.Linear(900, CLASSES)),
    "without bias": layers(nn.Linear(900, CLASSES, bias=False)),
    "one hidden layer": mlp(D, [WIDE], CLASSES),
    "two hidden layers": mlp(D, [WIDE, 30], CLASSES),
    "in place": layers(nn.Linear(D, WIDE), nn.ReLU(inplace=True), nn.Linear(WIDE, CLASSES, bias=False)),
    "input kept as a picture": layers(nn.Flatten(), nn.Linear(900, CLASSES)),
}


def job(objective, shape=(D,), dtype=torch.float64):
    """Clients of unequal size with weights of their own, one of them with nothing; models from two of them on."""
    draw = torch.Generator().manual_seed(3)
    weight = torch.rand(N, M, generator=draw, dtype=dtype) + 0.5
    weight[1, 4:], weight[2] = 0, 0
    x = torch.randn(N, M, *shape, generator=draw, dtype=dtype)
    on = Examples(x, torch.randint(CLASSES, (N, M), generator=draw), weight)
    params = stack([objective.init(root(seed)) for seed in range(N)])
    return params, on, fold(root(5), torch.arange(N))


def kernels_for(objective, on: Examples, device: str = "cpu") -> Kernels:
    traits = traits_of(objective, objective.init(root(0)), Examples(*(t[0, :1] for t in on)))
    return Kernels(traits, device, 1, only="fused")


@pytest.fixture
def taken(monkeypatch):
    """The spans that descents used."""
    begun, begin = [], Span.begin
    monkeypatch.setattr(Span, "begin", lambda span, *given: begun.append(span) or begin(span, *given))
    return begun


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("how", [PLAIN, Descent(lr=5.0, epochs=5, safe=True)], ids=["plain", "safe"])
def test_descents_are_those_of_the_loop(name, how, taken):
    objective = Classification(Network(NETWORKS[name]), CLASSES).to(torch.device("cpu"), torch.float64)
    shape = (30, 30) if "picture" in name else (900,) if name in ("linear", "without bias") else (D,)
    params, on, key = job(objective, shape)
    kernels, before = kernels_for(objective, on), {part: value.clone() for part, value in params.items()}
    for own in (False, False, True):  # recorded, played, and into the models that it is given
        got, loss = kernels.descend(objective, params, on, key, how, own=own)
        assert own or all(torch.equal(params[part], before[part]) for part in params)
        for i, m in enumerate((M, 4, 0)):
            end = descend_one(objective, take(before, i), Examples(*(t[i, :m] for t in on)), key[i], how)
            assert torch.allclose(loss[i], end.loss, rtol=1e-12)
            for part in end.params:
                assert torch.allclose(got[part][i], end.params[part], rtol=1e-11, atol=1e-13)
    assert len(taken) == 3


def test_in_single_precision_it_is_as_near_to_the_truth_as_the_plain_form(taken):
    objective = Classification(Network(layers(nn.Linear(D, WIDE), nn.Tanh(), nn.Linear(WIDE, CLASSES))), CLASSES)
    params, on, key = job(objective, dtype=torch.float32)
    kernels = kernels_for(objective, on)
    plain = replace(kernels, traits=kernels.traits._replace(entry=None))
    got, want = (one.descend(objective, params, on, key, PLAIN)[0] for one in (kernels, plain))
    assert len(taken) == 1
    assert all(torch.allclose(got[part], want[part], rtol=1e-5, atol=1e-6) for part in want)


def test_a_client_has_the_same_numbers_whatever_the_stack():
    objective = Classification(Network(mlp(D, [WIDE], CLASSES)), CLASSES).to(torch.device("cpu"), torch.float64)
    params, on, key = job(objective)
    kernels = kernels_for(objective, on)
    together, _ = kernels.descend(objective, params, on, key, PLAIN)
    alone, _ = kernels.descend(objective, take(params, slice(1, 2)), take(on, slice(1, 2)), key[1:2], PLAIN)
    assert all(torch.allclose(alone[part][0], together[part][1], rtol=1e-11, atol=1e-13) for part in alone)


def test_captured_steps_use_the_span_too(taken):
    objective, how = Classification(Network(mlp(D, [WIDE], CLASSES)), CLASSES), replace(PLAIN, steps=MIN_STEPS)
    params, on, key = job(objective, dtype=torch.float32)
    kernels, plain = (kernels_for(objective, on, device) for device in ("cuda", "cpu"))
    for _ in range(2):  # the second one is captured; there is no GPU: the work itself
        got, loss = kernels.descend(objective, params, on, key, how)
        want, want_loss = plain.descend(objective, params, on, key, how)
        assert torch.allclose(loss, want_loss, rtol=1e-6)
        assert all(torch.allclose(got[part], want[part], rtol=1e-4, atol=1e-6) for part in want)
    assert [seen.player is not None for seen in kernels.graphs.seen.values()] == [True]
    assert len(taken) == 4


class Beside(nn.Module):
    """Reads the examples twice: as they are, and in halves."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(D, WIDE), nn.Linear(D, WIDE)
        self.out = nn.Linear(WIDE, CLASSES)

    def forward(self, x):
        return self.out(torch.relu(self.one(x)) + self.other(x / 2) + x.mean(-1, keepdim=True))


def test_other_layers_that_read_the_examples_still_do(taken):
    objective = Classification(Network(Beside), CLASSES).to(torch.device("cpu"), torch.float64)
    params, on, key = job(objective)
    kernels = kernels_for(objective, on)
    assert kernels.traits.entry == Entry("one.weight", "one.bias")
    got, _ = kernels.descend(objective, params, on, key, PLAIN)
    end = descend_one(objective, take(params, 0), take(on, 0), key[0], PLAIN)
    assert all(torch.allclose(got[part][0], end.params[part], rtol=1e-11, atol=1e-13) for part in got)
    assert len(taken) == 1


NEVER = {
    "batches": (mlp(D, [WIDE], CLASSES), replace(PLAIN, batch=M)),
    "momentum": (mlp(D, [WIDE], CLASSES), replace(PLAIN, momentum=0.5)),
    "one step": (mlp(D, [WIDE], CLASSES), replace(PLAIN, steps=1)),
    "few weights": (mlp(D, [CLASSES], CLASSES), PLAIN),
    "dropout of features": (layers(nn.Dropout(0.5), nn.Linear(D, WIDE), nn.Linear(WIDE, CLASSES)), PLAIN),
    "another reading": (layers(nn.Tanh(), nn.Linear(D, WIDE), nn.Linear(WIDE, CLASSES)), PLAIN),
    "examples written into": (layers(nn.ReLU(inplace=True), nn.Linear(D, WIDE), nn.Linear(WIDE, CLASSES)), PLAIN),
}


@pytest.mark.parametrize("name", NEVER)
def test_otherwise_the_weights_themselves_are_stepped(name, taken):
    network, how = NEVER[name]
    objective = Classification(Network(network), CLASSES)
    params, on, key = job(objective, dtype=torch.float32)
    kernels_for(objective, on).descend(objective, params, on, key, how)
    assert not taken


def test_it_pays_where_examples_are_few_beside_features_and_steps_many():
    assert pays(50, 784, 200, 10)
    assert not pays(50, 784, 200, 1)
    assert not pays(2000, 784, 200, 10)
    assert not pays(500, 64, 100, 10)
