"""Search spaces: ranges as users write them, and default ranges for an algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corymb.core.snapshot import Algorithm
from corymb.local import Descent
from corymb.settings import InvalidInput, require

FORMS = "log:LOW:HIGH, float:LOW:HIGH, int:LOW:HIGH, logint:LOW:HIGH or choice:A,B,C"
Space = dict[str, "Range"]
"""Ranges by the names of settings, `local.lr` for a nested one."""


@dataclass(frozen=True)
class Range:
    """An interval of numbers, or a set of values to choose from."""

    kind: Literal["log", "float", "int", "logint", "choice"]
    low: float = 0
    high: float = 0
    choices: tuple[Any, ...] = ()

    def suggest(self, trial: Any, name: str) -> Any:
        """A value for an Optuna trial; floats are rounded to four digits, so that they can be written out exactly."""
        if self.kind == "choice":
            return trial.suggest_categorical(name, self.choices)
        if self.kind in ("int", "logint"):
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.kind == "logint")
        return float(f"{trial.suggest_float(name, self.low, self.high, log=self.kind == 'log'):.4g}")

    @property
    def first(self) -> Any:
        """A value of the range."""
        if self.kind == "choice":
            return self.choices[0]
        return int(self.low) if self.kind in ("int", "logint") else float(self.low)


def read_range(name: str, text: str | Sequence[Any]) -> Range:
    """Parse a range; in Python a sequence of values is also accepted.

    >>> read_range("local.lr", "log:0.001:1")
    Range(kind='log', low=0.001, high=1.0, choices=())
    """
    if not isinstance(text, str):
        require(len(text) > 0, f"{name}: give at least one value to choose from.")
        return Range("choice", choices=tuple(text))
    kind, _, rest = text.partition(":")
    try:
        if kind == "choice" and rest:
            return Range("choice", choices=tuple(_value(part) for part in rest.split(",")))
        low, high = (float(end) for end in rest.split(":"))
        whole = kind not in ("int", "logint") or (low == int(low) and high == int(high))
        if kind in ("log", "float", "int", "logint") and low < high and whole and (low > 0 or "log" not in kind):
            return Range(kind, low, high)  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        pass
    raise InvalidInput(f"{name}={text} is not a range: wanted {FORMS}, with LOW < HIGH (and LOW > 0 for log).")


def _value(text: str) -> Any:
    """Parse a choice: a number, true, false or none if it looks like one, else text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def read_space(params: Sequence[str]) -> dict[str, str]:
    """Ranges by name, from the `NAME=RANGE` arguments of a command line."""
    pairs = {}
    for text in params:
        name, equals, span = text.partition("=")
        require(bool(name and equals), f"--param {text}: wanted NAME=RANGE, such as local.lr=log:0.001:1.")
        pairs[name] = span
    return pairs


def default_space(algorithm: Algorithm, given: Mapping[str, Any], clients: int) -> Space:
    """Ranges of the most important settings around the algorithm's values; given settings are not searched."""
    space: Space = {}
    for field in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        own, fixed = getattr(algorithm, field.name), given.get(field.name)
        if field.name == "k" and fixed is None and clients > 2:
            space["k"] = Range("int", 2, min(8, clients))
        elif isinstance(own, Descent) and field.name == "local":
            set_already = fixed if isinstance(fixed, Mapping) else {}
            if "lr" not in set_already:
                space["local.lr"] = Range("log", float(f"{own.lr / 30:.1g}"), float(f"{own.lr * 10:.1g}"))
            if own.epochs is not None and "epochs" not in set_already:
                space["local.epochs"] = Range("logint", 1, max(10, 2 * own.epochs))
            elif own.epochs is None and "steps" not in set_already:
                space["local.steps"] = Range("logint", 1, max(50, 2 * (own.steps or 1)))
    return space


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted names to nested settings.

    >>> nested({"k": 2, "local.lr": 0.1})
    {'k': 2, 'local': {'lr': 0.1}}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        *outer, last = name.split(".")
        place = found
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return found
