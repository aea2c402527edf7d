"""Lines that are chained: each holds the hash of itself and of the one before, so that none can be changed unseen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

LINK = "link"
FIRST = "0" * 64
"""What the first line follows."""


def linked(row: Mapping[str, Any], before: str) -> dict[str, Any]:
    """A row with its link to the one before."""
    plain = {name: value for name, value in row.items() if name != LINK}
    text = json.dumps(plain, sort_keys=True, allow_nan=False)
    return {**plain, LINK: hashlib.sha256(f"{before}{text}".encode()).hexdigest()}


def chained(rows: Iterable[Mapping[str, Any]], before: str = FIRST) -> list[dict[str, Any]]:
    """Rows, each linked to the one before it."""
    found = []
    for row in rows:
        found.append(linked(row, before))
        before = found[-1][LINK]
    return found


def broken(rows: Iterable[object]) -> int | None:
    """The number, from 1, of the first row that is not linked as it should be; None if all are."""
    before = FIRST
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or row != linked(row, before):
            return number
        before = row[LINK]
    return None
