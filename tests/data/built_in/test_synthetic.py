import numpy as np
import pytest
import torch

from corymb.data import (
    mixed_regression,
    mixed_regression_ifca,
    mixed_regression_skewed,
    mixed_regression_unbalanced,
)
from corymb.settings import InvalidInput


def fitted(data):
    """Least squares in each true cluster."""
    weights = []
    for cluster in range(len(data.true_parameters["weight"])):
        rows = (data.truth == cluster).repeat_interleave(data.sizes)
        weights.append(
            torch.linalg.lstsq(data.train.x[rows].double(), data.train.y[rows, None].double()).solution[:, 0]
        )
    return torch.stack(weights)


def test_ifca_parameters_are_zeros_and_the_scale():
    data = mixed_regression_ifca(0, n=10, m=40, d=20, k=3, scale=0.25, test=5)
    assert data.true_parameters["weight"].unique().tolist() == [0, 0.25]
    assert data.truth.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert data.sizes.tolist() == [40] * 10
    assert data.test.sizes.tolist() == [5] * 10


@pytest.mark.parametrize("make", [mixed_regression_ifca, mixed_regression, mixed_regression_skewed])
def test_the_true_parameters_are_those_of_the_data(make):
    data = make(0)
    error = (fitted(data) - data.true_parameters["weight"]).norm(dim=1)
    assert error.max() < 0.06


def test_noise_has_its_deviation():
    data = mixed_regression(1, sigma=0.2)
    weight = data.true_parameters["weight"][data.truth].repeat_interleave(data.sizes, 0)
    noise = data.train.y - (data.train.x * weight).sum(1)
    assert float(noise.std()) == pytest.approx(0.2, rel=0.03)


def test_separation_stretches_to_the_nearest_pair():
    weight = mixed_regression_ifca(0, n=8, m=2, d=30, k=4, separation=2.5).true_parameters["weight"]
    assert float(torch.pdist(weight).min()) == pytest.approx(2.5, rel=1e-5)
    with pytest.raises(InvalidInput, match="drew the same parameters"):
        mixed_regression_ifca(0, n=4, m=2, d=1, k=4, separation=1.0)


def test_the_settings_of_the_paper():
    balanced, unbalanced, skewed = mixed_regression(0), mixed_regression_unbalanced(0), mixed_regression_skewed(0)
    assert balanced.sizes.tolist() == [50] * 200
    assert unbalanced.sizes.tolist() == skewed.sizes.tolist() == [10] * 900 + [50] * 20
    assert all(int(data.sizes.sum()) == 10_000 for data in (balanced, unbalanced, skewed))
    assert all(data.features == (100,) for data in (balanced, unbalanced, skewed))
    assert (skewed.truth.bincount() / 920).tolist() == pytest.approx([0.2, 0.3, 0.5], abs=0.05)
    assert (unbalanced.truth.bincount() / 920).tolist() == pytest.approx([1 / 3] * 3, abs=0.05)
    assert balanced.true_parameters["weight"].norm(dim=1).tolist() == pytest.approx([1] * 3, abs=0.3)


def test_features_have_their_clusters_covariance():
    covariances = [np.eye(2), np.array([[2.0, 0.9], [0.9, 1.0]])]
    data = mixed_regression(0, n=40, m=1000, d=2, k=2, covariances=covariances, test=0)
    for cluster, wanted in enumerate(covariances):
        rows = (data.truth == cluster).repeat_interleave(data.sizes)
        assert torch.cov(data.train.x[rows].T).numpy() == pytest.approx(wanted, abs=0.08)


def test_within_keeps_a_clusters_clients_that_close():
    data = mixed_regression(0, n=12, m=60, d=5, k=2, sigma=0.0, within=0.3)
    own = torch.stack(
        [torch.linalg.lstsq(x.double(), y[:, None].double()).solution[:, 0] for x, y in map(data.train.of, range(12))]
    )
    away = (own - data.true_parameters["weight"][data.truth]).norm(dim=1)
    assert away.tolist() == pytest.approx([0.15] * 12, abs=1e-4)
    for cluster in (0, 1):
        assert float(torch.pdist(own[data.truth == cluster]).max()) <= 0.3 + 1e-4


def test_the_number_of_test_examples_changes_no_training_example():
    one, other = mixed_regression(0, test=0), mixed_regression(0, test=7)
    assert torch.equal(one.train.x, other.train.x)
    assert torch.equal(one.train.y, other.train.y)


@pytest.mark.parametrize(
    "options",
    [
        {"shares": (0.5, 0.5)},
        {"shares": (0.5, 0.6, -0.1)},
        {"n": 3, "m": [(1, 2)]},
        {"n": 0},
        {"m": 0},
        {"k": 0},
        {"covariances": [np.eye(3)] * 3},
        {"d": 2, "covariances": [-np.eye(2)] * 3},
        {"sigma": -1.0},
        {"test": -1},
    ],
)
def test_complaints(options):
    with pytest.raises(InvalidInput) as caught:
        mixed_regression(0, **options)
    assert "\n" not in str(caught.value)


def test_more_clusters_than_clients():
    with pytest.raises(InvalidInput, match="clients a cluster is 0"):
        mixed_regression_ifca(0, n=3, k=4)
