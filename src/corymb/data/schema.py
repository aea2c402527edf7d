"""What a data set is like, as far as the choice of a model and of a step size goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from corymb.data.labels import Task


class DataSchema(NamedTuple):
    """Plain values, small enough to be kept with a run."""

    task: Task
    features: tuple[int, ...]
    """The shape of one example."""
    classes: tuple[str, ...] = ()
    standardise: bool = False
    """A table in raw units."""
    codes: bool = False
    """Features are whole numbers that stand for something, such as letters."""
    linear: bool = False
    """Made by linear models without an intercept, whose parameters are known."""

    @property
    def picture(self) -> bool:
        """Whether an example is a picture: channels, rows, columns."""
        return len(self.features) == 3

    @property
    def size(self) -> int:
        """How many numbers an example has."""
        size = 1
        for length in self.features:
            size *= length
        return size

    def describe(self) -> dict[str, Any]:
        """As JSON has it."""
        return self._asdict()

    @staticmethod
    def read(values: Mapping[str, Any]) -> DataSchema:
        """What `describe` gave, perhaps by way of a file."""
        return DataSchema(**{**values, "features": tuple(values["features"]), "classes": tuple(values["classes"])})


class Described(Protocol):
    """Whatever can say what its examples are like: a data set, an engine."""

    @property
    def schema(self) -> Mapping[str, Any]: ...


def schema_of(data: Described) -> DataSchema:
    """What the examples of a data set, or of an engine's clients, are like."""
    return DataSchema.read(data.schema)
