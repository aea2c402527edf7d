"""IFCA's network for CIFAR-10 does what TensorFlow's layers do."""

import torch
from torch import nn

from corymb.keys import root
from corymb.models import Network, ifca_cifar
from corymb.models.ifca_cifar import CentredStandardised, LocalResponse


def test_local_responses_are_those_of_torch():
    x = torch.randn(2, 64, 5, 5, dtype=torch.float64)
    assert torch.allclose(LocalResponse()(x), nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)(x), rtol=1e-10)


def test_pictures_are_cut_to_their_middle_and_standardised():
    x = torch.rand(3, 3, 32, 32)
    seen = CentredStandardised()(x)
    assert seen.shape == (3, 3, 24, 24)
    assert torch.allclose(seen.mean((1, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(seen.std((1, 2, 3)), torch.ones(3), atol=1e-2)
    assert torch.allclose(CentredStandardised()(x[..., 4:28, 4:28]), seen)
    assert CentredStandardised()(torch.full((1, 3, 24, 24), 0.7)).abs().max() < 1e-4  # one colour: no division by 0


def test_crops_and_whole_pictures_go_through():
    network = Network(ifca_cifar())
    params = network.init(root(0))
    assert network(params, torch.rand(2, 3, 32, 32)).shape == (2, 10)
    assert torch.allclose(params["5.bias"], torch.tensor(0.1))
    assert params["10.weight"].abs().max() <= 0.08 + 1e-6
