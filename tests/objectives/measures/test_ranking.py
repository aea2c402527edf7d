import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.objectives.measures.ranking import areas, binned_area, bins_for, histogram

examples = st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.sampled_from([0.0, 1.0, 2.0])), max_size=12)


@given(examples)
def test_the_area_is_the_share_of_pairs_in_the_right_order(rows):
    columns = zip(*rows, strict=True) if rows else [[]] * 3
    score, positive, weight = (torch.tensor(column).double() for column in columns)
    sides = (weight * positive)[:, None], (weight * (1 - positive))[:, None]
    pairs = [
        (w * v, 1.0 if s > t else 0.5 if s == t else 0.0)
        for s, is_positive, w in rows
        for t, other, v in rows
        if is_positive and not other
    ]
    total = sum(weight for weight, _ in pairs)
    wanted = sum(weight * right for weight, right in pairs) / total if total else 0.0
    assert float(areas(score[:, None], *sides)) == pytest.approx(wanted)


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_the_area_of_a_histogram_is_as_near_as_it_says(spread):
    generator = torch.Generator().manual_seed(0)
    positive = (torch.rand(3000, 1, generator=generator) < 0.06).double()
    log_odds = (torch.randn(3000, 1, generator=generator).double() + positive) * spread - 2.7
    exact = float(areas(log_odds, positive, 1 - positive))
    found = binned_area(histogram(log_odds, torch.tensor([-2.7]), positive, 1 - positive, bins_for(2)))
    assert 0 < abs(found.value - exact) <= found.error
    assert found.error < 0.005


def test_a_class_that_everybody_or_nobody_has_is_no_part_of_the_mean():
    counts = torch.tensor([[[0.0, 2], [2, 0]], [[0, 0], [1, 3]], [[3, 1], [0, 0]]])
    assert binned_area(counts) == (1.0, 0.0)
    assert binned_area(counts[1:]) is None
