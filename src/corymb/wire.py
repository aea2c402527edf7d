"""Trees, calls and replies to bytes and back: tensors as safetensors, the rest as JSON in the header, no pickle.

What can travel: tensors, numbers, strings, booleans, None, and dicts, lists, tuples and named tuples made of them;
frozen settings, as plain values; client functions, by name. Named tuples, settings and client functions are looked up
as `module:name` in the packages that the reader allows, and in no others: no code travels, in either direction. Bytes
from anywhere give such a tree or a `WireError`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from corymb.core.client import ClientFn, Share, Shares
from corymb.core.objective import Examples
from corymb.core.sums import Sums
from corymb.settings import InvalidInput, first_line, from_dict, to_dict
from corymb.trees import Tree, leaves

NAMED: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (Examples, Share, Shares, Sums)}
"""Named tuples that every reader accepts, by name."""

HEADER_LIMIT = 16 * 2**20
"""The most bytes of a header. JSON grows in memory when it is parsed, unlike tensors; this bounds a message's cost."""
DEPTH_LIMIT = 64
SCRIPT = "__main__"
"""The module that a started script or a notebook is; every process has its own."""
_KEY = "corymb"


class WireError(ValueError):
    """Bytes that do not hold a tree, or a tree that cannot be sent; the message is one line."""


class NotAllowed(WireError):
    """A message names something in a package that its reader does not allow."""

    def __init__(self, place: str, allow: Sequence[str]) -> None:
        super().__init__(f"{place[:80]!r} is not in a package that may be named here: {', '.join(allow) or 'none'}.")
        self.package = package_of(place)


class NotHere(WireError):
    """A message names something that its reader does not have."""

    def __init__(self, place: str) -> None:
        super().__init__(f"There is no {place[:80]!r} here: both sides must have the same version of it.")
        self.package = package_of(place)


def package_of(place: str) -> str:
    """The package of `module:name`.

    >>> package_of("mylib.rounds:train")
    'mylib'
    """
    return place.partition(":")[0].partition(".")[0][:80]


