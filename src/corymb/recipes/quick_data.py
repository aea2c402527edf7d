"""The data of quick versions: the original data if they are on this machine, else the package's digits."""

from __future__ import annotations

from typing import Any

from corymb.data.built_in.sources import MNIST, Source

IN_PACKAGE = "the package's 8 x 8 digits, as MNIST is not here (set CORYMB_DATA, or corymb data get mnist-rotated)"


def is_local(source: Source[Any]) -> bool:
    """Whether data can be read without a download: from `CORYMB_DATA`, or complete and verified in the cache."""
    home = source.home
    return home.packed_here is not None or all(home.cached(file) is not None for file in home.files)


def pictures() -> str:
    """The images that quick versions use: `mnist` if it is available, else `digits`."""
    return "mnist" if is_local(MNIST) else "digits"
