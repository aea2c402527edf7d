"""Settings: frozen dataclasses with one definition, read from Python, TOML, JSON and the command line alike."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

S = TypeVar("S")


class InvalidInput(ValueError):
    """Something the user gave cannot be used: one line with what was got, what was wanted and how to fix it."""


def require(condition: bool, message: str) -> None:
    """Raise `InvalidInput` unless `condition`."""
    if not condition:
        raise InvalidInput(message)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` where something known is close, else the known names.

    >>> did_you_mean("ifac", ["ifca", "fedavg"])
    "Did you mean 'ifca'?"
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."


def to_dict(settings: object) -> dict[str, Any]:
    """A settings dataclass as plain values, nested dataclasses as nested dicts."""
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        raise TypeError(f"{settings!r} is not an instance of a settings dataclass")
    return {field.name: _plain(getattr(settings, field.name)) for field in dataclasses.fields(settings)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def from_dict(kind: type[S], values: Mapping[str, Any]) -> S:
    """A settings dataclass from plain values: unknown names are refused and the field at fault is named."""
    from pydantic import TypeAdapter, ValidationError

    _refuse_unknown(kind, values, where="")
    try:
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or kind.__name__
        raise InvalidInput(f"{place}: {first['msg'].removeprefix('Value error, ')} (got {first['input']!r}).") from None


def _refuse_unknown(kind: type, values: Mapping[str, Any], where: str) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    for name in values:
        if name not in fields:
            raise InvalidInput(f"Unknown setting {where + name!r} for {kind.__name__}. {did_you_mean(name, fields)}")
    defaults = {f.name: f.default for f in dataclasses.fields(kind)}
    for name, value in values.items():
        if isinstance(value, Mapping) and dataclasses.is_dataclass(defaults.get(name)):
            _refuse_unknown(type(defaults[name]), value, where=f"{where}{name}.")


def fingerprint(*parts: object) -> str:
    """A short hash of plain values: equal settings have equal fingerprints in every process."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
