"""Trees to bytes and back: tensors in the safetensors format, the rest as a JSON skeleton in its header, no pickle.

What can travel: tensors, numbers, strings, booleans, None, and dicts, lists, tuples and the named tuples of `NAMED`
that are made of them. Nothing else, in either direction: bytes from anywhere give such a tree or a `WireError`, and
never run code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from corymb.core.client import Examples, Share, Shares
from corymb.core.snapshot import Snapshot
from corymb.core.sums import Sums
from corymb.trees import Tree, leaves

NAMED: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (Examples, Share, Shares, Sums)}
"""The named tuples that may travel, by name."""

HEADER_LIMIT = 16 * 2**20
"""Bytes of header. JSON grows in memory as it is read, tensors do not, so this bounds what a message can cost."""
DEPTH_LIMIT = 64
_KEY = "corymb"


class WireError(ValueError):
    """Bytes that are no tree, or a tree that cannot travel: one line."""


def pack(tree: Tree) -> bytes:
    """A tree as bytes; `unpack` gives it back, with tensors on the CPU.

    >>> unpack(pack({"a": (torch.tensor([1, 2]), None, "text"), "b": [0.1, True]}))
    {'a': (tensor([1, 2]), None, 'text'), 'b': [0.1, True]}
    """
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_skeleton(tree, tensors, 0))
    try:
        data = save({name: _dense(tensor) for name, tensor in tensors.items()}, metadata={_KEY: skeleton})
    except Exception as error:
        raise WireError(f"A tensor cannot travel: {_line(error)}") from None
    if _header_length(data) > HEADER_LIMIT:
        raise WireError(f"The tree has more than {HEADER_LIMIT} bytes of structure: put long lists into tensors.")
    return data


def _dense(tensor: Tensor) -> Tensor:
    """A copy on the CPU: safetensors refuses two tensors that share memory."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def unpack(data: bytes) -> Tree:
    """The tree that `pack` made `data` from."""
    skeleton = _read_skeleton(data)
    try:
        tensors = load(data)
    except Exception as error:  # whatever the reader trips over, the message is what is wrong
        raise WireError(f"The tensors cannot be read: {_line(error)}") from None
    used = set[str]()
    tree = _tree(skeleton, tensors, used)
    if len(used) != len(tensors):
        raise WireError(f"{len(tensors) - len(used)} tensors have no place in the tree.")
    for tensor in leaves(tree):
        if tensor.dtype == torch.bool and bool((tensor.view(torch.uint8) > 1).any()):
            raise WireError("A boolean is neither 0 nor 1.")
    return tree


# ---- skeletons: numbers, strings, null and lists stand for themselves, {kind: contents} for everything else


def _skeleton(tree: Tree, tensors: dict[str, Tensor], depth: int) -> Any:
    if depth > DEPTH_LIMIT:
        raise WireError(f"The tree is more than {DEPTH_LIMIT} levels deep.")
    if isinstance(tree, Tensor):
        name = str(len(tensors))
        tensors[name] = tree
        return {"tensor": name}
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if type(tree) is dict:
        if not all(isinstance(name, str) for name in tree):
            raise WireError("A dict with names that are no strings cannot travel.")
        return {"dict": {name: _skeleton(child, tensors, depth + 1) for name, child in tree.items()}}
    kind = type(tree).__name__
    if type(tree) not in (list, tuple, NAMED.get(kind)):
        raise WireError(f"A {kind} cannot travel: only tensors, numbers, strings, dicts, lists, tuples, {_names()}.")
    children = [_skeleton(child, tensors, depth + 1) for child in tree]
    return children if kind == "list" else {kind: children}


def _read_skeleton(data: bytes) -> Any:
    if len(data) < 8:
        raise WireError(f"{len(data)} bytes are too few for a message.")
    length = _header_length(data)
    if length > min(HEADER_LIMIT, len(data) - 8):
        raise WireError(f"The header's length, {length}, is more than the message or the limit allows.")
    try:
        return json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_KEY])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError(f"The header cannot be read: {type(error).__name__}.") from None


