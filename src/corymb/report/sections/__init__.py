"""The report's tabs and sections: a package for each tab, a module for each section, discovered by listing them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from corymb.report.content import Content, Figure, Section, Tab

if TYPE_CHECKING:
    from corymb.runs.run import Run


class Filled(NamedTuple):
    """A tab with the content of its sections."""

    name: str
    tab: Tab
    contents: list[Content]


def tabs() -> dict[str, Tab]:
    """The tabs by name, in display order."""
    found: dict[str, Tab] = {name: importlib.import_module(f"{__name__}.{name}").TAB for name in _listed(__name__)}
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def sections(tab: str) -> list[Section]:
    """The sections of a tab, in display order."""
    package = f"{__name__}.{tab}"
    found: list[Section] = [importlib.import_module(f"{package}.{name}").SECTION for name in _listed(package)]
    return sorted(found, key=lambda section: section.order)


def fill(runs: Sequence[Run]) -> list[Filled]:
    """Every tab with its content for the given runs, of which the first is the subject."""
    return [
        Filled(name, tab, [content for section in sections(name) if (content := section.show(runs)) is not None])
        for name, tab in tabs().items()
    ]


def figures(runs: Sequence[Run]) -> list[Figure]:
    """The figures of all tabs."""
    return [content for filled in fill(runs) for content in filled.contents if isinstance(content, Figure)]


def _listed(package: str) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__))
