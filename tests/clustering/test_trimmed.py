"""Trimmed k-means: planted groups are found among outliers, and no group is mistaken for outliers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from corymb.clustering.grouping import k_means
from corymb.clustering.trimmed import trimmed_k_means
from corymb.keys import root
from corymb.settings import InvalidInput


def planted(sizes: tuple[int, ...], stray: int, *, d: int, seed: int):
    """Groups of some sizes, then pairs of points far from all of them; which is whose, -1 for those."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.cat([torch.full((size,), number) for number, size in enumerate(sizes)])
    centres = 3.0 * torch.eye(d, dtype=torch.float64)
    noise = torch.randn(len(truth), d, generator=rng, dtype=torch.float64) / d**0.5
    pairs = -centres[torch.arange(stray) // 2] + 0.1 * torch.randn(stray, d, generator=rng, dtype=torch.float64)
    return torch.cat([centres[truth] + noise, pairs]), torch.cat([truth, torch.full((stray,), -1)])


@settings(max_examples=5)
@given(seed=st.integers(0, 99), d=st.sampled_from([8, 60]), k=st.integers(2, 4))
def test_stray_points_get_no_group_of_their_own(seed, d, k):
    points, truth = planted((8,) * k, 2 * k, d=d, seed=seed)
    found = trimmed_k_means(points, k, root(seed), trim=0.25)
    honest = truth >= 0
    assert adjusted_rand_score(found.labels[honest], truth[honest]) == 1
    assert not bool(found.kept[~honest].any())


@settings(max_examples=5)
@given(seed=st.integers(0, 99), d=st.sampled_from([8, 60]))
def test_a_small_group_is_not_left_out(seed, d):
    """Without it, its centre could split another group, and the points that are kept would cost no more."""
    points, truth = planted((10, 10, 10, 4), 0, d=d, seed=seed)
    found = trimmed_k_means(points, 4, root(seed), trim=0.25)
    assert adjusted_rand_score(found.labels, truth) == 1
    assert int((~found.kept).sum()) <= 4
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    again = trimmed_k_means(points[order], 4, root(seed), trim=0.25)
    assert torch.equal(again.labels, found.labels[order])
    assert torch.equal(again.kept, found.kept[order])


def test_plain_k_means_gives_strays_a_group():
    """What trimming is for: on the same points, k-means joins two groups to have a centre for the strays."""
    points, truth = planted((8, 8, 8, 8), 8, d=60, seed=0)
    honest = truth >= 0
    points[~honest] -= 3.0 * torch.eye(60, dtype=torch.float64)[59]  # what they have in common
    assert adjusted_rand_score(k_means(points, 4, root(0))[honest], truth[honest]) < 0.9
    assert adjusted_rand_score(trimmed_k_means(points, 4, root(0), trim=0.25).labels[honest], truth[honest]) == 1


def test_edges():
    same = trimmed_k_means(torch.ones(5, 2), 3, root(0), trim=0.25)
    assert same.labels.tolist() == [0] * 5
    assert bool(same.kept.all())
    few = trimmed_k_means(torch.tensor([[0.0], [1.0], [9.0]]), 3, root(0), trim=0.4)  # nobody can be spared
    assert sorted(few.labels.tolist()) == [0, 1, 2]
    assert bool(few.kept.all())
    with pytest.raises(InvalidInput, match="needs at least 3 points, got 2"):
        trimmed_k_means(torch.zeros(2, 1), 3, root(0), trim=0.1)
    with pytest.raises(InvalidInput, match="below 1/2"):
        trimmed_k_means(torch.zeros(4, 1), 2, root(0), trim=0.5)