def pack(tree: Tree) -> bytes:
    """A tree as bytes; `unpack` gives it back, with tensors on the CPU.

    >>> unpack(pack({"a": (torch.tensor([1, 2]), None, "text"), "b": [0.1, True]}))
    {'a': (tensor([1, 2]), None, 'text'), 'b': [0.1, True]}
    """
    tensors: dict[str, Tensor] = {}
    skeleton = json.dumps(_skeleton(tree, tensors, 0))
    try:
        data = save(_apart(tensors), metadata={_KEY: skeleton})
    except Exception as error:
        raise WireError(f"A tensor cannot be sent: {first_line(error)}") from None
    if _header_length(data) > HEADER_LIMIT:
        raise WireError(f"The tree has more than {HEADER_LIMIT} bytes of structure: put long lists into tensors.")
    return data


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, copied only where two share memory, which safetensors refuses."""
    found, seen = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().contiguous()
        memory = dense.untyped_storage().data_ptr()
        found[name] = dense.clone() if memory in seen else dense
        seen.add(memory)
    return found


def unpack(data: bytes, allow: Sequence[str] = ()) -> Tree:
    """The tree that `pack` turned into `data`; it may name functions and classes of the packages in `allow`."""
    skeleton = _read_skeleton(data)
    try:
        tensors = load(data)
    except Exception as error:  # any failure means that the message is malformed
        raise WireError(f"The tensors cannot be read: {first_line(error)}") from None
    used = set[str]()
    tree = _Reader(tensors, used, allow).tree(skeleton)
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
            raise WireError("A dict with keys that are not strings cannot be sent.")
        return {"dict": {name: _skeleton(child, tensors, depth + 1) for name, child in tree.items()}}
    if isinstance(tree, ClientFn):
        return {"function": tree.name}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {"settings": [_place(type(tree)), to_dict(tree)]}
    return _sequence(tree, tensors, depth)


def _sequence(tree: Tree, tensors: dict[str, Tensor], depth: int) -> Any:
    kind = type(tree)
    if kind not in (list, tuple) and not _is_named_tuple(kind):
        raise WireError(f"A {kind.__name__} cannot be sent: only tensors, numbers, text, dicts, tuples and settings.")
    children = [_skeleton(child, tensors, depth + 1) for child in tree]
    if kind in (list, tuple):
        return children if kind is list else {"tuple": children}
    if NAMED.get(kind.__name__) is kind:
        return {kind.__name__: children}
    return {"named": [_place(kind), children]}


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _place(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def find(place: str, allow: Sequence[str]) -> Any:
    """The object at `module:name`, if the module belongs to one of the packages in `allow`."""
    if not isinstance(place, str) or not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", place):
        raise WireError(f"{str(place)[:80]!r} is not of the form module:name.")
    module, _, name = place.partition(":")
    if not any(module == package or module.startswith(f"{package}.") for package in allow):
        raise NotAllowed(place, allow)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise NotHere(place) from None
    home = getattr(found, "__module__", None)
    if home != module:  # names that a module merely imports are refused
        raise WireError(f"{place[:80]!r} is defined in {home}: name it there.")
    return found


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


class _Reader:
    """Builds a tree from its skeleton."""

    def __init__(self, tensors: Mapping[str, Tensor], used: set[str], allow: Sequence[str]) -> None:
        self.tensors, self.used, self.allow = tensors, used, allow

    def tree(self, skeleton: Any, depth: int = 0) -> Tree:
        if depth > DEPTH_LIMIT:
            raise WireError(f"The tree is more than {DEPTH_LIMIT} levels deep.")
        if isinstance(skeleton, list):
            return [self.tree(child, depth + 1) for child in skeleton]
        if not isinstance(skeleton, dict):
            return skeleton
        if len(skeleton) != 1:
            raise WireError(f"A node of the tree has {len(skeleton)} kinds, wanted one.")
        ((kind, inside),) = skeleton.items()
        if kind == "tensor":
            return self._tensor(inside)
        if kind == "dict" and isinstance(inside, dict):
            return {name: self.tree(child, depth + 1) for name, child in inside.items()}
        if kind == "function":
            return self._function(inside)
        if isinstance(inside, list):
            if kind in ("settings", "named") and len(inside) == 2:
                place, contents = inside
                return self._settings(place, contents) if kind == "settings" else self._named(place, contents, depth)
            if kind == "tuple":
                return tuple(self.tree(child, depth + 1) for child in inside)
            if kind in NAMED:
                return self._built(NAMED[kind], inside, depth)
        raise WireError(f"A node of the tree is of the unknown kind {str(kind)[:40]!r}.")

    def _tensor(self, name: Any) -> Tensor:
        if not isinstance(name, str) or name not in self.tensors or name in self.used:
            raise WireError(f"The tree names a tensor that is missing, or one twice: {str(name)[:40]!r}.")
        self.used.add(name)
        return self.tensors[name]

    def _function(self, place: Any) -> ClientFn[..., Any]:
        found = find(place, self.allow)
        if not isinstance(found, ClientFn):
            raise WireError(f"{place[:80]!r} is not a client function.")
        return found

    def _settings(self, place: Any, values: Any) -> Any:
        found = find(place, self.allow)
        frozen = dataclasses.is_dataclass(found) and isinstance(found, type) and found.__dataclass_params__.frozen  # type: ignore[attr-defined]
        if not frozen or not isinstance(values, dict):
            raise WireError(f"{place[:80]!r} is not a class of settings.")
        try:
            return from_dict(found, values)
        except (InvalidInput, TypeError) as problem:
            raise WireError(f"{place[:80]!r} cannot be read: {first_line(problem)}") from None

    def _named(self, place: Any, children: Any, depth: int) -> Tree:
        found = find(place, self.allow)
        if not _is_named_tuple(found) or not isinstance(children, list):
            raise WireError(f"{place[:80]!r} is not a named tuple.")
        return self._built(found, children, depth)

    def _built(self, kind: type[Any], children: list[Any], depth: int) -> Tree:
        if len(children) != len(kind._fields):
            raise WireError(f"A {kind.__name__} has {len(kind._fields)} fields, got {len(children)}.")
        return kind(*(self.tree(child, depth + 1) for child in children))
