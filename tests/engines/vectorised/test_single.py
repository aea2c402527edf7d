"""Clients that run one by one give the loop's results: stepped in the backward pass, replayed, or as defined."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from corymb.core.objective import Draws, Examples
from corymb.engines.vectorised.kernels import Kernels, one_by_one
from corymb.engines.vectorised.kernels.steps import gradients
from corymb.engines.vectorised.traits import traits_of
from corymb.keys import fold, root
from corymb.local import Descent, descent
from corymb.local.reference import descend_one
from corymb.models import Network
from corymb.objectives import Classification
from corymb.trees import stack, take

N, M, CLASSES = 3, 6, 4
PLAIN, BATCHES = Descent(lr=0.1, steps=4), Descent(lr=0.1, epochs=2, batch=4)


class Tied(nn.Module):
    """One weight in two layers, and a bias that is used outside as well."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.twice, self.out = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.out(self.twice(self.twice(self.conv(x).flatten(1)).relu())) + self.out.bias


def layers(*parts: nn.Module):
    """A network of new layers like these, so that their first weights are those of the key they are asked for with."""

    def network():
        new = [deepcopy(part) for part in parts]
        for part in new:
            getattr(part, "reset_parameters", list)()
        return nn.Sequential(*new)

    return network


CONV = nn.Conv2d(1, 2, 3, padding=1)
NETWORKS = {
    "convolution first": (layers(CONV, nn.Tanh(), nn.Flatten(), nn.Linear(32, 5), nn.ReLU(), nn.Linear(5, CLASSES)), 4),
    "linear first": (layers(nn.Linear(4, 4), CONV, nn.Flatten(), nn.Linear(32, CLASSES, bias=False)), 3),
    "in place": (layers(CONV, nn.Flatten(), nn.Linear(32, 5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES)), 4),
    "dropout": (layers(CONV, nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, CLASSES)), 2),
    "tied": (Tied, 0),
}


def job(network):
    """An objective in double precision, models, and clients of unequal size, one of them with nothing."""
    objective = Classification(Network(network, dtype=torch.float64), CLASSES)
    draw = torch.Generator().manual_seed(3)
    weight = torch.rand(N, M, generator=draw, dtype=torch.float64) + 0.5
    weight[1, 4:], weight[2] = 0, 0
    x = torch.randn(N, M, 1, 4, 4, generator=draw, dtype=torch.float64)
    on = Examples(x, torch.randint(CLASSES, (N, M), generator=draw), weight)
    params = stack([objective.init(root(seed)) for seed in range(N)])
    traits = traits_of(objective, objective.init(root(0)), Examples(*(t[0, :1] for t in on)))
    return objective, params, on, fold(root(5), torch.arange(N)), Kernels(traits, "cpu", 1)


@pytest.fixture
def stepped(monkeypatch):
    """The layers that were stepped in place, for each call."""
    seen, descend = [], one_by_one.descend_single

    def noted(*given):
        if given[4]:
            seen.append(given[4])
        return descend(*given)

    monkeypatch.setattr(one_by_one, "descend_single", noted)
    monkeypatch.setattr(one_by_one, "WIDE_LAYER_BYTES", 0)
    return seen


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("how", [PLAIN, BATCHES], ids=["all", "batches"])
@pytest.mark.parametrize("name", NETWORKS)
def test_descents_give_the_loops_numbers(name, how, own, stepped):
    network, known = NETWORKS[name]
    objective, params, on, key, kernels = job(network)
    before = {n: p.clone() for n, p in params.items()}
    got, loss = kernels.descend(objective, params, on, key, how, own=own)
    assert [len(names) for names in stepped] == ([known] * N if known else [])
    for i, m in enumerate((M, 4, 0)):
        client = Examples(*(t[i, :m] for t in on))
        want = descend_one(objective, take(before, i), client, key[i], how)
        torch.testing.assert_close(loss[i], want.loss, rtol=0, atol=1e-12)
        for n in params:
            torch.testing.assert_close(got[n][i], want.params[n], rtol=0, atol=1e-12)
    if not own:
        assert all(torch.equal(params[n], before[n]) for n in params)


def test_narrow_layers_are_not_stepped_in_the_backward_pass(stepped, monkeypatch):
    objective, params, on, key, kernels = job(NETWORKS["convolution first"][0])
    monkeypatch.setattr(one_by_one, "WIDE_LAYER_BYTES", kernels.traits.largest_bytes + 1)
    kernels.descend(objective, params, on, key, PLAIN)
    assert stepped == []


