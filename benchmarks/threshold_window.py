"""ARI against the threshold λ of SR-FCA if clients of one cluster differ: for which window of λ does it work?

    python benchmarks/threshold_window.py [--out FILE.svg] [--distance l2] [--seed 0]

Mixed regression, k = 3, 60 clients × 100, d = 20, σ = 0.2. Each client's parameter is at half the distance `within`
from its cluster's. Shaded: from the largest distance of two clients' own models within a cluster (ε1) to the smallest
between clusters (ε2). The star is what `threshold="gap"` finds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from corymb.algorithms.sr_fca import SRFCA
from corymb.clustering.distances import measure_named
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.data import mixed_regression
from corymb.engines import VectorisedEngine
from corymb.evaluate import cluster_metrics
from corymb.local import Descent
from corymb.objectives import LinearRegression
from corymb.settings import InvalidInput

SPREADS = (0.0, 0.4, 0.8)
ALGORITHM = SRFCA(
    threshold="gap", alone=Descent(lr=0.05, steps=150), rounds=15, local=Descent(lr=0.05, steps=5), refinements=1
)


class Scores(NamedTuple):
    one_shot: float
    """ARI after ONE_SHOT."""
    refined: float
    """ARI after one REFINE."""
    threshold: float
    widest: float
    """The largest distance of clients' own models within a cluster."""
    nearest: float
    """The smallest distance between clusters."""


def scores(fed: Federation, truth: torch.Tensor, algorithm: SRFCA) -> Scores:
    found = {}
    threshold = widest = nearest = float("nan")
    try:
        for at in drive(algorithm, fed):
            found[at.stage] = cluster_metrics(at.labels, truth)["ari"]
            if at.stage == "one-shot":
                threshold = float(at.carry["threshold"])
                distances = measure_named(algorithm.distance).between_clients(at.carry["known"])
                same = truth[:, None] == truth
                widest, nearest = float(distances[same].max()), float(distances[~same].min())
    except InvalidInput:  # no two clients are near each other
        return Scores(0.0, 0.0, threshold, widest, nearest)
    return Scores(found["one-shot"], found["refine-1"], threshold, widest, nearest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("threshold_window.svg"))
    parser.add_argument("--distance", default="l2")
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "corymb"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(SPREADS), figsize=(11, 3.2), sharey=True, layout="constrained")
    thresholds = np.geomspace(0.08, 2.2, args.points)
    for panel, within in zip(panels, SPREADS, strict=True):
        data = mixed_regression(args.seed, n=60, m=100, d=20, k=3, sigma=0.2, within=within)
        assert data.truth is not None
        fed = Federation(VectorisedEngine(LinearRegression(20), data))
        of = replace(ALGORITHM, distance=args.distance)
        rows = [scores(fed, data.truth, replace(of, threshold=float(value))) for value in thresholds]
        gap = scores(fed, data.truth, of)
        if gap.widest < gap.nearest:
            panel.axvspan(gap.widest, gap.nearest, color="0.92")
        panel.plot(thresholds, [row.one_shot for row in rows], "o--", ms=3, lw=1, color="C1", label="after ONE_SHOT")
        panel.plot(thresholds, [row.refined for row in rows], "s-", ms=3, lw=1.4, color="C0", label="after one REFINE")
        panel.plot([gap.threshold], [gap.refined], "*", ms=13, color="C3", label='threshold="gap"')
        panel.set(xscale="log", xlabel="threshold λ", title=f"within = {within:g}", ylim=(-0.05, 1.08))
        right = [value for value, row in zip(thresholds, rows, strict=True) if row.refined == 1.0]
        window = f"{right[0]:.2f} to {right[-1]:.2f}" if right else "none"
        print(
            f"within {within}: ε1 {gap.widest:.2f}, ε2 {gap.nearest:.2f}; ARI 1 after REFINE for λ {window}; "
            f"gap rule {gap.threshold:.2f}, ARI {gap.refined:.3f}"
        )
    panels[0].set_ylabel("adjusted Rand index")
    panels[0].legend(frameon=False, fontsize=8, loc="lower center")
    figure.savefig(args.out, metadata={"Date": None} if args.out.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
