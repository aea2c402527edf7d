"""The smallest numbers are found as a stable sort finds them."""

from unittest import mock

import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.core import smallest as module
from corymb.core.smallest import smallest, smallest_of_each
from corymb.engines.vectorised.probe import MAX_TRIED_CLIENTS, _extremes

WIDE = st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1))


@given(st.lists(WIDE, min_size=1, max_size=40), st.integers(1, 50))
def test_the_smallest_are_those_that_a_stable_sort_puts_first(values, n):
    numbers = torch.tensor(values)
    assert torch.equal(smallest(numbers, n), numbers.argsort(stable=True)[:n].sort().values)


@given(st.lists(WIDE, min_size=1, max_size=40), st.integers(1, 50), st.integers(1, 45))
def test_numbers_that_are_computed_block_by_block_give_the_same(values, n, block):
    numbers = torch.tensor(values)
    with mock.patch.object(module, "BLOCK", block):
        found = smallest_of_each(lambda rows: numbers[rows], torch.arange(len(numbers)), n)
    assert torch.equal(found, smallest(numbers, n))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40).filter(any))
def test_the_clients_with_the_fewest_and_the_most_examples_are_in_order(values):
    sizes = torch.tensor(values)
    ascending = sizes.argsort(stable=True)
    ascending = ascending[sizes[ascending] > 0]
    assert _extremes(sizes) == (ascending[:MAX_TRIED_CLIENTS].tolist(), ascending.flip(0)[:MAX_TRIED_CLIENTS].tolist())
