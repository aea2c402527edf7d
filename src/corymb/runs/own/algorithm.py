"""Algorithms of the user's own, by `package.module:Class`: for the command line, which makes them from settings."""

from __future__ import annotations

import dataclasses
from typing import Any, cast, get_type_hints

from corymb.core.snapshot import Algorithm
from corymb.runs.learners import imported
from corymb.settings import InvalidInput, first_line, require

MAKE_ONE = "`corymb new algorithm NAME` makes one that runs."


def class_at(place: str) -> type[Algorithm]:
    """The algorithm's class at `package.module:Class`; modules in the working folder are found too."""
    found = imported(place, "the algorithm")
    if not isinstance(found, type):
        raise InvalidInput(f"{place} is a {type(found).__name__}: wanted an algorithm's class. {MAKE_ONE}")
    missing = [name for name in ("run", "serve") if not hasattr(found, name)]
    require(not missing, f"{place} is no algorithm: it has no {' and no '.join(missing)}. {MAKE_ONE}")
    require(
        dataclasses.is_dataclass(found),
        f"{place} is no dataclass: its settings are fields, so write @dataclass(frozen=True, kw_only=True) above it.",
    )
    fields = {field.name for field in dataclasses.fields(cast(Any, found))}
    require(
        "rounds" in fields or hasattr(found, "planned_rounds"),
        f"{place} does not say how long it runs: give it a setting rounds, or a property planned_rounds.",
    )
    try:
        get_type_hints(found)
    except Exception as error:  # annotations are code of the user's
        raise InvalidInput(f"The settings of {place} have types that cannot be read: {first_line(error)}.") from None
    return cast("type[Algorithm]", found)


def place_of(kind: type) -> str:
    """Where a class is found again: `package.module:Class`, or its name alone where nobody could import it."""
    importable = kind.__module__ != "__main__" and kind.__qualname__.isidentifier()
    return f"{kind.__module__}:{kind.__qualname__}" if importable else kind.__name__
