"""Chung's report on UIFCA (UC Berkeley 2023, chapter 4): Tables 4.1 to 4.3 and Figures 4.3, 4.4, 4.6, beside ours.

`cells.work` runs the cells, each of which is saved separately; tables are made from the cells that exist.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

from corymb.data.built_in.sources import MNIST
from corymb.recipes.published import times_of
from corymb.recipes.uifca.cells import REPRESENTED
from corymb.recipes.uifca.cells import work as work

Results = Mapping[str, Any]
SHARES = ("0", "0.25", "0.5", "0.75", "1")
"""The values of p."""
DIGITS = (2, 3, 4, 5)
"""The digits that are rotated."""
TABLE_41 = {
    "subspace": ("affine-best-of-3", "affine", "kfed"),
    "subspace10": ("kfed",),
    "gaussians": ("affine-kfed", "shift-best-of-5", "kfed", "affine", "diagonal-best-of-5"),
}
ON_PICTURES = (
    "gaussian-kfed",
    "kfed",
    "realnvp",
    "clustergan",
    "gaussian-kfed-prior",
    "gaussian-kfed-best-of-5",
    "realnvp-kfed",
)
TABLE_43: Mapping[str, Sequence[str]] = {
    "digits": ON_PICTURES,
    "rotated": ON_PICTURES,
    "representations": ("encoder",),
}


ON_MNIST = ("digits-*", "rotated-*", "representations-*", "ablation/*", "one_cluster_round/*")
NEEDS: Mapping[str, str] = dict.fromkeys(ON_MNIST, MNIST.name)
"""The data sets that cells need; other cells generate their data."""
TABLES: Mapping[str, Sequence[str]] = {
    "table-4.1": ("gaussians-*", "subspace-*", "subspace10-*"),
    "table-4.2": ("ablation/*",),
    "table-4.3": ("digits-*", "rotated-*", "representations-*"),
    "figure-4.3": ("curve/*",),
    "figure-4.4": ("one_cluster_round/*",),
    "figure-4.6": ("overfitting/*",),
}
LATER = ("gaussian-kfed-prior", "realnvp-kfed", "gaussian-kfed-best-of-5")
"""Methods without claims, which run last."""


def jobs(seeds: int) -> list[str]:
    """Every cell as setting/method/seed, those with claims first; at most three seeds on images."""
    few = min(seeds, 3)
    mnist = table_43(few)
    later = [name for name in mnist if name.split("/")[1] in LATER]
    first = [name for name in mnist if name not in later]
    return [*table_41(seeds), *table_42(few), *first, *figures(), *later, *encoders()]


QUICK: Mapping[str, Sequence[str]] = {
    "gaussians-0": ("kfed",),
    "subspace-0": ("kfed", "affine"),
}


def quick_jobs() -> list[str]:
    """Table 4.1 with one seed and evenly mixed examples."""
    return [f"{setting}/{method}/0" for setting, methods in QUICK.items() for method in methods]


def encoders() -> list[str]:
    """Cells with other encoder settings, which no table shows."""
    return [
        f"representations-0/encoder-{temperature}-{rounds}/0" for rounds in (60, 240) for temperature in (0.1, 0.2, 0.5)
    ]


def table_41(seeds: int) -> list[str]:
    """The cells of Table 4.1: synthetic data."""
    return [
        f"{kind}-{p}/{method}/{seed}"
        for kind, methods in TABLE_41.items()
        for method in methods
        for p in SHARES
        for seed in range(seeds)
    ]


def table_42(seeds: int) -> list[str]:
    """The cells of Table 4.2: RealNVP with and without a random background and cyclic masks."""
    methods = ("default", "background", "cyclic", "background+cyclic")
    return [f"ablation/{method}/{seed}" for seed in range(seeds) for method in methods]


def table_43(seeds: int) -> list[str]:
    """The cells of Table 4.3: raw MNIST images and representations, ordered by method, then seed."""
    kinds = {"digits": ["digits"], "representations": ["representations"], "rotated": [f"rotated-{d}" for d in DIGITS]}
    most = max(map(len, TABLE_43.values()))
    return [
        f"{kind}-{p}/{TABLE_43[name][place]}/{seed}"
        for place in range(most)
        for seed in range(seeds)
        for name, settings in kinds.items()
        if place < len(TABLE_43[name])
        for kind in settings
        for p in SHARES
    ]


def figures() -> list[str]:
    """The cells of Figures 4.3, 4.4 and 4.6."""
    return [
        *(f"curve/gaussians-{p}/{method}/0" for p in SHARES for method in ("random", "kfed")),
        "one_cluster_round/digits-0/realnvp/0",
        *(f"overfitting/two-gaussians/m{m}/0" for m in (800, 2400, 4000)),
    ]


# ---- measures, tables and figures

_EXPECTED = tomllib.loads(files("corymb.recipes.uifca").joinpath("expected.toml").read_text(encoding="utf-8"))
REPORT: Mapping[str, Mapping[str, Sequence[float]]] = _EXPECTED["purity"]
"""The report's purities (%), by p."""
REPORT_42: Mapping[str, float] = _EXPECTED["ablation"]
"""The report's accuracies (%) of two flows, by variant."""


