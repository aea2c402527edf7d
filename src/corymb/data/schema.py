"""What a data set's examples are like: all that the choice of a model and of a step size needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from corymb.data.labels import Task


class DataSchema(NamedTuple):
    """The task and the shape of examples, as plain values that are kept with a run."""

    task: Task
    features: tuple[int, ...]
    """The shape of one example."""
    classes: tuple[str, ...] = ()
    standardise: bool = False
    """Whether features are in raw units, still to be standardised."""
    codes: bool = False
    """Whether features are whole numbers that stand for something, such as letters."""
    linear: bool = False
    """Whether the data were made by linear models without an intercept, whose parameters are known."""
    feature_names: tuple[str, ...] = ()
    """The columns of a table, in the order of the features."""

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
        """The fields as a mapping that JSON can hold."""
        return self._asdict()

    @staticmethod
    def read(values: Mapping[str, Any]) -> DataSchema:
        """The schema from what `describe` gave, or from the same read out of a file."""
        rows = {name: tuple(values.get(name, ())) for name in ("features", "classes", "feature_names")}
        return DataSchema(**{**values, **rows})


class Described(Protocol):
    """Whatever can say what its examples are like: a data set, an engine."""

    @property
    def schema(self) -> Mapping[str, Any]: ...


def schema_of(data: Described) -> DataSchema:
    """What the examples of a data set, or of an engine's clients, are like."""
    return DataSchema.read(data.schema)
