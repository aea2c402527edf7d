"""What is imported when it is first used: names of a package, and what somebody else says the place of."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any


def at(place: str) -> Any:
    """What `package.module:name` is the place of.

    >>> at("corymb.settings:InvalidInput").__name__
    'InvalidInput'
    """
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def is_place(name: str) -> bool:
    """Whether a name says where something is, and is not one of a catalogue's.

    >>> is_place("mymodule:MyAlgorithm"), is_place("ifca"), is_place("C:/data")
    (True, False, False)
    """
    return re.fullmatch(r"\w+(\.\w+)*:\w+", name) is not None


def short_name(name: str) -> str:
    """A name for titles and folders: of a place, what is there.

    >>> short_name("mymodule:MyAlgorithm"), short_name("sr-fca")
    ('MyAlgorithm', 'sr-fca')
    """
    return name.rpartition(":")[2]


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names live in the modules `homes`."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return at(f"{homes[name]}:{name}")

    return find
