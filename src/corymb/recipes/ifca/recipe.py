"""IFCA's tables and figures (Ghosh, Chung, Yin, Ramchandran: NeurIPS 2020, TIT 2022), ours beside the papers'.

Figures and tables are numbered as in the NeurIPS paper, Figure 4 as in TIT. `cells.work` runs the cells, each of which
is saved separately; tables are made from the cells that exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

from corymb.data.built_in.sources import CIFAR10, MNIST
from corymb.data.built_in.sources import FEMNIST as FEMNIST_DATA
from corymb.recipes.ifca import success
from corymb.recipes.ifca.cells import QUICK_DATA
from corymb.recipes.ifca.cells import work as work
from corymb.recipes.published import Results, measures_of, of_seeds, published, table_of, times_of, with_spread
from corymb.recipes.quick_data import pictures
from corymb.runs.history import counted

SEEDS = 5
MOST_SEEDS = 10
"""Seeds of rotated MNIST with and without repair, where the claims are about every seed."""
RMNIST = ("rmnist-4800x50", "rmnist-2400x100", "rmnist-1200x200")
RCIFAR = "rcifar-200x500"
COLLAPSE = ("collapse-1200x200", "collapse-4800x50")
HARMLESS = ("collapse-1200x200-unbalanced", "collapse-1200x200-k5")
FEMNIST = ("trunk", "ifca-2", "ifca-3", "one-shot-2", "one-shot-3", "global-1", "local", "ifca-4", "ifca-5")
SHARED = ("ifca-shared-2", "ifca-shared-3")
TABLES: Mapping[str, Sequence[str]] = {
    "table-1": ("rmnist-*", "rcifar-*", "quick-*"),
    "table-2": ("femnist/*",),
    "figure-2": ("success-*",),
    "figure-4": ("rmnist-*/ifca*", "rcifar-*/ifca*", "quick-*/ifca*"),
    "collapse": ("collapse-*", "rmnist-*/ifca*"),
}
NEEDS: Mapping[str, str] = {
    "rmnist-*": MNIST.name,
    "collapse-*": MNIST.name,
    "rcifar-*": CIFAR10.name,
    "femnist/*": FEMNIST_DATA.name,
}
"""The data sets that cells need; other cells generate their data."""
FIGURES = published(Path(str(files("corymb.recipes.ifca").joinpath("expected.toml"))))


def jobs(seeds: int) -> list[str]:
    """Every cell, ordered by seed."""
    most = max(seeds, MOST_SEEDS) if seeds >= SEEDS else seeds
    by_seed = [[f"{setting}/{method}/{seed}" for setting, method in _settings(seed, seeds)] for seed in range(most)]
    return [*(name for names in by_seed for name in names), *success.jobs()]


def _settings(seed: int, seeds: int) -> list[tuple[str, str]]:
    found = [(size, "ifca") for size in RMNIST]
    if seed < seeds:
        found += [(size, method) for size in RMNIST for method in ("global", "local")]
        found += [(RCIFAR, method) for method in ("ifca", "global", "local")]
        found += [("femnist", method) for method in FEMNIST]
    found += [(setting, method) for setting in (*COLLAPSE, *HARMLESS) for method in ("ifca-plain", "ifca")]
    return found + ([("femnist", method) for method in SHARED] if seed < seeds else [])


QUICK = ("ifca", "global", "local")


def quick_jobs() -> list[str]:
    """A small version of Table 1, on a part of MNIST or on the package's digits."""
    return [f"quick-{pictures()}/{method}/0" for method in QUICK]


# ---- measures, tables and figures


def measures(results: Results) -> dict[str, float]:
    """The measures that the claims refer to; those of cells that have not been run are absent."""
    found = measures_of(FIGURES, results)
    for setting in (*RMNIST, RCIFAR, *(f"quick-{data}" for data in QUICK_DATA)):
        name = "quick" if setting.startswith("quick-") else setting
        ours, others = (of_seeds(results, setting, method) for method in ("ifca", "global"))
        if ours and others:
            found[f"{name}.gain"] = mean(ours) - mean(others)
        if aris := of_seeds(results, setting, "ifca", "ari"):
            found[f"{name}.least_ari"] = min(aris)
        if curves := of_seeds(results, setting, "ifca", "identity"):
            found[f"{name}.rounds_to_identity"] = max(map(_settled, curves))
        if local := of_seeds(results, setting, "local"):
            found[f"{name}.local"] = mean(local)
            if ours:
                found[f"{name}.gain_over_local"] = mean(ours) - mean(local)
    for setting in COLLAPSE:
        for method in ("ifca-plain", "ifca"):
            if ends := _collapsed(results, setting, method):
                found[f"{setting}.{method}.collapsed"] = sum(ends)
    for k in (2, 3):
        ours, others = of_seeds(results, "femnist", f"ifca-{k}"), of_seeds(results, "femnist", "global-1")
        if ours and others:
            found[f"femnist.ifca-{k}.gain"] = mean(ours) - mean(others)
    seconds = [of_seeds(results, size, method, "seconds")[:SEEDS] for size in RMNIST for method in QUICK[:2]]
    if all(len(one) == SEEDS for one in seconds):
        found["rmnist.minutes"] = sum(map(sum, seconds)) / 60
    for panel in success.panels():
        shares = success.shares(results, panel)
        found |= {f"success.{panel}.{point}": share for point, (share, _) in shares.items()}
    return found


