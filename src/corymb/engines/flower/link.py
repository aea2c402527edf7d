"""How to reach a SuperLink, by the names of files; no torch is needed for it."""

from __future__ import annotations

from pathlib import Path

from corymb.engines.flower.private import Link
from corymb.settings import InvalidInput


def link_to(address: str, ca: Path | None, secret: Path | None) -> Link:
    """How to reach a SuperLink, with the contents of the files."""
    try:
        return Link(address, *(None if path is None else path.expanduser().read_bytes() for path in (ca, secret)))
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be read: {error.strerror}.") from None
