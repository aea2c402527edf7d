"""Hash-chained lines: each holds a hash of itself and the previous line, so that changes are detected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

LINK = "link"
FIRST = "0" * 64
"""The previous link of the first line."""


def linked(row: Mapping[str, Any], before: str) -> dict[str, Any]:
    """A row with its link to the previous one."""
    plain = {name: value for name, value in row.items() if name != LINK}
    text = json.dumps(plain, sort_keys=True, allow_nan=False)
    return {**plain, LINK: hashlib.sha256(f"{before}{text}".encode()).hexdigest()}


def chained(rows: Iterable[Mapping[str, Any]], before: str = FIRST) -> list[dict[str, Any]]:
    """Rows, each linked to the previous one."""
    found = []
    for row in rows:
        found.append(linked(row, before))
        before = found[-1][LINK]
    return found


def broken(rows: Iterable[object]) -> int | None:
    """The number, from 1, of the first row with a wrong link; None if all are right."""
    before = FIRST
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or row != linked(row, before):
            return number
        before = row[LINK]
    return None
