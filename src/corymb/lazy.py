"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def at(place: str) -> Any:
    """What `package.module:name` is the place of.

    >>> at("corymb.settings:InvalidInput").__name__
    'InvalidInput'
    """
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names live in the modules `homes`."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return at(f"{homes[name]}:{name}")

    return find
