"""Generator, critic and encoder: shapes, ranges, and that no example depends on another."""

import pytest
import torch

from corymb.keys import normal, root, uniform
from corymb.models.adversarial import CODES, Convolutional, Dense
from corymb.settings import InvalidInput

NETWORKS = {
    "vectors": Dense(5, hidden=8, noise=3),
    "pictures": Dense(64, hidden=8, bounded=True),
    "convolutions": Convolutional(1, 8, width=2, hidden=8, noise=4),
    "colours": Convolutional(3, 8, width=2, hidden=8, noise=4),
}
SIZE = {"vectors": 5, "pictures": 64, "convolutions": 64, "colours": 192}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_takes_what_the_others_make_one_example_at_a_time(name):
    networks = NETWORKS[name]
    params = networks.init(root(1))
    noise, cluster = normal(root(2), (6, networks.noise)), torch.zeros(6, dtype=torch.int64)
    made = networks.generate(params, noise, cluster)
    found = networks.encode(params, made)
    assert made.shape == (6, SIZE[name])
    assert networks.judge(params, made).shape == (6,)
    assert found.noise.shape == noise.shape
    assert found.logits.shape == (6, 1)
    if name != "vectors":
        assert 0 <= float(made.min()) <= float(made.max()) <= 1
    alone = torch.cat([networks.generate(params, noise[[i]], cluster[[i]]) for i in range(6)])
    assert torch.allclose(alone, made, atol=1e-6)
    assert torch.allclose(networks.encode(params, made[2:3]).noise, found.noise[2:3], atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_activations_keep_their_scale(name):
    """Neither vanishes nor explodes at the start: weights are drawn for that."""
    networks = NETWORKS[name]
    judged = torch.stack(
        [networks.judge(networks.init(root(seed)), uniform(root(3), (20, SIZE[name]))) for seed in range(20)]
    )
    assert 0.1 < float(judged.square().mean().sqrt()) < 5


def test_a_cluster_is_a_row_of_the_codes():
    params = NETWORKS["vectors"].init(root(0))
    assert all(len(params[name]) == 1 for name in CODES)
    assert all(name.startswith(("generator.", "critic.", "encoder.")) for name in params)


def test_convolutions_refuse_a_side_that_does_not_halve_twice():
    with pytest.raises(InvalidInput, match="got 10"):
        Convolutional(1, 10)
