import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from corymb import trees


class Pair(NamedTuple):
    left: Any
    right: Any


class Twin(NamedTuple):
    left: Any
    right: Any


names = st.text("abcxyz/.", min_size=1, max_size=3)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float64, torch.float32, torch.int64, torch.bool])


@st.composite
def tensors(draw) -> Tensor:
    shape, dtype, start = draw(shapes), draw(dtypes), draw(st.integers(-5, 5))
    size = 1
    for length in shape:
        size *= length
    return torch.arange(start, start + size).reshape(shape).to(dtype)


def nested(leaf: st.SearchStrategy) -> st.SearchStrategy:
    return st.recursive(
        leaf | st.none(),
        lambda inner: (
            st.dictionaries(names, inner, max_size=3)
            | st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.builds(Pair, inner, inner)
            | st.builds(Twin, inner, inner)
        ),
        max_leaves=8,
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@given(nested(tensors()))
def test_flatten_and_unflatten_are_inverse(tree):
    leaves, structure = trees.flatten(tree)
    assert all(isinstance(leaf, Tensor) for leaf in leaves)
    assert same(trees.unflatten(structure, leaves), tree)
    assert trees.flatten(trees.unflatten(structure, leaves))[1] == structure
    assert hash(structure) == hash(trees.flatten(tree)[1])


@given(nested(st.integers()), nested(st.integers()))
def test_structures_are_equal_exactly_where_trees_are_of_one_form(a, b):
    def form(tree):
        if isinstance(tree, dict):
            return ("dict", tuple((name, form(tree[name])) for name in sorted(tree)))
        if isinstance(tree, (list, tuple)):
            return (type(tree), tuple(form(child) for child in tree))
        return tree is None

    assert (trees.flatten(a)[1] == trees.flatten(b)[1]) == (form(a) == form(b))


@given(st.dictionaries(names, st.integers(), min_size=2))
def test_the_order_of_insertion_is_no_part_of_a_tree(tree):
    backwards = dict(reversed(tree.items()))
    assert trees.flatten(tree) == trees.flatten(backwards)


@given(nested(st.integers()), st.integers(1, 3))
def test_a_wrong_number_of_leaves_is_refused(tree, many):
    leaves, structure = trees.flatten(tree)
    with pytest.raises(ValueError, match="leaves"):
        trees.unflatten(structure, [*leaves, *range(many)])
    if leaves:
        with pytest.raises(ValueError, match="leaves"):
            trees.unflatten(structure, leaves[:-1])


@given(nested(tensors()), nested(tensors()))
def test_trees_of_different_structure_are_not_mapped_together(a, b):
    if trees.flatten(a)[1] == trees.flatten(b)[1]:
        trees.tree_map(lambda x, y: x, a, b)
    else:
        with pytest.raises(ValueError, match="different structure"):
            trees.tree_map(lambda x, y: x, a, b)


@given(nested(tensors()), st.integers(1, 4))
def test_stacked_rows_can_be_taken_back(tree, n):
    rows = [trees.map_tensors(lambda leaf, j=j: leaf + j if leaf.dtype != torch.bool else leaf, tree) for j in range(n)]
    stacked = trees.stack(rows)
    for j, row in enumerate(rows):
        assert same(trees.take(stacked, j), row)
        assert same(trees.take(stacked, torch.tensor(j)), row)
    halves = trees.concat([trees.take(stacked, slice(0, 1)), trees.take(stacked, slice(1, n))])
    assert same(halves, stacked)
    if trees.leaves(tree):
        assert trees.count(stacked) == n
        assert trees.nbytes(stacked) == n * trees.nbytes(tree)
    assert trees.signature(stacked, rows=True) == trees.signature(tree)


@given(tensors(), tensors())
def test_signatures_tell_shapes_and_dtypes_apart(a, b):
    equal = a.shape == b.shape and a.dtype == b.dtype
    assert (trees.signature({"w": a}) == trees.signature({"w": b})) == equal
    assert trees.signature({"w": a}) != trees.signature({"v": a})
    assert trees.signature((a,)) != trees.signature([a])


def test_numbers_become_tensors_and_none_stays():
    tree = trees.as_tensors({"a": 1, "b": (2.5, None, True)})
    assert tree["a"].dtype == torch.int64
    assert tree["b"][0].dtype == torch.float32
    assert tree["b"][1] is None
    assert tree["b"][2].dtype == torch.bool


def test_add_scales_the_second_tree():
    a, b = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([10.0, 20.0])}
    assert torch.equal(trees.add(a, b, alpha=-0.5)["w"], torch.tensor([-4.0, -8.0]))


def test_a_signature_reads_as_dtypes_and_shapes():
    assert str(trees.signature({"w": torch.zeros(2, 3), "b": torch.zeros(2, dtype=torch.int64)})) == (
        "int64[2], float32[2, 3]"
    )


KINDS = (torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.int32, torch.float32, torch.int64)


@given(st.permutations(range(len(KINDS))), st.sampled_from([(), (0,), (1,), (3,), (2, 3)]))
def test_tensors_transferred_together_have_the_same_bits(order, shape):
    size = math.prod(shape)
    numbers = torch.arange(-2, size - 2).reshape(shape)
    given = [(numbers * 1000003).to(KINDS[place]) for place in order]
    given += [torch.full(shape, torch.nan), (numbers / 3).expand(2, *shape), torch.ones(2, 3)[:, ::2], numbers / 7]
    for got, want in zip(trees.in_one_transfer(given), given, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert torch.equal(got.reshape(-1).view(torch.uint8), want.contiguous().reshape(-1).view(torch.uint8))


def test_tensors_on_the_cpu_are_returned_unchanged():
    tree = {"a": torch.ones(2), "b": ("said", None, 3)}
    assert trees.on_cpu(tree) is tree
