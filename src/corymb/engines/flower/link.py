"""Makes a `Link` from the names of files; does not import torch."""

from __future__ import annotations

from pathlib import Path

from corymb.engines.flower.private import Link
from corymb.settings import InvalidInput


def link_to(address: str, ca: Path | None, secret: Path | None) -> Link:
    """The link to a SuperLink, with the contents of the certificate and secret files."""
    try:
        return Link(address, *(None if path is None else path.expanduser().read_bytes() for path in (ca, secret)))
    except OSError as error:
        raise InvalidInput(f"{error.filename} cannot be read: {error.strerror}.") from None
