"""Defaults that suit the data: step size and number of rounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from corymb.data.schema import DataSchema
from corymb.local import Descent
from corymb.settings import to_dict


class Defaults(NamedTuple):
    """What replaces an algorithm's own defaults; None leaves its default in place."""

    lr: float | None = None
    rounds: int | None = None


def defaults_for(schema: DataSchema) -> Defaults:
    """The defaults for data of a schema.

    >>> defaults_for(DataSchema(task="classification", features=(64,), classes=("0", "1")))
    Defaults(lr=0.3, rounds=40)
    """
    if schema.task == "classification":
        small = not schema.standardise and not schema.picture and schema.size <= 100
        return Defaults(lr=0.3, rounds=40) if small else Defaults()
    if schema.standardise:
        # The mean squared error over d standardised features has curvature of at most 2 (d + 1), reached if all of
        # them are perfectly correlated: this step size is safe even then.
        return Defaults(lr=min(0.1, 0.5 / (schema.size + 1)))
    return Defaults()


def with_defaults(algorithm: type, given: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """Settings as plain values: what is given, else what suits the data, else the algorithm's own defaults.

    Nested settings are completed field by field, so that giving `local.lr` leaves `local.steps` as it was.
    """
    settings = dict(given)
    for field in dataclasses.fields(algorithm):
        own, value = field.default, given.get(field.name, {})
        if field.name == "rounds" and defaults.rounds is not None:
            settings.setdefault("rounds", defaults.rounds)
        elif isinstance(value, Mapping) and isinstance(own, Descent):
            settings[field.name] = _descent(own, value, defaults)
        elif isinstance(value, Mapping) and dataclasses.is_dataclass(own) and not isinstance(own, type):
            settings[field.name] = {**to_dict(own), **with_defaults(type(own), value, defaults)}
    return settings


def _descent(own: Descent, given: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    suited = to_dict(own) if defaults.lr is None else {**to_dict(own), "lr": defaults.lr}
    if "epochs" in given:
        suited["steps"] = None  # it is one or the other
    return {**suited, **given}
