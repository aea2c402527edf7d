"""Client by client, large linear layers are stepped in their backward: the loop's numbers, without their gradients."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from corymb.core.objective import Examples
from corymb.engines.vectorised import kernels as of_kernels
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.traits import HEAVY, watch
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.local.reference import descend_one
from corymb.models import Network
from corymb.objectives import Classification
from corymb.trees import stack, take

WIDE = HEAVY // 64


class Pictures(nn.Module):
    """A convolution, a large layer after it, and one beside it that no gradient of the convolution goes through."""

    def __init__(self, *, shared: bool = False) -> None:
        super().__init__()
        self.conv, self.large = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, WIDE)
        self.beside, self.out = nn.Linear(64, WIDE, bias=False), nn.Linear(WIDE, 3)
        self.shared = shared

    def forward(self, x):
        wide = self.large(torch.tanh(self.conv(x)).flatten(1)) + self.beside(x.flatten(1))
        wide = wide + self.large(x.flatten(1)) if self.shared else wide
        return self.out(torch.tanh(wide))


def job(objective):
    draw = torch.Generator().manual_seed(1)
    weight = torch.ones(2, 5, dtype=torch.float64)
    weight[1, 3:] = 0
    x = torch.randn(2, 5, 1, 8, 8, generator=draw, dtype=torch.float64)
    on = Examples(x, torch.randint(3, (2, 5), generator=draw), weight)
    traits = watch(objective, objective.init(root(0)), Examples(*(t[0, :1] for t in on)))
    return stack([objective.init(root(i)) for i in range(2)]), on, fold(root(2), torch.arange(2)), traits


PLAIN = Descent(lr=0.1, steps=3, batch=2)
HOWS = {"batches": PLAIN, "safe": replace(PLAIN, lr=9.0, safe=True), "momentum": replace(PLAIN, momentum=0.5)}


@pytest.mark.parametrize("name", HOWS)
def test_a_network_of_pictures_descends_as_in_the_loop(name, monkeypatch):
    objective = Classification(Network(Pictures), 3).to(torch.device("cpu"), torch.float64)
    params, on, key, traits = job(objective)
    assert traits.heavy == {"large.weight", "large.bias", "beside.weight"}
    steps, heavy_step = [], of_kernels.heavy_step
    monkeypatch.setattr(of_kernels, "heavy_step", lambda *a, **k: steps.append(1) or heavy_step(*a, **k))
    got, loss = Kernels(traits, "cpu", 1).descend(objective, params, on, key, HOWS[name])
    assert len(steps) == (0 if name == "momentum" else 6)
    for i, m in enumerate((5, 3)):
        end = descend_one(objective, take(params, i), Examples(*(t[i, :m] for t in on)), key[i], HOWS[name])
        assert torch.allclose(loss[i], end.loss, rtol=1e-12)
        assert all(torch.allclose(got[part][i], end.params[part], rtol=1e-11, atol=1e-13) for part in got)


def test_a_layer_that_is_used_twice_is_stepped_by_its_gradient():
    *_, traits = job(Classification(Network(lambda: Pictures(shared=True)), 3).to(torch.device("cpu"), torch.float64))
    assert traits.heavy == {"beside.weight"}
