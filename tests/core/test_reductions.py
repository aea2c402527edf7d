"""Reductions equal byzfl's: `byzfl/values.json` is what byzfl 0.0.11 gave for the same rows, made as in `rows_of`."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.core import reductions
from corymb.core.reductions import (
    centred_clipping,
    geometric_median,
    krum,
    median,
    multi_krum,
    sorted_columns,
    trimmed_mean,
)
from corymb.keys import fold, normal, permutation, root
from corymb.robust import group_median, group_trimmed_mean

VALUES = json.loads((Path(__file__).parent / "byzfl" / "values.json").read_text())
OURS = {
    "median": lambda rows, f: median(rows),
    "trimmed": trimmed_mean,
    "geometric-median": lambda rows, f: geometric_median(rows, smoothing=0.1, steps=3),
    "geometric-median-long": lambda rows, f: geometric_median(rows, smoothing=1e-6, steps=50),
    "krum": krum,
    "multi-krum": multi_krum,
    "centred-clipping": lambda rows, f: centred_clipping(rows, radius=2.0, steps=1),
    "centred-clipping-long": lambda rows, f: centred_clipping(rows, radius=0.5, steps=5),
}


def rows_of(n, d, f):
    """Rows of which the last f are thirty times as long."""
    rows = normal(fold(root(n), "byzfl"), (n, d)).double()
    rows[-f:] *= 30
    return rows


def grouped_median(rows):
    """The median of a single group, as algorithms take it."""
    labels = torch.zeros(len(rows), dtype=torch.int64)
    return group_median({"rows": rows}, labels, {"rows": rows[:1]})["rows"][0]


def grouped_mean(rows):
    """The trimmed mean of a single group."""
    labels = torch.zeros(len(rows), dtype=torch.int64)
    return group_trimmed_mean({"rows": rows}, labels, {"rows": rows[:1]}, trim=0.2)["rows"][0]


@pytest.mark.parametrize("case", VALUES, ids=lambda case: f"{case['n']} rows")
@pytest.mark.parametrize("name", OURS)
def test_a_reduction_is_that_of_byzfl(name, case):
    got = OURS[name](rows_of(case["n"], case["d"], case["f"]), case["f"])
    assert torch.allclose(got, torch.tensor(case[name], dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", OURS)
@given(seed=st.integers(0, 99), far=st.floats(1.0, 1e12))
def test_one_bad_row_moves_a_reduction_by_no_more_than_the_good_ones_are_apart(name, seed, far):
    rows = normal(fold(root(seed), "good"), (9, 5)).double()
    bad = rows.clone()
    bad[3] = far * normal(fold(root(seed), "bad"), (5,)).double()
    got = OURS[name](bad, 2)
    assert float(got.norm()) <= 2 * float(rows.norm(dim=1).max())


@pytest.mark.parametrize("name", OURS)
def test_the_order_of_rows_does_not_matter(name):
    rows = rows_of(9, 4, 2)
    other = rows[permutation(root(1), 9)]
    assert torch.allclose(OURS[name](rows, 2), OURS[name](other, 2), atol=1e-12)


def test_one_row_is_itself():
    row = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    for reduce in (lambda r: median(r), lambda r: trimmed_mean(r, 0), lambda r: krum(r, 0), lambda r: multi_krum(r, 0)):
        assert torch.equal(reduce(row), row[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [0, 10**6], ids=["torch's sort", "numpy's sort"])
def test_columns_are_sorted_with_nan_last(dtype, threads, monkeypatch):
    monkeypatch.setattr(reductions, "FEW_THREADS", threads)
    rows = normal(root(3), (9, 40)).round(decimals=1).to(dtype)  # with ties
    rows[2], rows[5, :20], rows[6, 10:], rows[7, ::3] = torch.inf, -torch.inf, torch.nan, torch.nan
    got = sorted_columns(rows.T.contiguous().T)  # not contiguous, as a block of columns is not
    assert got.dtype == dtype
    assert torch.equal(got.nan_to_num(nan=7777), rows.sort(dim=0).values.nan_to_num(nan=7777))


@pytest.mark.parametrize("reduce", [median, lambda rows: trimmed_mean(rows, 2), grouped_median, grouped_mean])
def test_with_one_thread_torch_sorts_no_columns(reduce, monkeypatch):
    """Its sort of a hundred rows takes five times as long as numpy's, longer than the training of an MLP."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(torch.Tensor, "sort", None)
    assert reduce(normal(root(3), (9, 40))).shape == (40,)