def purities(results: Results, setting: str, method: str, which: str = "purity") -> list[float]:
    """The purity (%) of every seed that has been run."""
    prefix, found = f"{setting}/{method}/", []
    for name, value in results.items():
        if name.startswith(prefix):
            found.append(100 * value["metrics"][which])
        elif setting.startswith("representations") and name.startswith(f"{setting}/encoder/"):
            found.append(100 * value["methods"][method][which])
    return found


def row(results: Results, kind: str, method: str, which: str = "purity") -> list[list[float]]:
    """The purities of all seeds for every p; those of rotated digits are pooled over the four digits."""
    kinds = [f"rotated-{digit}" for digit in DIGITS] if kind == "rotated" else [kind]
    return [[value for one in kinds for value in purities(results, f"{one}-{p}", method, which)] for p in SHARES]


def measures(results: Results) -> dict[str, float]:
    """The measures that the claims refer to; those of cells that have not been run are absent."""
    found: dict[str, float] = {}
    for setting, methods in QUICK.items():
        for method in methods:
            if values := purities(results, setting, method):
                found[f"quick.{setting}.{method}"] = values[0]
    for kind, methods in {**TABLE_41, **TABLE_43, "representations": REPRESENTED}.items():
        for method in methods:
            by_share = row(results, kind, method)
            if not all(by_share):
                continue
            means = [mean(values) for values in by_share]
            found |= {f"{kind}.{method}.p{p}": value for p, value in zip(SHARES, means, strict=True)}
            found[f"{kind}.{method}.mean"] = mean(means)
            found[f"{kind}.{method}.recovered"] = min(_recovered(values) for values in by_share)
            for rival, purity in REPORT.get(kind, {}).items():
                found[f"{kind}.{method}.above_report_{rival}"] = mean(means) - mean(purity)
                found[f"{kind}.{method}.farthest_from_report_{rival}"] = max(
                    abs(ours - theirs) for ours, theirs in zip(means, purity, strict=True)
                )
    for digit in DIGITS:
        for method in TABLE_43["rotated"]:
            values = [value for p in SHARES for value in purities(results, f"rotated-{digit}-{p}", method)]
            found |= {f"rotated-{digit}.{method}.mean": mean(values)} if values else {}
    for method in REPORT_42:
        for part in ("train", "test"):
            values = [100 * value[part] for name, value in results.items() if name.startswith(f"ablation/{method}/")]
            found |= {f"ablation.{method}.{part}": mean(values)} if values else {}
    best = [
        found[name]
        for name in found
        if name.startswith(("digits.gauss", "representations.gauss")) and name.endswith(".mean")
    ]
    if best and "digits.kfed.mean" in found:
        found["digits.best.above_kfed"] = max(best) - found["digits.kfed.mean"]
        found["digits.best.above_report_uifca"] = max(best) - mean(REPORT["digits"]["uifca"])
    return found


def _recovered(values: Sequence[float]) -> float:
    """The share of seeds with a purity of 99.5 or more."""
    return sum(value >= 99.5 for value in values) / len(values)


