"""What one of a user's files holds, whatever its format."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from corymb.data.features import Array
from corymb.settings import InvalidInput

_TRUTH_VALUES = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}


class FileContents(NamedTuple):
    """The rows of one file."""

    path: Path
    x: Array
    y: Array | None
    """Labels, if there are any. Those of a text file are still text: their type is decided over all files together."""
    client: Array | None
    test: Array | None
    feature_names: tuple[str, ...]
    first: int
    """The number of the first row, as an editor or a viewer counts."""

    def place(self, row: int) -> str:
        """Where a row is, for error messages."""
        return f"{self.path.name}, row {self.first + row}"


def as_mask(values: Array, path: Path, first: int) -> Array:
    """A `test` column as booleans: true and false, or 1 and 0, in any of the ways a file may write them."""
    if values.dtype == np.bool_:
        return values
    mask = np.empty(len(values), dtype=bool)
    for row, value in enumerate(values):
        word = str(value).strip().lower()
        if word not in _TRUTH_VALUES:
            raise InvalidInput(
                f"{path.name}, column 'test', row {first + row}: {str(value)!r} is neither true nor false."
            )
        mask[row] = _TRUTH_VALUES[word]
    return mask
