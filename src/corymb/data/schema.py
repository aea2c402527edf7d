"""What a data set's examples are like: all that the choice of a model and of a step size needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from corymb.choices import Task
from corymb.data.prepare.road import Preparation


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
    preparation: Preparation | None = None
    """How users' cells became features, which new examples have to go through as well."""
    notes: tuple[str, ...] = ()
    """What was dropped, filled in or found to be unusual."""
    clients: Mapping[str, int] = MappingProxyType({})
    """How many clients have few training examples, one class only or no test example."""

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
        prepared = None if self.preparation is None else self.preparation.describe()
        return {**self._asdict(), "preparation": prepared, "clients": dict(self.clients)}

    @staticmethod
    def read(values: Mapping[str, Any]) -> DataSchema:
        """The schema from what `describe` gave, or from the same read out of a file."""
        rows = {name: tuple(values.get(name, ())) for name in ("features", "classes", "feature_names", "notes")}
        prepared = values.get("preparation")
        return DataSchema(**{**values, **rows, "preparation": None if prepared is None else Preparation.read(prepared)})


class Described(Protocol):
    """Whatever can say what its examples are like: a data set, an engine."""

    @property
    def schema(self) -> Mapping[str, Any]: ...


def schema_of(data: Described) -> DataSchema:
    """What the examples of a data set, or of an engine's clients, are like."""
    return DataSchema.read(data.schema)
