"""ResNet9 with group normalisation."""

import torch

from corymb.keys import root
from corymb.models import Network, resnet9


def test_an_example_is_classified_alike_alone_and_in_a_batch():
    network = Network(resnet9(width=8, outputs=5))
    params, x = network.init(root(0)), torch.rand(3, 3, 16, 16)
    together = network(params, x)
    assert together.shape == (3, 5)
    assert torch.allclose(together[1:2], network(params, x[1:2]), atol=1e-5)


def test_filters_count_by_their_direction():
    network = Network(resnet9(width=8, outputs=5))
    params, x = network.init(root(0)), torch.rand(3, 3, 16, 16)
    longer = {name: value * 10 if value.dim() == 4 else value for name, value in params.items()}
    assert torch.allclose(network(params, x), network(longer, x), atol=1e-2)
