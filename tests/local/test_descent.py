"""Descents of models with a parameter that is a single number, without any axis."""

import pytest
import torch
from torch import nn

import corymb
from corymb.local import Descent
from tests.tiny import farthest


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.log_scale = nn.Linear(4, 3), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.layer(x) * self.log_scale.exp()


@pytest.mark.parametrize("kernel", ["serial", "foreach"])
@pytest.mark.parametrize("options", [{"safe": True}, {"clip_gradient": 0.5}, {"optimiser": "adam"}, {"momentum": 0.5}])
def test_a_parameter_without_axes_descends_as_any_other(options, kernel):
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    data = corymb.FederatedDataset.from_arrays(x, torch.arange(30) % 3, torch.arange(30) // 10, test=0)
    algorithm = corymb.FedAvg(rounds=2, local=Descent(lr=0.05, steps=3, batch=4, **options))
    how = {"precision": "float64"}
    got = corymb.fit(algorithm, data, Tempered, kernel=kernel, **how)
    want = corymb.fit(algorithm, data, Tempered, engine="loop", **how)
    assert farthest(got.models, want.models) < 1e-9
    assert float(got.models["log_scale"].abs().max()) > 0
