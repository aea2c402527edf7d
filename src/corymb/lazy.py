"""Imports on first use: names of a package, and objects given as `package.module:name`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any


def at(place: str) -> Any:
    """The object at `package.module:name`.

    >>> at("corymb.settings:InvalidInput").__name__
    'InvalidInput'
    """
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def is_place(name: str) -> bool:
    """Whether a name has the form `package.module:name`, unlike the names of a catalogue.

    >>> is_place("mymodule:MyAlgorithm"), is_place("ifca"), is_place("C:/data")
    (True, False, False)
    """
    return re.fullmatch(r"\w+(\.\w+)*:\w+", name) is not None


def short_name(name: str) -> str:
    """A name for titles and folders: the part after the colon of `package.module:name`, else the name itself.

    >>> short_name("mymodule:MyAlgorithm"), short_name("sr-fca")
    ('MyAlgorithm', 'sr-fca')
    """
    return name.rpartition(":")[2]


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package whose names are defined in the modules `homes`."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return at(f"{homes[name]}:{name}")

    return find
