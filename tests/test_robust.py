"""Averages inside groups: against plain definitions, and against adversarial values."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.robust import group_mean, group_median, group_trimmed_mean, into_ball, trimmed
from corymb.settings import InvalidInput

seeds = st.integers(0, 2**32 - 1)


def rows_of(seed: int, n: int, k: int) -> tuple[dict[str, torch.Tensor], torch.Tensor, dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    rows = {
        "matrix": torch.randn(n, 3, 4, generator=draw, dtype=torch.float64),
        "vector": torch.randn(n, 5, generator=draw, dtype=torch.float64),
        "number": torch.randn(n, generator=draw, dtype=torch.float64),
    }
    empty = {name: torch.full((k, *value.shape[1:]), 7.0, dtype=torch.float64) for name, value in rows.items()}
    return rows, torch.randint(-1, k, (n,), generator=draw), empty


def plain(values: np.ndarray, drop: int) -> np.ndarray:
    kept = np.sort(values, axis=0)[drop : len(values) - drop]
    return sum(kept[1:], kept[0]) / len(kept)


@given(seeds, st.integers(1, 40), st.integers(1, 4), st.floats(0, 0.49), st.sampled_from([1, 3, 7, 2**22]))
def test_the_trimmed_mean_is_the_mean_of_what_is_kept_in_every_coordinate(seed, n, k, trim, block):
    rows, labels, empty = rows_of(seed, n, k)
    got = group_trimmed_mean(rows, labels, empty, trim=trim, block=block)
    for name, value in rows.items():
        for j in range(k):
            mine = value[labels == j].numpy()
            want = plain(mine, int(np.floor(trim * len(mine) + 1e-9))) if len(mine) else empty[name][j].numpy()
            assert np.allclose(got[name][j].numpy(), want, rtol=1e-12, atol=1e-12)


@given(seeds, st.integers(1, 12), st.integers(1, 3))
def test_the_median_and_the_mean(seed, n, k):
    rows, labels, empty = rows_of(seed, n, k)
    median, mean = group_median(rows, labels, empty, block=2), group_mean(rows, labels, empty, block=2)
    for name, value in rows.items():
        for j in range(k):
            mine = value[labels == j].numpy()
            assert np.allclose(median[name][j], np.median(mine, axis=0) if len(mine) else 7.0)
            assert np.allclose(mean[name][j], mine.mean(0) if len(mine) else 7.0)


@given(seeds, st.integers(5, 20))
def test_the_order_of_rows_and_the_size_of_blocks_change_no_bit(seed, n):
    rows, labels, empty = rows_of(seed, n, 2)
    want = group_trimmed_mean(rows, labels, empty, trim=0.2)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    moved = group_trimmed_mean({name: value[order] for name, value in rows.items()}, labels[order], empty, trim=0.2)
    small = group_trimmed_mean(rows, labels, empty, trim=0.2, block=1)
    for name in rows:
        # Sorted values come in one order; where nothing is dropped the sum's order is the rows'.
        assert torch.allclose(moved[name], want[name], rtol=1e-14, atol=1e-14)
        assert torch.allclose(small[name], want[name], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("value", [1e30, -1e30, 3e38])
def test_one_huge_value_costs_the_others_no_precision(value):
    """A sum of all less the extremes would be 0 here, or worse."""
    values = torch.tensor([0.1, 0.2, 0.3, value])
    got = group_trimmed_mean({"w": values}, torch.zeros(4, dtype=torch.int64), {"w": torch.zeros(1)}, trim=0.25)
    kept = values.sort().values[1:3]
    assert torch.equal(got["w"], kept.mean().reshape(1))


def test_how_many_are_dropped():
    assert [trimmed(10, trim) for trim in (0.0, 0.09, 0.1, 0.15, 0.49)] == [0, 0, 1, 1, 4]
    assert [trimmed(n, 0.15) for n in (1, 6, 7, 13, 14, 20)] == [0, 0, 1, 1, 2, 3]
    assert trimmed(100, 0.29) == 29  # 0.29 × 100 is 28.999999999999996
    assert all(2 * trimmed(n, 0.4999) < n for n in range(1, 2000))  # something is always kept


def test_a_hand_computed_case():
    rows = {"w": torch.tensor([[1.0, 10.0], [2.0, -5.0], [3.0, 0.0], [100.0, 1.0], [50.0, 50.0]])}
    labels = torch.tensor([0, 0, 0, 0, 1])
    got = group_trimmed_mean(rows, labels, {"w": torch.tensor([[0.0, 0.0], [0.0, 0.0], [8.0, 9.0]])}, trim=0.25)
    assert torch.equal(got["w"], torch.tensor([[2.5, 0.5], [50.0, 50.0], [8.0, 9.0]]))


def test_impossible_settings_are_refused():
    rows, empty = {"w": torch.ones(3, 2)}, {"w": torch.zeros(2, 2)}
    with pytest.raises(InvalidInput, match="and below 1/2, got"):
        group_trimmed_mean(rows, torch.zeros(3, dtype=torch.int64), empty, trim=0.5)
    with pytest.raises(InvalidInput, match="2 labels for 3 rows"):
        group_mean(rows, torch.zeros(2, dtype=torch.int64), empty)
    with pytest.raises(InvalidInput, match="A label is 2, but `empty` has 2 rows"):
        group_mean(rows, torch.tensor([0, 1, 2]), empty)


def test_models_are_pulled_back_into_the_ball_and_no_further():
    centre = {"a": torch.tensor([1.0, 1.0]), "b": torch.tensor(1.0)}
    models = {"a": torch.tensor([[1.0, 1.0], [1.0, 3.0], [4.0, 1.0]]), "b": torch.tensor([1.5, 1.0, 5.0])}
    got = into_ball(models, centre, 2.0)
    assert torch.equal(got["a"][:2], models["a"][:2])
    assert torch.allclose(got["a"][2], torch.tensor([1 + 3 * 0.4, 1.0]))  # 5 away, 2 allowed
    assert torch.allclose(got["b"], torch.tensor([1.5, 1.0, 1 + 4 * 0.4]))
