"""Clusters from numbers: planted groups are found in any order and at any scale."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corymb.clustering.grouping import by_appearance, complete_linkage, group_means, k_means, widest_gap
from corymb.keys import root
from corymb.settings import InvalidInput


def planted(groups: int, each: int, *, d: int = 4, spread: float = 0.1, seed: int = 0):
    """Points around centres that are at least 4 apart, and which is whose."""
    rng = torch.Generator().manual_seed(seed)
    centres = 4.0 * torch.arange(groups, dtype=torch.float64)[:, None] * torch.ones(d, dtype=torch.float64) / d**0.5
    truth = torch.arange(groups).repeat_interleave(each)
    noise = torch.randn(len(truth), d, dtype=torch.float64, generator=rng)
    return centres[truth] + spread * noise, truth


def test_complete_linkage_cuts_at_the_distance_of_the_farthest_two():
    points = torch.tensor([[0.0], [1.0], [2.0], [10.0]])
    assert by_appearance(complete_linkage(points, 1.5).labels).tolist() in ([0, 0, 1, 2], [0, 1, 1, 2])
    assert by_appearance(complete_linkage(points, 2.5).labels).tolist() == [0, 0, 0, 1]
    assert complete_linkage(points, 20.0).number == 1


def test_a_chain_is_not_one_group():
    chain = torch.arange(10.0)[:, None]  # neighbours are 1 apart, the ends 9: single linkage at 1 would join all
    assert complete_linkage(chain, 1.5).number == 5


@given(groups=st.integers(2, 5), each=st.integers(2, 6), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 99))
def test_the_widest_gap_finds_planted_groups_at_any_scale(groups, each, scale, seed):
    points, truth = planted(groups, each, seed=seed)
    found = complete_linkage(points * scale)
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(complete_linkage(points[order] * scale).labels, found.labels[order])
    assert by_appearance(found.labels).tolist() == truth.tolist()
    assert found.gap.ratio > 1.5
    assert found.gap.below < found.threshold < found.gap.above
    assert found.heights == sorted(found.heights)


@settings(max_examples=15)
@given(groups=st.integers(1, 4), each=st.integers(2, 5), seed=st.integers(0, 99))
def test_k_means_finds_planted_groups_in_any_order(groups, each, seed):
    points, truth = planted(groups, each, seed=seed)
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    labels = k_means(points, groups, root(seed))
    assert by_appearance(labels).tolist() == truth.tolist()
    assert k_means(points[order], groups, root(seed)).tolist() == labels[order].tolist()


def test_k_means_of_points_that_coincide_finds_fewer_groups():
    labels = k_means(torch.tensor([[0.0], [0.0], [1.0], [1.0]]), 3, root(0))
    assert by_appearance(labels).tolist() == [0, 0, 1, 1]


def test_points_that_coincide_are_no_gap_of_infinite_width():
    points = torch.tensor([[0.0], [0.0], [0.0], [0.1], [5.0], [5.0], [5.1], [5.1]])
    found = complete_linkage(points)
    assert by_appearance(found.labels).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_one_and_two_points():
    assert complete_linkage(torch.zeros(1, 2)).labels.tolist() == [0]
    assert complete_linkage(torch.tensor([[0.0], [1.0]])).number == 1
    assert complete_linkage(torch.tensor([[0.0], [1.0]]), 0.5).number == 2


def test_gaps_that_leave_groups_of_less_than_two_points_do_not_count():
    assert widest_gap([0.001, 1.0, 1.1, 1.2, 3.0]).above == 3.0
    assert widest_gap([0.001, 1.0, 1.1, 1.2, 3.0], most=5).above == 1.0
    with pytest.raises(InvalidInput, match="at least two heights"):
        widest_gap([1.0])


def test_k_means_requires_enough_points():
    with pytest.raises(InvalidInput, match="k=3 needs at least 3 points, got 2"):
        k_means(torch.zeros(2, 2), 3, root(0))


def test_group_means():
    points = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert group_means(points, torch.tensor([1, 0, 1]), 3).tolist() == [[3, 4], [3, 4], [0, 0]]
