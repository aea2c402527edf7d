"""Read the json files of LEAF (Caldas et al. 2018): folders `train` and `test` of shards with some users each.

A shard is `{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from corymb.settings import InvalidInput, require


class OfUser(NamedTuple):
    """One user's examples in one shard."""

    name: str
    x: list[Any]
    y: list[Any]


def users_in(folder: Path, part: Literal["train", "test"]) -> Iterator[OfUser]:
    """Yield the examples of all users in one part, by shard; a user may occur in several shards."""
    shards = sorted((folder / part).glob("*.json"))
    require(len(shards) > 0, f"{folder / part} has no json files: LEAF writes shards into folders train and test.")
    for shard in shards:
        yield from _users_of(shard)


def _users_of(shard: Path) -> Iterator[OfUser]:
    try:
        contents = json.loads(shard.read_text())
        users = [OfUser(name, own["x"], own["y"]) for name, own in contents["user_data"].items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{shard} is not a shard of LEAF ({type(error).__name__}: {error}).") from None
    for user in users:
        require(
            isinstance(user.x, list) and isinstance(user.y, list) and len(user.x) == len(user.y),
            f"{shard}: user {user.name!r} does not have one label for each example.",
        )
        yield user
