"""Algorithms of the user's own, by `package.module:Class`: for the command line, which makes them from settings."""

from __future__ import annotations

import dataclasses
from typing import Any, cast, get_type_hints

from corymb.core.snapshot import Algorithm
from corymb.runs.learners import imported
from corymb.runs.settings import DataOptions, FitOptions, RunSettings, names
from corymb.settings import InvalidInput, check_readable, first_line, require

MAKE_ONE = "`corymb new algorithm NAME` makes one that runs."
OF_RUNS = (RunSettings, FitOptions, DataOptions)
TAKEN = frozenset(name for kind in OF_RUNS for name in names(kind)) | {"data", "algorithm", "record"}
TAKEN |= {"config", "out", "seeds", "json", "quiet"}
"""Names of a run's own in its record and on the command line: a setting of the same name would take its place."""


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
    check_names(found)
    try:
        get_type_hints(found)
    except Exception as error:  # annotations are code of the user's
        raise InvalidInput(f"The settings of {place} have types that cannot be read: {first_line(error)}.") from None
    check_readable(found)
    return cast("type[Algorithm]", found)


def check_names(kind: type) -> None:
    """Refuse settings that are called as an option of runs is."""
    taken = next((field.name for field in dataclasses.fields(cast(Any, kind)) if field.name in TAKEN), None)
    require(
        taken is None,
        f"{kind.__name__} has a setting {taken!r}, but that is the name of an option of every run: give the setting "
        f"another name, such as own_{taken}.",
    )


def place_of(kind: type) -> str:
    """Where a class is found again: `package.module:Class`, or its name alone where nobody could import it."""
    importable = kind.__module__ != "__main__" and kind.__qualname__.isidentifier()
    return f"{kind.__module__}:{kind.__qualname__}" if importable else kind.__name__
