"""What one of a user's files holds, whatever its format."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from corymb.data.features import Array
from corymb.settings import InvalidInput


class Part(NamedTuple):
    """Rows of one file."""

    path: Path
    x: Array
    y: Array
    """Labels; of a text file as they stand there, to be typed over all files together."""
    client: Array | None
    test: Array | None
    feature_names: tuple[str, ...]
    first: int
    """The number of the first row, as an editor or a viewer counts."""

    def place(self, row: int) -> str:
        """A row's place, for complaints."""
        return f"{self.path.name}, row {self.first + row}"


def as_mask(values: np.ndarray[Any, Any], path: Path, first: int) -> Array:
    """A `test` column as booleans: true and false, or 1 and 0, in any of the ways a file may write them."""
    words = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
    if values.dtype == np.bool_:
        return values
    for row, value in enumerate(values):
        if str(value).strip().lower() not in words:
            raise InvalidInput(
                f"{path.name}, column 'test', row {first + row}: {str(value)!r} is neither true nor false."
            )
    return np.array([words[str(value).strip().lower()] for value in values], dtype=bool)
