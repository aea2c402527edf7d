"""Calls, replies and snapshots as bytes, for sending and for storage. Each is checked as it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from corymb.core.client import ClientFn
from corymb.core.engine import Call, Part, Version
from corymb.core.snapshot import Snapshot
from corymb.trees import Tree
from corymb.wire import WireError, pack, unpack

OURS = ("corymb",)
"""The packages whose functions and classes a message may name, unless its reader allows more."""


def call_to_bytes(call: Call) -> bytes:
    """A call as bytes for a host."""
    return pack(call_to_tree(call))


def call_to_tree(call: Call) -> dict[str, Any]:
    """A call as a tree for `pack`, without the fields that only the server uses to check replies."""
    fields = call._replace(near=None)._asdict() | {
        "version": tuple(call.version),
        "since": {host: tuple(version) for host, version in call.since.items()},
    }
    del fields["near"], fields["guard"], fields["like"]
    return fields


def call_from_bytes(data: bytes, allow: Sequence[str] = OURS) -> Call:
    """The call that `call_to_bytes` wrote; the functions and classes it names must belong to packages in `allow`."""
    return call_from_tree(unpack(data, allow))


def call_from_tree(tree: Tree) -> Call:
    """The call for a tree from `call_to_tree`; raises WireError for any other tree."""
    tree = _checked(tree, _CALL, "call")
    since = {host: Version(*version) for host, version in tree["since"].items()}
    return Call(**{**tree, "version": Version(*tree["version"]), "since": since})


def part_to_bytes(part: Part) -> bytes:
    """A host's reply as bytes, without the sender, which the receiver determines itself."""
    return pack(part_to_tree(part))


def part_to_tree(part: Part) -> dict[str, Any]:
    """A host's reply as a tree for `pack`."""
    rejected = [[client, reason] for client, reason in part.rejected]
    return {"ids": part.ids, "value": part.value, "rejected": rejected, "spread": part.spread, "error": part.error}


def part_from_bytes(data: bytes, host: str, allow: Sequence[str] = OURS) -> Part:
    """The part that `part_to_bytes` wrote, received from `host`."""
    return part_from_tree(unpack(data, allow), host)


def part_from_tree(tree: Tree, host: str) -> Part:
    """The part for a tree from `part_to_tree`, received from `host`; raises WireError for any other tree."""
    tree = _checked(tree, _PART, "reply")
    rejected = [(client, reason) for client, reason in tree["rejected"]]
    return Part(tree["ids"], tree["value"], rejected, host, tree["spread"], tree["error"])


def _checked(tree: Tree, fields: Mapping[str, Callable[[Any], bool]], what: str) -> dict[str, Any]:
    if not isinstance(tree, dict) or set(tree) != set(fields):
        raise WireError(f"The message is not a {what}.")
    for name, right in fields.items():
        if not right(tree[name]):
            raise WireError(f"The {what}'s {name} is a {type(tree[name]).__name__} of the wrong kind.")
    return tree


def _is_version(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(type(number) is int for number in value)


def _is_rejection(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and type(value[0]) is int and isinstance(value[1], str)


_CALL: Mapping[str, Callable[[Any], bool]] = {
    "fn": lambda value: isinstance(value, ClientFn),
    "args": lambda value: isinstance(value, tuple),
    "options": lambda value: isinstance(value, dict),
    "key": lambda value: isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 0,
    "verb": lambda value: value in ("map", "sum"),
    "version": _is_version,
    "since": lambda value: isinstance(value, dict) and all(map(_is_version, value.values())),
    "readonly": lambda value: type(value) is bool,
}
_PART: Mapping[str, Callable[[Any], bool]] = {
    "ids": lambda value: isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 1,
    "value": lambda value: True,
    "rejected": lambda value: isinstance(value, list) and all(map(_is_rejection, value)),
    "spread": lambda value: type(value) is bool,
    "error": lambda value: isinstance(value, str),
}


# ---- snapshots


def snapshot_to_bytes(snapshot: Snapshot) -> bytes:
    """A complete snapshot as bytes."""
    return pack(snapshot_to_tree(snapshot))


def snapshot_to_tree(snapshot: Snapshot) -> dict[str, Any]:
    """A complete snapshot as a tree for `pack`."""
    return {name: _plain(getattr(snapshot, name)) for name in _SNAPSHOT}


def snapshot_from_bytes(data: bytes) -> Snapshot:
    """The snapshot that `snapshot_to_bytes` wrote, with tensors on the CPU."""
    return snapshot_from_tree(unpack(data))


def snapshot_from_tree(tree: Tree) -> Snapshot:
    """The snapshot for a tree from `snapshot_to_tree`; raises WireError for any other tree."""
    tree = {"units": "", **tree} if isinstance(tree, dict) else tree  # earlier run folders do not have it
    tree = _checked(tree, _SNAPSHOT, "snapshot")
    if len({len(rows) for rows in tree["models"].values()}) != 1:
        raise WireError("The parameters of the snapshot's models differ in their number of rows: wanted k for each.")
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
    "units": lambda value: isinstance(value, str),
    "seed": lambda value: type(value) is int,
    "clock": lambda value: type(value) is int,
}
