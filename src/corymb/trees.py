"""Trees of tensors: nested dicts, tuples, lists and named tuples with tensors at the leaves.

`torch.utils._pytree` would do, but it is private. `None` is structure, not a leaf. Numbers are allowed at the leaves;
they are converted to tensors (`as_tensors`) before they leave a client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

Params = dict[str, Tensor]  # one model; the same dict with a leading axis is many models
Tree = Any  # a Tensor, a number, None, or a dict, list, tuple or NamedTuple of trees
T = TypeVar("T")


class Structure(NamedTuple):
    """The structure of a tree without its leaves; equal for trees of the same structure."""

    kind: type | None  # None marks a leaf
    names: tuple[str, ...]
    children: tuple[Structure, ...]


LEAF = Structure(None, (), ())


def flatten(tree: Tree) -> tuple[list[Any], Structure]:
    """The leaves in order, and the structure for `unflatten`.

    >>> leaves, structure = flatten({"b": 2, "a": (1, None)})
    >>> leaves
    [1, 2]
    >>> unflatten(structure, leaves)
    {'a': (1, None), 'b': 2}
    """
    leaves: list[Any] = []
    return leaves, _flatten_into(leaves, tree)


def _flatten_into(leaves: list[Any], tree: Tree) -> Structure:
    if tree is None:
        return Structure(type(None), (), ())
    if isinstance(tree, dict):
        names = tuple(sorted(tree))  # insertion order must not matter
        values = [tree[name] for name in names]
        if set(map(type, values)) == {Tensor}:  # fast path for models
            leaves += values
            return Structure(dict, names, (LEAF,) * len(names))
        return Structure(dict, names, tuple([_flatten_into(leaves, value) for value in values]))
    if isinstance(tree, (tuple, list)):
        return Structure(type(tree), (), tuple([_flatten_into(leaves, child) for child in tree]))
    leaves.append(tree)
    return LEAF


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Tree:
    """The tree with `structure` and `leaves`."""
    rest = iter(leaves)
    try:
        tree = _unflatten_from(rest, structure)
    except StopIteration:
        raise ValueError(f"{len(leaves)} leaves are fewer than the structure has") from None
    if next(rest, None) is not None:
        raise ValueError(f"{len(leaves)} leaves are more than the structure has")
    return tree


def _unflatten_from(rest: Any, structure: Structure) -> Tree:
    kind = structure.kind
    if kind is None:
        return next(rest)
    if kind is type(None):
        return None
    children = [next(rest) if child is LEAF else _unflatten_from(rest, child) for child in structure.children]
    if kind is dict:
        return dict(zip(structure.names, children, strict=True))
    return kind(*children) if hasattr(kind, "_fields") else kind(children)


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors among the leaves, in the order of `flatten`."""
    found: list[Tensor] = []
    _gather(found, tree)
    return found


def _gather(found: list[Tensor], tree: Tree) -> None:
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, dict):
        for name in sorted(tree):
            _gather(found, tree[name])
    elif isinstance(tree, (tuple, list)):
        for child in tree:
            _gather(found, child)


def tree_map(fn: Callable[..., Any], tree: T, *others: Tree) -> T:
    """Apply `fn` to corresponding leaves of trees of the same structure."""
    first, structure = flatten(tree)
    rest = [flatten(other) for other in others]
    if any(other != structure for _, other in rest):
        raise ValueError("trees of different structure")
    mapped: T = unflatten(structure, [fn(*row) for row in zip(first, *(flat for flat, _ in rest), strict=True)])
    return mapped


