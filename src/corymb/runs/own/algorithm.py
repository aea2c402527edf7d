"""User-defined algorithms by `package.module:Class`, for the command line, which creates them from settings."""

from __future__ import annotations

import dataclasses
from typing import Any, cast, get_type_hints

from corymb.core.snapshot import Algorithm
from corymb.runs.learners import imported
from corymb.runs.settings import DataOptions, FitOptions, RunSettings, names
from corymb.settings import InvalidInput, check_readable, first_line, require

MAKE_ONE = "`corymb new algorithm NAME` creates a working template."
OF_RUNS = (RunSettings, FitOptions, DataOptions)
TAKEN = frozenset(name for kind in OF_RUNS for name in names(kind)) | {"data", "algorithm", "record"}
TAKEN |= {"config", "out", "seeds", "json", "quiet"}
"""Names that every run uses in its record and on the command line; a setting of the same name would replace them."""


def class_at(place: str) -> type[Algorithm]:
    """Import the algorithm class at `package.module:Class`; modules in the working folder are found too."""
    found = imported(place, "the algorithm")
    if not isinstance(found, type):
        raise InvalidInput(f"{place} is a {type(found).__name__}: wanted an algorithm's class. {MAKE_ONE}")
    missing = [name for name in ("run", "serve") if not hasattr(found, name)]
    require(not missing, f"{place} is not an algorithm: it has no {' and no '.join(missing)}. {MAKE_ONE}")
    require(
        dataclasses.is_dataclass(found),
        f"{place} is not a dataclass: its settings must be fields, so decorate it with "
        "@dataclass(frozen=True, kw_only=True).",
    )
    fields = {field.name for field in dataclasses.fields(cast(Any, found))}
    require(
        "rounds" in fields or hasattr(found, "planned_rounds"),
        f"{place} has no number of rounds: give it a setting `rounds`, or a property `planned_rounds`.",
    )
    check_names(found)
    try:
        get_type_hints(found)
    except Exception as error:  # annotations are user code
        raise InvalidInput(f"The settings of {place} have types that cannot be read: {first_line(error)}.") from None
    check_readable(found)
    return cast("type[Algorithm]", found)


def check_names(kind: type) -> None:
    """Reject settings with the same name as an option of runs."""
    taken = next((field.name for field in dataclasses.fields(cast(Any, kind)) if field.name in TAKEN), None)
    require(
        taken is None,
        f"{kind.__name__} has a setting {taken!r}, which is also an option of every run: rename the setting, for "
        f"example to own_{taken}.",
    )


def place_of(kind: type) -> str:
    """The import path of a class, `package.module:Class`, or only its name if it cannot be imported."""
    importable = kind.__module__ != "__main__" and kind.__qualname__.isidentifier()
    return f"{kind.__module__}:{kind.__qualname__}" if importable else kind.__name__
