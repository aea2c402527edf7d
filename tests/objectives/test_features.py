"""Feature maps: right values, batches as single rows, and the same under vmap."""

import math

import pytest
import torch
from torch.func import vmap

from corymb.objectives import LinearRegression
from corymb.objectives.features import Polynomial, RandomFourier
from corymb.settings import InvalidInput

MAPS = [Polynomial(degree=3), Polynomial(degree=3, basis="hermite", constant=False), RandomFourier(width=7, seed=2)]


def points(n=5, d=3, seed=0):
    return torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_polynomials_of_two_inputs():
    x = torch.tensor([[2.0, 3.0]], dtype=torch.float64)
    assert Polynomial(degree=2)(x).tolist() == [[1, 2, 3, 4, 6, 9]]
    assert Polynomial(degree=2, constant=False)(x).tolist() == [[2, 3, 4, 6, 9]]
    hermite = [1, 2, 3, (4 - 1) / math.sqrt(2), 6, (9 - 1) / math.sqrt(2)]
    assert Polynomial(degree=2, basis="hermite")(x).tolist() == [pytest.approx(hermite)]


def test_hermite_features_of_normal_inputs_are_uncorrelated_with_second_moment_one():
    phi = Polynomial(degree=3, basis="hermite")(points(200_000, 2))
    moment = phi.mT @ phi / len(phi)
    assert (moment - torch.eye(len(moment))).abs().max() < 0.1


def test_random_fourier_features_approximate_a_gaussian_kernel():
    x = points(6)
    phi = RandomFourier(width=20_000, scale=2.0)(x)
    kernel = torch.exp(-torch.cdist(x, x).square() / (2 * 2.0**2))
    assert (phi @ phi.mT - kernel).abs().max() < 0.05


def test_the_seed_alone_decides_random_features():
    x = points()
    assert torch.equal(RandomFourier(width=5, seed=1)(x), RandomFourier(width=5, seed=1)(x))
    assert not torch.equal(RandomFourier(width=5, seed=1)(x), RandomFourier(width=5, seed=2)(x))


@pytest.mark.parametrize("features", MAPS, ids=repr)
def test_a_batch_is_its_rows_and_vmap_changes_nothing(features):
    x = points(6)
    whole = features(x)
    assert torch.allclose(torch.cat([features(row[None]) for row in x]), whole, atol=1e-12)
    assert torch.allclose(vmap(features)(x.reshape(3, 2, 3)).reshape(6, -1), whole, atol=1e-12)
    assert features(x.float()).dtype == torch.float32


@pytest.mark.parametrize("features", MAPS, ids=repr)
def test_linear_regression_accepts_feature_maps(features):
    objective = LinearRegression(3, features=features, dtype=torch.float64)
    assert objective.width == features(points()).shape[1]
    assert repr(features) in objective.describe()


@pytest.mark.parametrize("wrong", [{"degree": 0}])
def test_wrong_polynomials_are_refused(wrong):
    with pytest.raises(InvalidInput, match="degree must be at least 1"):
        Polynomial(**wrong)


def test_wrong_random_features_are_refused():
    with pytest.raises(InvalidInput, match="width"):
        RandomFourier(width=0)
    with pytest.raises(InvalidInput, match="scale"):
        RandomFourier(scale=0.0)