def map_tensors(fn: Callable[[Tensor], Any], tree: T) -> T:
    """Apply `fn` to every tensor; other leaves are unchanged."""
    return tree_map(lambda leaf: fn(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def as_tensors(tree: T) -> T:
    """Convert numbers at the leaves to tensors."""
    return tree_map(_as_tensor, tree)


def _as_tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    try:
        return torch.as_tensor(leaf)
    except (TypeError, ValueError, RuntimeError):
        what = f"{leaf!r}"[:40] if isinstance(leaf, str) else f"a {type(leaf).__name__}"
        raise TypeError(f"{what} cannot be a tensor: wanted tensors or numbers, in dicts, lists or tuples") from None


def on_cpu(tree: T) -> T:
    """The tree on the CPU, with one transfer (and one synchronisation) per device, however many tensors there are."""
    flat, structure = flatten(tree)
    away = [leaf for leaf in flat if isinstance(leaf, Tensor) and leaf.device.type != "cpu"]
    if not away:
        return tree
    here: dict[int, Tensor] = {}
    for device in {leaf.device for leaf in away}:
        on_device = [leaf for leaf in away if leaf.device == device]
        here |= zip(map(id, on_device), in_one_transfer(on_device), strict=True)
    found: T = unflatten(structure, [here.get(id(leaf), leaf) for leaf in flat])
    return found


def in_one_transfer(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies on the CPU of tensors that are on one device, by a single transfer of all their bytes."""
    # The largest elements first, so that every tensor starts at a multiple of its element size.
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    raw = torch.cat([tensors[i].contiguous().reshape(-1).view(torch.uint8) for i in order]).cpu()
    parts = dict(zip(order, raw.split([tensors[i].nbytes for i in order]), strict=True))
    return [parts[i].view(tensor.dtype).view(tensor.shape) for i, tensor in enumerate(tensors)]


def take(models: T, index: Tensor | int | slice) -> T:
    """One row, or several, of every leaf: `take(models, label)` is the model of that label.

    >>> models = {"weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    >>> take(models, 1)
    {'weight': tensor([3., 4.])}
    """
    return map_tensors(lambda leaf: leaf[index], models)


def count(models: Tree) -> int:
    """The number of rows of the leaves, which is the number of models.

    >>> count({"weight": torch.zeros(3, 2), "bias": torch.zeros(3)})
    3
    """
    return int(leaves(models)[0].shape[0])


def stack(trees: Sequence[T]) -> T:
    """Trees of one structure as one tree with a leading axis.

    >>> stack([{"bias": torch.tensor(1.0)}, {"bias": torch.tensor(2.0)}])
    {'bias': tensor([1., 2.])}
    """
    return tree_map(lambda *rows: torch.stack([torch.as_tensor(row) for row in rows]), trees[0], *trees[1:])


def concat(trees: Sequence[T]) -> T:
    """Concatenate trees along the leading axis: n and m models become n + m."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *rows: torch.cat(rows), trees[0], *trees[1:])


def prefixed(prefix: str, params: Params) -> Params:
    """The same tensors under prefixed names, so that one dict can hold several models.

    >>> prefixed("one", {"weight": torch.ones(2)})
    {'one/weight': tensor([1., 1.])}
    """
    return {f"{prefix}/{name}": value for name, value in params.items()}


def part_of(params: Mapping[str, Tensor], prefix: str) -> Params:
    """The tensors that `prefixed` stored under a prefix, with their original names."""
    start = f"{prefix}/"
    return {name.removeprefix(start): value for name, value in params.items() if name.startswith(start)}


def align_leading(rows: Tensor, like: Tensor) -> Tensor:
    """`rows`, one number per row of `like`, reshaped to broadcast over its other axes; `rows` may have several axes.

    >>> align_leading(torch.ones(2), torch.zeros(2, 3, 4)).shape
    torch.Size([2, 1, 1])
    """
    return rows.reshape((*rows.shape, *[1] * (like.dim() - rows.dim())))


def add(tree: T, other: T, alpha: float | Tensor = 1.0) -> T:
    """tree + alpha · other, leaf by leaf.

    >>> add({"bias": torch.tensor(1.0)}, {"bias": torch.tensor(4.0)}, alpha=-0.5)
    {'bias': tensor(-1.)}
    """
    return tree_map(lambda a, b: a + alpha * b, tree, other)


def nbytes(tree: Tree) -> int:
    """The total size in bytes of the tensors in a tree, as counted for messages."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


class Signature(NamedTuple):
    """Structure, shapes and dtypes: two replies can be added up only if these agree."""

    structure: Structure
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def __str__(self) -> str:
        parts = (f"{dtype}{list(shape)}" for shape, dtype in zip(self.shapes, self.dtypes, strict=True))
        return ", ".join(parts) or "nothing"


def signature(tree: Tree, *, rows: bool = False) -> Signature:
    """The signature of a tree, or of one of its rows (`rows`)."""
    flat, structure = flatten(tree)
    tensors = [torch.as_tensor(leaf) for leaf in flat]
    shapes = tuple(tuple(t.shape[1:] if rows else t.shape) for t in tensors)
    return Signature(structure, shapes, tuple(str(t.dtype).removeprefix("torch.") for t in tensors))
