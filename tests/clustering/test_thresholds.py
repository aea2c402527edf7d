"""Groups of neighbours, and the threshold that is found from the distances alone."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform

from corymb.clustering import thresholds
from corymb.clustering.thresholds import (
    find_threshold,
    pivot_groups,
    settle_threshold,
    single_linkage,
    threshold_groups,
)
from corymb.keys import fold, root

seeds = st.integers(0, 2**32 - 1)
KEY = fold(root(0), "threshold")


def distances_of(points: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.linalg.norm(points[:, None] - points, axis=-1))


def cloud(seed: int, sizes: list[int], *, d: int = 10, between: float = 10.0) -> torch.Tensor:
    """Standard normal points around centres that are far from each other."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(len(sizes), d))
    centres *= between / np.linalg.norm(centres, axis=1, keepdims=True)
    return torch.tensor(np.concatenate([c + rng.normal(size=(n, d)) for c, n in zip(centres, sizes, strict=True)]))


@given(seeds, st.integers(2, 25))
def test_single_linkage_is_scipys(seed, n):
    distances = distances_of(np.random.default_rng(seed).normal(size=(n, 3)))
    want = linkage(squareform(distances.numpy(), checks=False), "single")[:, 2]
    merges = single_linkage(distances)
    assert np.allclose([merge.height for merge in merges], want)
    assert all(float(distances[m.one, m.other]) == m.height for m in merges)


@given(seeds, st.integers(1, 25), st.floats(0.1, 3), st.integers(1, 3))
def test_groups_are_the_graphs_components(seed, n, threshold, least):
    distances = distances_of(np.random.default_rng(seed).normal(size=(n, 2)))
    labels = threshold_groups(distances, threshold, order=torch.arange(n), least=least)
    _, want = connected_components((distances <= threshold).numpy())
    for i in range(n):
        mine = want == want[i]
        assert (labels[i] < 0) == (mine.sum() < least)
        assert labels[i] < 0 or np.array_equal((labels == labels[i]).numpy(), mine)
    assert set(labels.tolist()) - {-1} == set(range(int(labels.max()) + 1))


@given(seeds, st.integers(2, 20))
def test_the_order_of_clients_changes_no_groups_number(seed, n):
    rng = np.random.default_rng(seed)
    distances, order = distances_of(rng.normal(size=(n, 2))), torch.tensor(rng.integers(2**40, size=n))
    moved = torch.tensor(rng.permutation(n))
    for group in (threshold_groups, lambda *a, **b: pivot_groups(*a, draws=fold(KEY, b["order"]), **b)):
        labels = group(distances, 0.7, order=order, least=2)
        assert torch.equal(group(distances[moved][:, moved], 0.7, order=order[moved], least=2), labels[moved])


@given(seeds, st.integers(1, 20))
def test_pivots_have_all_of_their_group_near(seed, n):
    rng = np.random.default_rng(seed)
    distances, draws = distances_of(rng.normal(size=(n, 2))), torch.tensor(rng.permutation(n))
    labels = pivot_groups(distances, 1.0, order=torch.arange(n), draws=draws)
    assert (labels >= 0).all()
    for group in range(int(labels.max()) + 1):
        mine = (labels == group).nonzero().flatten()
        pivot = mine[draws[mine].argmin()]
        assert (distances[pivot][mine] <= 1.0).all()
        assert not (distances[pivot][(labels < 0) | (labels > group)] <= 1.0).all() or (labels <= group).all()


# ---- the threshold found


@pytest.mark.parametrize("sizes", [[20, 20], [10, 10, 10, 10], [5, 30], [8, 16, 24, 32], [4, 4]])
@pytest.mark.parametrize("seed", range(4))
def test_planted_groups_are_found_in_any_kind_of_distance(sizes, seed):
    points = cloud(seed, sizes)
    lengths = torch.cdist(points, points)
    losses = 0.3 + lengths.square()  # a floor, then squares: the diagonal is the floor
    truth = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    for distances, squared in ((lengths, False), (1000 * lengths, False), (losses, True)):
        found = find_threshold(distances, KEY, squared=squared)
        assert found.found, found
        assert torch.equal(threshold_groups(distances, found.value, order=torch.arange(sum(sizes))), truth)
        assert found.gap.below < found.value < found.gap.above