def tables(results: Results) -> str:
    """Tables 4.1, 4.2 and 4.3, ours beside the report's: the mean over seeds, and the number of seeds.

    Table 4.1 also counts the seeds with a purity of 99.5 or more.
    """
    lines = []
    for title, kinds, cell in (
        ("Table 4.1", TABLE_41, _cell_recovered),
        ("Table 4.3", {**TABLE_43, "representations": REPRESENTED}, _cell),
    ):
        head = " | ".join(f"p = {p}" for p in SHARES)
        legend = (
            "mean over seeds (how many have 99.5 or more)" if cell is _cell_recovered else "mean (of how many cells)"
        )
        lines += [
            f"## {title}: purity (%), {legend}",
            "",
            f"| data | method | {head} |",
            "|---|---|" + "---|" * len(SHARES),
        ]
        for kind, methods in kinds.items():
            for rival, purity in REPORT.get(kind, {}).items():
                lines.append(
                    f"| {kind} | the report's {rival} | " + " | ".join(f"{value:g}" for value in purity) + " |"
                )
            for method in methods:
                for which, words in (("purity", method), ("test_purity", f"{method}, held out")):
                    cells = [cell(values) for values in row(results, kind, method, which)]
                    lines.append(f"| {kind} | {words} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["## Table 4.2: accuracy (%) of two flows", "", "| | the report | train | held out |", "|---|---|---|---|"]
    for method, value in REPORT_42.items():
        found = [one for name, one in results.items() if name.startswith(f"ablation/{method}/")]
        cells = [_cell([100 * one[part] for one in found]) for part in ("train", "test")]
        lines.append(f"| {method} | {value:g} | " + " | ".join(cells) + " |")
    lines += ["", "## Table 4.3: rotated pictures of each digit, purity (%), mean over p", ""]
    lines += ["| method | " + " | ".join(map(str, DIGITS)) + " |", "|---|" + "---|" * len(DIGITS)]
    for method in TABLE_43["rotated"]:
        each = [[v for p in SHARES for v in purities(results, f"rotated-{digit}-{p}", method)] for digit in DIGITS]
        lines.append(f"| {method} | " + " | ".join(map(_cell, each)) + " |")
    times = list(times_of(results))
    return "\n".join([*lines, *([""] if times else []), *times]) + "\n"


def _cell(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} ({len(values)})" if values else "not run"


def _cell_recovered(values: Sequence[float]) -> str:
    if not values:
        return "not run"
    return f"{mean(values):.1f} ({sum(value >= 99.5 for value in values)} of {len(values)})"


def draw(results: Results, path: Path) -> None:
    """Draw Figures 4.3, 4.4 and 4.6."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(2, 3, figsize=(15, 8.5), layout="constrained")
    panels = [grid[0, 0], grid[0, 1], *grid[1]]
    grid[0, 2].set_axis_off()
    for p in SHARES:
        if found := results.get(f"curve/gaussians-{p}/random/0"):
            panels[0].plot(range(1, len(found["purity"]) + 1), found["purity"], label=f"p = {p}")
    panels[0].set(title="Figure 4.3: Gaussian clusters", xlabel="cluster round", ylabel="purity")
    if panels[0].lines:
        panels[0].legend()
    if found := results.get("one_cluster_round/digits-0/realnvp/0"):
        panels[1].plot(range(1, len(found["purity"]) + 1), found["purity"])
        panels[1].axhline(found["start"], color="red", label="the labels trained on")
        panels[1].legend()
    panels[1].set(title="Figure 4.4: one cluster round, digits", xlabel="exchange", ylabel="purity")
    for panel, m in zip(panels[2:], (800, 2400, 4000), strict=True):
        if found := results.get(f"overfitting/two-gaussians/m{m}/0"):
            for place, name in enumerate(found["columns"]):
                panel.plot(
                    [10 * (t + 1) for t in range(len(found["losses"]))],
                    [one[place] for one in found["losses"]],
                    label=name,
                )
            panel.legend()
        panel.set(title=f"Figure 4.6: two Gaussians, {m:,} points", xlabel="steps", ylabel="mean loss of points (nats)")
    figure.savefig(path, dpi=90)
    plt.close(figure)
