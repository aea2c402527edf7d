"""Data whose examples have clusters: what p means, what generators promise, and pictures with another background."""

import numpy as np
import pytest
import torch

from corymb.data.built_in import points, sources
from corymb.data.built_in.sources import Images
from corymb.settings import InvalidInput


@pytest.mark.parametrize(("p", "own"), [(0.0, 0.25), (0.5, 0.625), (1.0, 1.0)])
def test_p_is_the_share_of_a_cluster_at_its_own_client(p, own):
    data = points.gaussians(0, p=p, m=200, test=40)
    assert data.sizes.tolist() == [200] * 4
    found = [float((data.train.of(client)[1] == client).float().mean()) for client in range(4)]
    assert found == pytest.approx([own] * 4, abs=0.1)
    if p == 1:
        assert found == [1.0] * 4
    assert sorted(data.test.y.tolist()) == sorted([0, 1, 2, 3] * 40)


def test_subspace_clusters_have_the_rank_they_are_given():
    data = points.subspace(1, k=3, m=100, d=10, rank=4)
    for cluster in range(3):
        assert int(torch.linalg.matrix_rank(data.train.x[data.train.y == cluster], rtol=1e-4)) == 4
    assert data.task == "density"


def test_gaussian_centres_are_zeros_and_scales():
    data = points.gaussians(3, k=2, m=400, d=5, scale=8.0)
    centres = torch.stack([data.train.x[data.train.y == cluster].mean(0) for cluster in range(2)])
    assert torch.allclose(centres, (centres / 8).round() * 8, atol=0.3)


@pytest.fixture
def few_pictures(monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, size=(60, 28, 28), dtype=np.uint8), np.arange(60, dtype=np.uint8) % 10
    x[:, :5] = 0
    monkeypatch.setattr(sources.Source, "load", lambda self: Images(x, y, x[:20], y[:20]))
    return x


def test_digits_and_turns(few_pictures):
    digits = points.mnist_digits(0, p=1.0)
    assert digits.features == (1, 28, 28)
    assert [set(digits.train.of(client)[1].tolist()) for client in range(10)] == [{client} for client in range(10)]
    turned = points.mnist_rotation_points(0, digit=3, p=1.0, side=14, per_class=4)
    assert turned.features == (1, 14, 14)
    assert turned.sizes.tolist() == [4] * 4
    assert turned.classes == ("0°", "90°", "180°", "270°")
    upright = few_pictures[3].reshape(14, 2, 14, 2).mean((1, 3)) / 255
    halved = points.mnist_rotation_points(0, digit=3, p=1.0, side=14)
    for quarters in range(4):
        want = torch.from_numpy(np.rot90(upright, quarters).copy()).float()
        seen = halved.train.of(quarters)[0][:, 0]
        assert any(torch.allclose(one, want, atol=1e-6) for one in seen)


def test_only_the_background_is_made_random(few_pictures):
    data = points.mnist_digits(0)
    noisy = points.random_background(data, 1)
    dark = data.train.x < 0.01
    assert torch.equal(noisy.train.x[~dark], data.train.x[~dark])
    assert 0.4 < float(noisy.train.x[dark].mean()) < 0.6
    assert torch.equal(points.random_background(data, 1).train.x, noisy.train.x)


def test_meaningless_settings_are_refused():
    with pytest.raises(InvalidInput, match="p=2"):
        points.gaussians(0, p=2, m=4)
    with pytest.raises(InvalidInput, match="rank=9"):
        points.subspace(0, d=8, rank=9)
    with pytest.raises(InvalidInput, match="side=7"):
        points.mnist_digits(0, side=7)
