"""Published figures beside ours: the tables of accuracies that `corymb reproduce` prints."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

Results = Mapping[str, Any]


class Published(NamedTuple):
    """A figure of a paper: the mean over its seeds and their standard deviation, both in per cent."""

    table: str
    setting: str
    method: str
    value: float
    std: float | None = None


def published(toml: Path) -> list[Published]:
    """The figures in a recipe's `expected.toml`, in file order."""
    with toml.open("rb") as file:
        return [Published(**one) for one in tomllib.load(file).get("published", [])]


def of_seeds(results: Results, setting: str, method: str, what: str = "accuracy") -> list[Any]:
    """The value `what` of every cell `setting/method/seed` that has it."""
    prefix = f"{setting}/{method}/"
    return [value[what] for name, value in results.items() if name.startswith(prefix) and what in value]


def spread(values: Sequence[float]) -> float:
    """The standard deviation over seeds; 0 for one seed."""
    return stdev(values) if len(values) > 1 else 0.0


def in_sigmas(ours: Sequence[float], theirs: Published) -> float | None:
    """The difference of the means divided by the root of the summed variances over seeds; None for one seed."""
    sigma = math.hypot(spread(ours), theirs.std or 0.0)
    return (mean(ours) - theirs.value) / sigma if sigma and len(ours) > 1 else None


def with_spread(values: Sequence[float], digits: int = 2) -> str:
    """Format the mean ± standard deviation over seeds, with the number of seeds.

    >>> with_spread([94.0, 95.0])
    '94.50 ± 0.71 (2)'
    >>> with_spread([])
    'not run'
    """
    if not values:
        return "not run"
    plus = f" ± {spread(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{plus} ({len(values)})"


def table_of(figures: Sequence[Published], results: Results) -> Iterator[str]:
    """Yield the lines of a Markdown table for every table of the paper: theirs, ours, and the difference."""
    for table in dict.fromkeys(one.table for one in figures):
        yield from (f"## {table}: accuracy (%)", "")
        yield "| setting | method | the paper | ours (seeds) | ours − paper | in σ |"
        yield "|---|---|---|---|---|---|"
        for one in figures:
            if one.table != table:
                continue
            ours = of_seeds(results, one.setting, one.method)
            theirs = f"{one.value:.2f}" + (f" ± {one.std:.2f}" if one.std is not None else "")
            gap = f"{mean(ours) - one.value:+.2f}" if ours else "–"
            sigmas = in_sigmas(ours, one) if ours else None
            yield (
                f"| {one.setting} | {one.method} | {theirs} | {with_spread(ours)} | {gap} "
                f"| {'–' if sigmas is None else format(sigmas, '+.1f')} |"
            )
        yield ""


def measures_of(figures: Sequence[Published], results: Results) -> dict[str, float]:
    """For every setting and method, the mean, minimum and number of seeds, and the mean's distance from the paper's."""
    found: dict[str, float] = {}
    for one in figures:
        if ours := of_seeds(results, one.setting, one.method):
            name = f"{one.setting}.{one.method}"
            found |= {name: mean(ours), f"{name}.least": min(ours), f"{name}.seeds": len(ours)}
            found |= {f"{name}.above": mean(ours) - one.value, f"{name}.least_above": min(ours) - one.value}
            found[f"{name}.apart"] = abs(mean(ours) - one.value)
    return found


def times_of(results: Results) -> Iterator[str]:
    """Yield the lines of a Markdown table of total seconds by setting and machine."""
    total: dict[tuple[str, str], list[float]] = {}
    for name, value in results.items():
        if "seconds" in value and "device" in value:
            total.setdefault((name.split("/")[0], value["device"]), []).append(value["seconds"])
    if total:
        yield from ("## Time", "", "| setting | machine | cells | total seconds |", "|---|---|---|---|")
        yield from (f"| {setting} | {device} | {len(s)} | {sum(s):.0f} |" for (setting, device), s in total.items())
        yield ""
