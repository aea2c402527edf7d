"""Names that are only numbered are made when they are read, and nobody can tell; every name is hashed once."""

import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.core.engine import in_order
from corymb.core.names import ClientNames, Numbered
from corymb.keys import hash_names

PREFIXES = st.sampled_from(["", "client-", "site 7/", "50%d ", "ä", "%"])


@given(PREFIXES, st.integers(0, 2000), st.integers(1, 40), st.integers(1, 6))
def test_numbered_names_are_as_a_tuple_of_them(prefix, first, n, digits):
    plain = tuple(f"{prefix}{number:0{digits}}" for number in range(first, first + n))
    names = ClientNames.of(plain)
    assert names.numbered
    assert names == plain
    assert plain == names
    assert [*names] == [*plain]
    assert (len(names), hash(names), repr(names)) == (n, hash(plain), repr(plain))
    assert [names[place] for place in range(-n, n)] == [plain[place] for place in range(-n, n)]
    assert names[1:-1] == plain[1:-1]
    assert [names.index(name) for name in plain] == [*range(n)]
    assert torch.equal(names.hashes, hash_names(plain))
    assert torch.equal(in_order(names), in_order(plain))


@given(st.lists(st.sampled_from(["a", "b", "c1", "c2", "c3", "c02", "1", "2", "10", "", "x²", "9" * 30]), max_size=6))
def test_other_names_are_kept_as_they_are(plain):
    names = ClientNames.of(plain)
    assert names == tuple(plain)
    assert names == plain
    assert names != [*plain, "more"]
    assert torch.equal(names.hashes, hash_names(plain))
    assert torch.equal(in_order(names), in_order(plain))


@pytest.mark.parametrize(
    "name", ["client-3", "client-012", "client-13", "site-12", "12", "client-", "client-1²", "", "client-" + "9" * 30]
)
def test_a_name_that_is_none_of_them_is_not_found(name):
    names = ClientNames(Numbered("client-", range(4, 13)))
    assert "client-12" in names
    assert name not in names
    with pytest.raises(ValueError, match="there is no name"):
        names.index(name)
    with pytest.raises(ValueError, match="there is no name"):
        names.index("client-12", 0, 8)


def test_names_with_a_gap_or_in_another_order_are_not_numbered():
    for plain in (["1", "3", "4"], ["2", "1", "3"], ["1", "2", "x3"], ["1", "02"], ["9", "1o"], ["a", "b"]):
        assert not ClientNames.of(plain).numbered


def test_a_million_numbered_names_take_no_memory():
    tracemalloc.start()
    try:
        names = ClientNames(Numbered("client-", range(1_000_000)))
        assert names[-1] == "client-999999"
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def test_numbers_beyond_64_bits_are_found():
    start = 2**64 - 3
    names = ClientNames(Numbered("", range(start, start + 3)))
    assert names.index(str(start + 2)) == 2
    assert "1" + "0" * 5000 not in names


def test_names_are_hashed_once():
    names = ClientNames.of(["b", "a"])
    assert ClientNames.of(names) is names
    assert names.hashes is names.hashes
