"""Which data small versions take: the originals where they are on this machine, else digits of the package."""

from __future__ import annotations

from typing import Any

from corymb.data.built_in.sources import MNIST, Source

IN_PACKAGE = "8 x 8 digits of the package, for MNIST is not here (CORYMB_DATA, or corymb data get mnist-rotated)"


def at_hand(source: Source[Any]) -> bool:
    """Whether data can be read without a download: they lie under `CORYMB_DATA`, or whole and right in the cache."""
    home = source.home
    return home.packed_here is not None or all(home.cached(file) is not None for file in home.files)


def pictures() -> str:
    """What small versions take for MNIST: `mnist` itself, or `digits`."""
    return "mnist" if at_hand(MNIST) else "digits"
