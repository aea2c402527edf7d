"""Reductions equal byzfl's: `byzfl/values.json` is what byzfl 0.0.11 gave for the same rows, made as in `rows_of`."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.core.reductions import centred_clipping, geometric_median, krum, median, multi_krum, trimmed_mean
from corymb.keys import fold, normal, permutation, root

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
