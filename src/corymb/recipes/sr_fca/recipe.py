"""SR-FCA's tables and figure (Vardhan, Ghosh, Mazumdar, TMLR 2024): Tables 1 to 5 and Fig. 3, ours beside the paper's.

`cells.work` runs the cells, each of which is saved separately; tables are made from the cells that exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any

from corymb.data.built_in.sources import CIFAR10, FEMNIST, MNIST, SHAKESPEARE
from corymb.recipes.published import Results, measures_of, of_seeds, published, table_of, times_of, with_spread
from corymb.recipes.quick_data import pictures
from corymb.recipes.sr_fca.cells import METHODS
from corymb.recipes.sr_fca.cells import work as work
from corymb.recipes.sr_fca.settings import SETTINGS

SEEDS = 5
SIMULATED = ("inverted", "rotated", "cifar-rotated", "cifar-labels")
REAL = ("femnist", "shakespeare")
TABLE_2 = ("sr-fca", "local", "global", "cfl", "local-kmeans", "ifca")
TABLE_4 = ("sr-fca", "local", "global", "cfl", "ifca", "fedsoft", "one-shot-ifca")
BESIDE = ("oracle", "ifca-repair")
"""Methods that are not in the paper: training within the true clusters, and IFCA with our repair of collapses."""
LATER: Mapping[str, Sequence[str]] = {
    "rotated-published": ("sr-fca", "as-published", "local", "oracle"),
    "rotated": ("ifca-true-start", "sr-fca-lambda", "cfl-evidence", *(twice := ("global-twice", "ifca-twice"))),
    "inverted": ("ifca-true-start", "cfl-evidence", *twice),
    "rotated-short": ("local-kmeans", "local-kmeans-scattered"),
    "femnist": ("sr-fca-quantile", "global-twice"),
    "shakespeare": ("fedsoft-loose", "sr-fca-quantile", "global-twice"),
    "shakespeare-short": ("sr-fca", "local", "global", "ifca"),
    "cifar-labels-coded": ("sr-fca", "global"),
}
"""Cells that show the effect of defects in the paper's code and of our choices; they are in none of its tables."""
QUICK = ("quick-rotated", "quick-inverted")
TABLES: Mapping[str, Sequence[str]] = {
    "table-1": ("rotated/sr-fca/*", "rotated/ifca/*"),
    "table-2": (*(f"{setting}/{method}/*" for setting in SIMULATED for method in (*TABLE_2, *BESIDE)), "quick-*"),
    "table-3": (*(f"{setting}/{method}/*" for setting in SIMULATED for method in (*TABLE_2, "ifca-repair")), "quick-*"),
    "table-4": tuple(f"{setting}/{method}/*" for setting in REAL for method in TABLE_4),
    "table-5": tuple(f"{setting}/sr-fca/*" for setting in (*SIMULATED, *REAL, "quick-*")),
    "figure-3": tuple(f"{setting}/sr-fca/*" for setting in ("inverted", "femnist", "quick-inverted-*")),
}
NEEDS: Mapping[str, str] = {
    "inverted/*": MNIST.name,
    "rotated*": MNIST.name,
    "cifar-*": CIFAR10.name,
    "femnist/*": FEMNIST.name,
    "shakespeare*": SHAKESPEARE.name,
}
"""The data sets that cells need; quick versions use what is available."""
AFTER = ("after ONE_SHOT", "after 1st REFINE", "after 2nd REFINE")
"""The rows of Table 5."""
FIGURES = published(Path(str(files("corymb.recipes.sr_fca").joinpath("expected.toml"))))


def jobs(seeds: int) -> list[str]:
    """Every cell as setting/method/seed, ordered by seed, with the cells of the paper's tables first."""
    main = [*_pairs(SIMULATED, TABLE_2), *_pairs(REAL, TABLE_4), *_pairs(SIMULATED, BESIDE)]
    later = [(setting, method) for setting, methods in LATER.items() for method in methods]
    return [f"{setting}/{method}/{seed}" for seed in range(seeds) for setting, method in (*main, *later)]


def _pairs(settings: Sequence[str], methods: Sequence[str]) -> list[tuple[str, str]]:
    return [(setting, method) for setting in settings for method in methods]


def quick_jobs() -> list[str]:
    """Small versions of Tables 2, 3 and 5, on a part of MNIST or on the package's digits."""
    settings = [f"{setting}-{pictures()}" for setting in QUICK]
    return [f"{setting}/{method}/0" for setting, method in _pairs(settings, ("sr-fca", "local", "global"))]


# ---- measures


