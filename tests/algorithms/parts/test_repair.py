"""Collapsed clusters are found and repaired; the number of clusters is found; starts from groups."""

import pytest
import torch

from corymb.algorithms import IFCA, LocalKMeans
from corymb.algorithms.parts.repair import find, regroup, spread, vectors
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.data.built_in.digits import digits, digits_iid, digits_inverted
from corymb.data.built_in.synthetic import mixed_regression
from corymb.engines import VectorisedEngine
from corymb.evaluate import adjusted_rand_index
from corymb.keys import normal, root
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression

LOCAL = Descent(lr=0.3, steps=10)
COLLAPSES = (3, 4, 10, 15)  # seeds for which the paper's algorithm ends with two groups on one model


def run(algorithm, data, seed):
    linear = data.task == "regression"
    objective = LinearRegression(data.train.x.shape[1]) if linear else Classification(Network(mlp(64, [32], 10)), 10)
    return list(drive(algorithm, Federation(VectorisedEngine(objective, data)), seed=seed))


def losses_of_groups(wide: float, groups=(10, 10, 10, 10)):
    """Log losses of four groups on four models: group 0 and 1 both like model 0, model 1 is nobody's."""
    means = torch.tensor([[0.0, 2, 1, 2], [0.1, 2, 2, 1], [1, 2, 0, 2], [2, 2, 2, 0]])
    truth = torch.repeat_interleave(torch.arange(4), torch.tensor(groups))
    return (means[truth] + wide * normal(root(0), (len(truth), 4))).exp(), truth


def test_two_groups_on_one_model_are_told_apart():
    fit, truth = losses_of_groups(0.1)
    labels = fit.argmin(1)
    assert len(labels.unique()) == 3
    found = find(fit, labels, root(0))
    assert found is not None
    assert adjusted_rand_index(found.labels, truth) == 1.0
    assert sorted(found.favourites.tolist()) == [0, 0, 2, 3]


def test_clusters_that_are_right_are_left_alone():
    fit, truth = losses_of_groups(0.1)
    assert find(fit, truth, root(0)) is None


def test_noise_is_no_group():
    fit = (0.3 * normal(root(1), (60, 4))).exp()
    assert find(fit, fit.argmin(1), root(0)) is None


def test_groups_are_the_same_for_losses_ten_times_as_large():
    fit, _ = losses_of_groups(0.1)
    assert torch.allclose(vectors(fit), vectors(10 * fit), atol=1e-6)
    assert torch.equal(regroup(fit, 4, root(0))[0], regroup(10 * fit, 4, root(0))[0])


def test_spread_is_zero_only_within_single_points():
    points = torch.tensor([[0.0], [2.0], [5.0]])
    assert spread(points, torch.tensor([0, 1, 2])) == 0
    assert spread(points, torch.tensor([0, 0, 1])) == pytest.approx(2.0)


@pytest.mark.parametrize("seed", COLLAPSES)
def test_one_start_finds_all_groups_where_the_papers_algorithm_collapses(seed):
    data = digits(seed=seed)
    plain = run(IFCA(k=4, rounds=12, local=LOCAL, repair=False), data, seed)[-1]
    assert adjusted_rand_index(plain.labels, data.truth) < 0.8
    mended = run(IFCA(k=4, rounds=12, local=LOCAL), data, seed)
    assert adjusted_rand_index(mended[-1].labels, data.truth) == 1.0
    assert any("collapse" in at.notes for at in mended)


def test_a_run_that_needs_no_repair_is_the_papers():
    data = digits(seed=1)
    plain = run(IFCA(k=4, rounds=10, local=LOCAL, repair=False), data, 1)[-1]
    watched = run(IFCA(k=4, rounds=10, local=LOCAL), data, 1)[-1]
    for name, value in plain.models.items():
        assert torch.equal(value, watched.models[name])


@pytest.mark.parametrize(
    ("make", "k"),
    [(digits, 4), (digits_inverted, 2), (digits_iid, 1), (lambda seed: mixed_regression(seed, n=60, m=100, d=20), 3)],
    ids=["rotated", "inverted", "iid", "regression"],
)
def test_the_number_of_clusters_is_found(make, k, caplog):
    local = Descent(lr=0.1, steps=5) if k == 3 else LOCAL
    for seed in range(3):
        data = make(seed=seed)
        final = run(IFCA(k="auto", rounds=2, local=local, alone=Descent(lr=0.3, steps=50)), data, seed)[-1]
        assert final.k == k
        assert adjusted_rand_index(final.labels, data.truth) == 1.0
    assert ("no clusters" in caplog.text) == (k == 1)


def test_local_k_means_finds_the_number_of_clusters():
    data = digits(seed=0)
    snapshots = run(LocalKMeans(k="auto", alone=Descent(lr=0.3, steps=50)), data, 0)
    assert len(snapshots) == 3
    assert snapshots[-1].k == 4
    assert adjusted_rand_index(snapshots[-1].labels, data.truth) == 1.0


def test_the_evidence_for_k_is_kept():
    data = digits_inverted(seed=0)
    snapshots = run(IFCA(k="auto", rounds=1, local=LOCAL, alone=Descent(lr=0.3, steps=50)), data, 0)
    noted = [at.notes for at in snapshots if "k" in at.notes]
    assert noted[0]["k"] == 2
    assert max(noted[0]["silhouette_by_k"], key=noted[0]["silhouette_by_k"].get) == "2"


@pytest.mark.parametrize("init", ["loss-vectors", "one-shot"])
def test_starts_from_groups_find_the_clusters_in_two_rounds_more(init):
    data = digits(seed=0)
    snapshots = run(IFCA(k=4, rounds=2, local=LOCAL, init=init, alone=Descent(lr=0.3, steps=30)), data, 0)
    assert adjusted_rand_index(snapshots[-1].labels, data.truth) == 1.0