def test_groups_within_groups_are_found():
    """Two pairs of groups: the widest gap is between the pairs, the one that counts inside them."""
    points = cloud(0, [15, 15, 15, 15], between=8.0)
    points[30:, 0] += 200.0
    lengths = torch.cdist(points, points)
    found = find_threshold(lengths, KEY)
    assert found.gap.ratio < 10  # the gap between the pairs is wider by far
    labels = threshold_groups(lengths, found.value, order=torch.arange(60), least=2)
    assert torch.equal(labels, torch.arange(4).repeat_interleave(15))
    assert len(found.heights) == 59


def test_clouds_of_many_clients_are_drawn_with_few(monkeypatch):
    drawn, whole = [], thresholds.normal
    monkeypatch.setattr(thresholds, "normal", lambda key, shape, *more: drawn.append(shape) or whole(key, shape, *more))
    made = torch.Generator().manual_seed(0)
    points = torch.randn(1_200, 3, generator=made) + 30 * (torch.arange(1_200) % 3)[:, None]
    found = find_threshold(torch.cdist(points, points), root(0))
    assert found.found
    groups = threshold_groups(torch.cdist(points, points), found.value, order=torch.arange(1_200))
    assert torch.equal(groups, torch.arange(1_200) % 3)
    assert max(map(max, (shape for shape in drawn if len(shape) == 2))) == thresholds.MOST_DRAWN


def test_one_cloud_has_no_groups_however_many_dimensions():
    """80 clouds of few or many points."""
    wrong = 0
    for seed in range(8):
        for n, d in ((6, 3), (12, 2), (20, 5), (30, 2), (30, 30)):
            lengths = torch.cdist(*[cloud(seed, [n], d=d)] * 2)
            wrong += find_threshold(lengths, fold(KEY, seed)).found
            wrong += find_threshold(0.1 + lengths.square(), fold(KEY, seed), squared=True).found
    assert wrong <= 1


@pytest.mark.parametrize("squared", [False, True])
def test_outliers_and_spoiled_models_are_no_groups_and_hide_none(squared):
    points = torch.cat([cloud(0, [15, 15]), 200 * torch.ones(1, 10), -90 * torch.ones(1, 10)])
    distances = torch.cdist(points, points)
    distances = distances.square() + 0.1 if squared else distances
    distances[30], distances[:, 30] = 3e38, 3e38  # nobody can make anything of that model, not even its owner
    found = find_threshold(distances, KEY, squared=squared)
    assert found.found
    labels = threshold_groups(distances, found.value, order=torch.arange(32), least=2)
    assert labels.tolist() == [0] * 15 + [1] * 15 + [-1, -1]
    alone = distances[:15][:, :15]
    assert not find_threshold(alone, KEY, squared=squared).found


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_few_clients_show_nothing(n):
    distances = torch.cdist(*[cloud(0, [n])] * 2)
    found = find_threshold(distances, KEY)
    assert not found.found
    assert (distances <= found.value).all()


def test_clients_that_are_all_the_same_are_one_group():
    found = find_threshold(torch.zeros(8, 8), KEY)
    assert not found.found
    two = torch.full((8, 8), 5.0)
    two[:4, :4] = two[4:, 4:] = 0
    found = find_threshold(two, KEY)
    assert found.found
    assert 0 < found.value < 5


def test_the_evidence_is_kept_and_finding_nothing_is_reported(caplog):
    lengths = torch.cdist(*[cloud(0, [10, 10])] * 2)
    value, notes = settle_threshold("gap", lengths, KEY, least=2, squared=False)
    assert notes["threshold"] == value
    assert len(notes["merge_heights"]) == 19
    assert sum(notes["distance_counts"]) == 20 * 19 / 2
    counts, edges = np.histogram(lengths.double().numpy()[np.triu_indices(20, k=1)], len(notes["distance_counts"]))
    assert notes["distance_counts"] == counts.tolist()
    assert notes["distance_edges"] == edges.tolist()
    assert notes["gap"] > notes["chance"] > 1
    assert "warning" not in notes
    given_value, notes = settle_threshold(3.0, lengths, KEY, least=2, squared=False)
    assert given_value == notes["threshold"] == 3.0
    with caplog.at_level(logging.WARNING):
        _, notes = settle_threshold("gap", lengths[:10, :10], KEY, least=2, squared=False)
    assert "show no clusters" in notes["warning"]
    assert "show no clusters" in caplog.text