def _header_length(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


def _tree(skeleton: Any, tensors: Mapping[str, Tensor], used: set[str], depth: int = 0) -> Tree:
    if depth > DEPTH_LIMIT:
        raise WireError(f"The tree is more than {DEPTH_LIMIT} levels deep.")
    if isinstance(skeleton, list):
        return [_tree(child, tensors, used, depth + 1) for child in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if len(skeleton) != 1:
        raise WireError(f"A node of the tree has {len(skeleton)} kinds, wanted one.")
    ((kind, inside),) = skeleton.items()
    if kind == "tensor":
        return _tensor(inside, tensors, used)
    if kind == "dict" and isinstance(inside, dict):
        return {name: _tree(child, tensors, used, depth + 1) for name, child in inside.items()}
    build = _builder(kind)
    if build is None or not isinstance(inside, list):
        raise WireError(f"A node of the tree is of the unknown kind {kind[:40]!r}.")
    return build([_tree(child, tensors, used, depth + 1) for child in inside])


def _tensor(name: Any, tensors: Mapping[str, Tensor], used: set[str]) -> Tensor:
    if not isinstance(name, str) or name not in tensors or name in used:
        raise WireError(f"The tree names a tensor that is not there, or twice: {str(name)[:40]!r}.")
    used.add(name)
    return tensors[name]


def _builder(kind: str) -> Callable[[list[Tree]], Tree] | None:
    if kind == "tuple":
        return tuple
    named = NAMED.get(kind)
    return None if named is None else lambda children: _named(named, children)


def _named(kind: type[Any], children: list[Tree]) -> Tree:
    if len(children) != len(kind._fields):
        raise WireError(f"A {kind.__name__} has {len(kind._fields)} fields, got {len(children)}.")
    return kind(*children)


def _names() -> str:
    return ", ".join(NAMED)


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__


# ---- snapshots


def snapshot_to_bytes(snapshot: Snapshot) -> bytes:
    """All of a snapshot, to be kept or sent."""
    return pack(snapshot_to_tree(snapshot))


def snapshot_to_tree(snapshot: Snapshot) -> dict[str, Any]:
    """All of a snapshot as a tree that can travel."""
    return {name: _plain(getattr(snapshot, name)) for name in _SNAPSHOT}


def snapshot_from_bytes(data: bytes) -> Snapshot:
    """The snapshot that `snapshot_to_bytes` wrote, its tensors on the CPU."""
    return snapshot_from_tree(unpack(data))


def snapshot_from_tree(tree: Tree) -> Snapshot:
    """The snapshot that `snapshot_to_tree` took apart; a tree from anywhere gives one or a `WireError`."""
    if not isinstance(tree, dict) or set(tree) != set(_SNAPSHOT):
        raise WireError("The message is no snapshot.")
    for name, right in _SNAPSHOT.items():
        if not right(tree[name]):
            raise WireError(f"The snapshot's {name} is a {type(tree[name]).__name__} of the wrong kind.")
    if len({len(rows) for rows in tree["models"].values()}) != 1:
        raise WireError("The snapshot's models differ in number from one parameter to another.")
    return Snapshot(**tree)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _is_params(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(leaf, Tensor) for leaf in value.values())


def _is_labels(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 1


_SNAPSHOT: Mapping[str, Callable[[Any], bool]] = {
    "models": lambda value: _is_params(value) and all(leaf.dim() > 0 for leaf in value.values()),
    "labels": _is_labels,
    "round": lambda value: type(value) is int,
    "stage": lambda value: isinstance(value, str),
    "shares": lambda value: value is None or isinstance(value, Tensor),
    "carry": _is_params,
    "notes": lambda value: isinstance(value, dict),
    "fingerprint": lambda value: isinstance(value, str),
    "seed": lambda value: type(value) is int,
    "clock": lambda value: type(value) is int,
}