def measures(results: Results) -> dict[str, float]:
    """The measures that the claims refer to; those of cells that have not been run are absent."""
    results = with_stages(results)
    found = measures_of([one for one in FIGURES if one.table != "Table 3"], results)
    for setting in _settings_in(results):
        name = _measured_as(setting)
        means = {method: mean(ours) for method in METHODS if (ours := of_seeds(results, setting, method))}
        for method, accuracy in means.items():
            found[f"{name}.{method}"] = accuracy
            found |= {f"{name}.{method}.above_{rival}": accuracy - means[rival] for rival in means}
            if wrong := of_seeds(results, setting, method, "misclustering"):
                found |= {f"{name}.{method}.misclustering": mean(wrong)}
                found |= {f"{name}.{method}.worst_misclustering": max(wrong)}
        rivals = [method for method in (TABLE_4 if setting in REAL else TABLE_2) if method != "sr-fca"]
        if "sr-fca" in means and all(rival in means for rival in rivals):
            found[f"{name}.sr-fca.above_best"] = means["sr-fca"] - max(means[rival] for rival in rivals)
        after = [of_seeds(results, setting, f"sr-fca {stage}") for stage in AFTER]
        for which, one, other in (("first", after[1], after[0]), ("second", after[2], after[1])):
            if one and other:
                found[f"{name}.gain_of_{which}_refine"] = mean(one) - mean(other)
        ours, theirs = (_costs(results, setting, method) for method in ("sr-fca", "ifca"))
        if ours and theirs:
            refining = mean(cost["losses"] - cost["losses_one_shot"] for cost in ours)
            found[f"{name}.losses_ifca_over_sr-fca"] = mean(cost["losses"] for cost in theirs) / refining
    second = [abs(found[name]) for setting in SIMULATED if (name := f"{setting}.gain_of_second_refine") in found]
    return found | ({"largest_gain_of_second_refine": max(second)} if second else {})


def _measured_as(setting: str) -> str:
    """The setting's name in measures: that of a quick version does not depend on its data."""
    return setting.rpartition("-")[0] if setting.startswith(QUICK) else setting


def _costs(results: Results, setting: str, method: str) -> list[Any]:
    return list(of_seeds(results, setting, method, "costs"))


def with_stages(results: Results) -> dict[str, Any]:
    """The results, with an extra cell for the accuracy after each stage of every SR-FCA cell."""
    more = dict(results)
    for name, value in results.items():
        setting, method, seed = name.split("/")
        if method == "sr-fca":
            stages = zip(AFTER, value["stages"], strict=False)
            more |= {f"{setting}/sr-fca {stage}/{seed}": {"accuracy": found} for stage, found in stages}
    return more


def _settings_in(results: Results) -> list[str]:
    present = {name.split("/")[0] for name in results}
    return [*(name for name in SETTINGS if name in present), *sorted(present - set(SETTINGS))]


# ---- tables


def tables(results: Results) -> str:
    """Tables 1 to 5, the cells that are in none of them, and the time taken."""
    more = with_stages(results)
    wrong = {name: {"accuracy": 100 * one["misclustering"]} for name, one in more.items() if "misclustering" in one}
    lines = [*_table_1(results)]
    for table in dict.fromkeys(one.table for one in FIGURES):
        figures = [one for one in FIGURES if one.table == table]
        found = table_of(figures, wrong if table == "Table 3" else more)
        lines += [
            line.replace("accuracy (%)", "misclustered clients (%)") if table == "Table 3" else line for line in found
        ]
    return "\n".join([*lines, *_others(results), *times_of(results)]) + "\n"


def _table_1(results: Results) -> Iterator[str]:
    """Costs counted in our runs; the paper only gives their order of growth."""
    yield from ("## Table 1: what a run costs, counted (one seed)", "")
    yield "| setting | method | models sent | local steps | losses of a model at a client |"
    yield "|---|---|---|---|---|"
    for setting in _settings_in(results):
        for method in ("sr-fca", "ifca"):
            for cost in _costs(results, setting, method)[:1]:
                counts = [cost[name] for name in ("models", "steps", "losses")]
                yield f"| {setting} | {method} | " + " | ".join(f"{count:,.0f}" for count in counts) + " |"
    yield ""


def _others(results: Results) -> Iterator[str]:
    """Every cell that is not in the paper's tables."""
    shown = {(one.setting, one.method) for one in FIGURES}
    yield from ("## Not in the paper's tables", "")
    yield from ("| setting | method | accuracy (%) | misclustered clients (%) | clusters |", "|---|---|---|---|---|")
    for setting in _settings_in(results):
        for method in METHODS:
            accuracy = of_seeds(results, setting, method)
            if accuracy and (setting, method) not in shown:
                wrong = [100 * share for share in of_seeds(results, setting, method, "misclustering")]
                clusters = ", ".join(f"{count:g}" for count in of_seeds(results, setting, method, "clusters"))
                row = f"{with_spread(accuracy)} | {with_spread(wrong, 1) if wrong else '–'} | {clusters}"
                yield f"| {setting} | {method} | {row} |"
    yield ""


# ---- Fig. 3


def draw(results: Results, path: Path) -> None:
    """Draw Fig. 3: pairwise distances after ONE_SHOT, and λ, for the paper's two settings first, then the others."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    wanted = dict.fromkeys(("inverted", "femnist", *_settings_in(results)))
    found = [(name, ours[0]) for name in wanted if (ours := of_seeds(results, name, "sr-fca", "distances"))]
    columns, rows = min(3, max(1, len(found))), max(1, math.ceil(len(found) / 3))
    size = (4.5 * columns, 3.5 * rows)
    figure, panels = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for panel in panels.flat[len(found) :]:
        panel.set_axis_off()
    for panel, (name, seen) in zip(panels.flat, found, strict=False):
        distances: Any = seen
        panel.stairs(distances["distance_counts"], distances["distance_edges"], fill=True)
        panel.axvline(distances["threshold"], color="red", label=f"λ = {distances['threshold']:.2f}")
        panel.set(title=f"Figure 3: {name}, seed 0", xlabel="distance (cross-entropy)", ylabel="pairs of clients")
        panel.legend(loc="upper center")
    figure.savefig(path, dpi=90)
    plt.close(figure)