def _collapsed(results: Results, setting: str, method: str) -> list[bool]:
    """Which runs ended with groups mixed in a cluster. A group split over two clusters, if k is too large, is not.

    Cells without a purity are from runs with the true k, where clusters that differ from the groups must mix them.
    """
    cells = [value for name, value in results.items() if name.startswith(f"{setting}/{method}/")]
    return [value.get("purity", value["ari"]) < 0.99 for value in cells]


def _settled(identity: Sequence[float]) -> int:
    """The first round after which every client stays in its own group's cluster; one past the last if there is none."""
    wrong = [t for t, share in enumerate(identity, 1) if share < 1]
    return (wrong[-1] if wrong else 0) + 1


def tables(results: Results) -> str:
    """Tables 1 and 2, the collapse of clusters, and the success probabilities."""
    lines = [*table_of(FIGURES, results)]
    lines += ["## Collapse: rotated MNIST, k = 4, 60 rounds", ""]
    lines += ["| setting | method | seeds | collapsed | accuracy (%) | lowest | repaired in rounds |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for setting in (*COLLAPSE, *HARMLESS):
        for method in ("ifca-plain", "ifca"):
            ends, found = _collapsed(results, setting, method), of_seeds(results, setting, method)
            repairs = of_seeds(results, setting, method, "repairs")
            when = sorted({t for one in repairs for t in one})
            lines.append(
                f"| {setting} | {method} | {len(ends)} | {sum(ends)} | {with_spread(found)} "
                f"| {format(min(found), '.2f') if found else '–'} | {', '.join(map(str, when)) or '–'} |"
            )
    lines += ["", "## FEMNIST: clusters in use at the end", "", "| method | clusters, by seed |", "|---|---|"]
    for method in (*FEMNIST[1:3], *FEMNIST[7:], *SHARED):
        used = of_seeds(results, "femnist", method, "clusters")
        lines.append(f"| {method} | {', '.join(f'{n:g}' for n in used) or 'not run'} |")
    lines += ["", "## Success probability (trials)", "", "| panel | point | share | trials |", "|---|---|---|---|"]
    for panel in success.panels():
        for point, (share, trials) in success.shares(results, panel).items():
            lines.append(f"| {panel} | {point} | {share:.2f} | {trials} |")
    return "\n".join([*lines, "", *times_of(results)]) + "\n"


def draw(results: Results, path: Path) -> None:
    """Draw Figure 2 (success probabilities) and Figure 4 (share of clients in their own group's cluster, by round)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, rows = plt.subplots(3, 2, figsize=(11, 12), layout="constrained")
    for panel, (name, points) in zip(rows.flat, success.panels().items(), strict=False):
        _draw_panel(panel, name, points, success.shares(results, name))
    for panel, (title, settings, last) in zip(rows.flat[4:], FIGURE_4, strict=True):
        seeds = 0
        for number, setting in enumerate(settings):
            label: str | None = setting.partition("-")[2].replace("x", " clients × ")
            for curve in of_seeds(results, setting, "ifca", "identity")[:SEEDS]:
                panel.plot(range(1, len(curve) + 1), curve, color=f"C{number}", alpha=0.7, label=label)
                seeds, label = seeds + 1, None
        about = f"Figure 4: {title}, {counted(seeds, 'run') if seeds else 'not run'}"
        panel.set(title=about, xlabel="round", ylabel="share of clients with their own kind", xlim=(1, last))
        if seeds:
            panel.legend(loc="lower right")
    figure.savefig(path, dpi=90)
    plt.close(figure)


FIGURE_4 = (("rotated MNIST", RMNIST, 40), ("rotated CIFAR-10", (RCIFAR,), 60))
"""The panels, each with the last round shown; on CIFAR-10 a client is selected once in ten rounds on average."""
MARKS = ("-o", "--s", ":^", "-.D")
"""Line styles and markers that keep overlapping lines distinguishable."""


def _draw_panel(
    panel: Any, name: str, points: Mapping[str, success.Point], shares: Mapping[str, tuple[float, int]]
) -> None:
    """Plot success against the scale (a line per noise level) or the number of clients (a line per sample size)."""
    noise, some = name.startswith("noise"), next(iter(points.values()))
    lines: dict[tuple[float, int], list[tuple[float, float]]] = {}
    for point, at in points.items():
        if point in shares:
            line = (at.sigma, at.n) if noise else (at.r, at.n)
            lines.setdefault(line, []).append((at.r if noise else at.m, shares[point][0]))
    kinds = sorted({kind for kind, _ in lines})
    for number, ((value, n), places) in enumerate(lines.items()):
        label = f"σ = {value:g}" if noise else f"r = {value:g}, n' = {n:g}"
        kind = kinds.index(value)
        colour = number if noise else number % len(success.EXAMPLES)
        panel.plot(*zip(*places, strict=True), MARKS[kind], ms=8 - 2 * kind, color=f"C{colour}", label=label)
    fixed = f"{some.m} clients × {some.n}" if noise else f"σ = {some.sigma:g}"
    trials = sorted({number for _, number in shares.values()})
    count = f"{' to '.join(map(str, dict.fromkeys((trials[0], trials[-1]))))} of 40 trials" if trials else "not run"
    panel.set(
        title=f"Figure 2: k = {some.k}, {fixed} ({count})",
        xlabel="scale r of the true parameters" if noise else "clients m, with n' examples each",
        ylabel="success probability",
        ylim=(-0.05, 1.05),
    )
    if lines:
        panel.legend(loc="lower right")
