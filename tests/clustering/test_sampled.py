"""Distances to a sample: the numbers by hand, and the clusters that SR-FCA finds with them."""

import pytest
import torch

from corymb.algorithms.sr_fca import SRFCA
from corymb.clustering.distances import CrossLosses, Norms
from corymb.clustering.sampled import apart_by_sample, compare_sample, join_nearest, missed, to_clusters
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.engines import VectorisedEngine
from corymb.keys import fold, normal, root
from corymb.local import Descent
from corymb.objectives import LinearRegression
from corymb.settings import InvalidInput
from tests import tiny

TRUTH = (0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1)
SIZES = (16, 19, 22, 17, 16, 18, 20, 16, 17, 18, 19, 20)


def lines() -> Federation:
    data = tiny.regression(SIZES, TRUTH)
    return Federation(VectorisedEngine(LinearRegression(3, dtype=torch.float64), data, tiny.DOUBLE))


def own_models(n: int):
    return {"weight": normal(fold(root(3), torch.arange(n)), (3,), torch.float64)}


@pytest.mark.parametrize("measure", [CrossLosses(), Norms(2.0), Norms(float("inf"))])
def test_distances_to_the_sample_are_columns_of_all_distances(measure):
    fed, own = lines(), own_models(len(SIZES))
    every = measure.between_clients(measure.known(fed.clients, own).value)
    seen = compare_sample(measure, fed.clients, own, 5)
    assert seen.apart.shape == (len(SIZES), 5)
    assert torch.allclose(seen.apart, every[:, seen.few], rtol=1e-9)


def test_distances_to_clusters_are_those_of_all_clients_where_all_are_sampled():
    n = len(SIZES)
    known, fit, labels = torch.rand(n, n).double(), torch.rand(n, 2).double(), torch.tensor(TRUTH)
    few = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    want = CrossLosses().to_clusters(known, fit, labels)
    assert torch.allclose(to_clusters(known.T[:, few], few, fit, labels), want)
    here = torch.arange(n) != 3  # one did not answer
    part = CrossLosses().to_clusters(known[here][:, here], fit[here], labels[here])
    assert torch.allclose(apart_by_sample(known.T[:, few], few, here, fit[here], labels[here]), part)


def test_a_cluster_without_sampled_members_is_judged_by_its_own_model_alone():
    known, fit = torch.rand(4, 1).double(), torch.rand(4, 2).double()
    apart = to_clusters(known, torch.tensor([0]), fit, torch.tensor([0, 1, 1, 0]))
    assert torch.equal(apart[:, 1], fit[:, 1])
    assert torch.allclose(apart[1:, 0], (fit[1:, 0] + known[1:, 0]) / 2)
    assert apart[0, 0] == fit[0, 0]  # nobody else is there


def test_everybody_joins_the_nearest_sampled_members():
    apart = torch.tensor([[0.0, 1, 9], [1, 0, 9], [9, 8, 0], [5, 6, 4], [1, 2, 4]])
    labels = join_nearest(apart, torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
    assert labels.tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("distance", ["losses", "l2"])
def test_sr_fca_by_sample_finds_the_clusters(distance):
    algorithm = SRFCA(
        threshold="gap" if distance == "l2" else 0.3,
        distance=distance,
        sample=8,
        alone=Descent(lr=0.05, steps=60),
        rounds=3,
        local=Descent(lr=0.05, steps=2),
    )
    *_, at = drive(algorithm, lines(), seed=2)
    truth = torch.tensor(TRUTH)
    assert at.k == 2
    assert torch.equal(at.labels, truth) or torch.equal(at.labels, 1 - truth)


def test_the_bound_on_clusters_that_the_sample_misses():
    assert missed(0.05, 400) == pytest.approx(0.95**400 + 400 * 0.05 * 0.95**399)
    with pytest.raises(InvalidInput, match="sample must be at least 2"):
        SRFCA(sample=1)