@pytest.mark.parametrize(
    "how", [replace(PLAIN, momentum=0.5), replace(PLAIN, safe=True), replace(PLAIN, weight_decay=0.1)]
)
def test_other_steps_are_taken_as_they_are_defined(how, stepped):
    objective, params, on, key, kernels = job(NETWORKS["convolution first"][0])
    kernels.descend(objective, params, on, key, how)
    assert stepped == []


HOWS = {
    "all": PLAIN,
    "batches": BATCHES,
    "more steps than a pass": Descent(lr=0.1, steps=5, batch=4),
    "momentum": replace(BATCHES, momentum=0.5),
    "adam": replace(BATCHES, optimiser="adam", lr=0.01),
    "safe": replace(BATCHES, safe=True),
    "proximal": replace(PLAIN, proximal=0.3, weight_decay=0.1, clip_gradient=0.5),
}


@pytest.mark.parametrize("held", [0, descent.MAX_DRAWN_ROWS], ids=["drawn alone", "drawn together"])
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("how", HOWS)
def test_a_client_by_itself_gets_the_loops_numbers(how, alike, held, stepped, monkeypatch):
    monkeypatch.setattr(descent, "MAX_DRAWN_ROWS", held)
    monkeypatch.setattr(one_by_one, "WIDE_LAYER_BYTES", 2**62)
    objective, params, on, key, kernels = job(NETWORKS["dropout"][0])
    on = on._replace(weight=(on.weight > 0).double()) if alike else on
    got, loss = kernels.descend(objective, params, on, key, HOWS[how])
    assert stepped == []
    for i, m in enumerate((M, 4, 0)):
        client = Examples(*(t[i, :m] for t in on))
        want = descend_one(objective, take(params, i), client, key[i], HOWS[how])
        torch.testing.assert_close(loss[i], want.loss, rtol=0, atol=1e-12)
        for n in params:
            torch.testing.assert_close(got[n][i], want.params[n], rtol=0, atol=1e-12)


def test_no_layer_is_stepped_in_its_backward_where_the_serial_kernel_is_asked_for(stepped):
    objective, params, on, key, kernels = job(NETWORKS["convolution first"][0])
    replace(kernels, only="serial").descend(objective, params, on, key, PLAIN)
    assert stepped == []


class Chosen(nn.Module):
    """Means over the features above zero: by a selection whose size depends on values, or by reading values."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.out, self.how = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(16, CLASSES), how

    def forward(self, x):
        x = self.conv(x).flatten(1)
        if self.how == "shape":
            rows, columns = (x > 0).nonzero(as_tuple=True)
            x = torch.zeros_like(x).index_put((rows, columns), x[rows, columns])
        elif self.how == "list":
            x = x * len([value for value in x[:, 0].tolist() if value > 0])
        elif self.how == "branch":
            x = x if float(x.detach().sum()) > 0 else -2 * x
        return self.out(x)


@pytest.mark.parametrize(("how", "replayed"), [("plain", True), ("shape", False), ("list", False), ("branch", False)])
@pytest.mark.parametrize("wide", [0, 2**62], ids=["stepped in place", "by gradients"])
def test_steps_are_replayed_unless_they_depend_on_values(how, replayed, wide, stepped, monkeypatch):
    monkeypatch.setattr(one_by_one, "WIDE_LAYER_BYTES", wide)
    objective, params, on, key, kernels = job(lambda: Chosen(how))
    descent = Descent(lr=0.1, steps=9, batch=2)
    for seed in range(2):  # the second time on tapes of the first
        drawn = on._replace(x=torch.randn(on.x.shape, generator=torch.Generator().manual_seed(seed)).double())
        got, _ = kernels.descend(objective, params, drawn, key, descent)
        for i, m in enumerate((M, 4, 0)):
            client = Examples(*(t[i, :m] for t in drawn))
            want = descend_one(objective, take(params, i), client, key[i], descent)
            for n in params:
                torch.testing.assert_close(got[n][i], want.params[n], rtol=0, atol=1e-12)
    assert any(player.trusted for player in kernels.tapes.kept.values()) == replayed


@pytest.mark.parametrize("kernel", ["foreach", "fused"])
def test_gradients_lie_in_memory_as_the_models_do(kernel):
    """Whoever reads them row by row would copy them otherwise: all that measures and adds up replies."""
    network = layers(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    objective, params, on, key, kernels = job(network)
    got = replace(kernels, only=kernel).gradient(objective, params, on, key)
    assert all(got[name].is_contiguous() for name in params)
    want, _ = gradients(objective, params, on, Draws(key))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
