"""ARI against the threshold λ of SR-FCA when clients of one cluster differ: on which window does it work?

    python benchmarks/threshold_window.py [--out FILE.svg] [--distance l2] [--seed 0]

Mixed regression, k = 3, 60 clients × 100, d = 20, σ = 0.2. Each client's parameter lies ε1/2 from its cluster's; ε2 is
the least distance between two clusters' parameters less ε1. The dot is what `threshold="auto"` finds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from corymb.algorithms.sr_fca import SRFCA
from corymb.datasets import mixed_regression
from corymb.driver import drive
from corymb.engines import VectorisedEngine
from corymb.evaluate import cluster_metrics
from corymb.federation import Federation
from corymb.local import Descent
from corymb.objectives import LinearRegression
from corymb.settings import InvalidInput

SPREADS = (0.0, 0.4, 0.8)
ALGORITHM = SRFCA(alone=Descent(lr=0.05, steps=150), rounds=15, local=Descent(lr=0.05, steps=5), refinements=1)


def scores(fed: Federation, truth: torch.Tensor, algorithm: SRFCA) -> tuple[float, float, float]:
    """ARI after ONE_SHOT and after REFINE, and λ."""
    found = {}
    try:
        for at in drive(algorithm, fed):
            found[at.stage] = cluster_metrics(at.labels, truth)["ari"]
            if at.stage == "one-shot":
                threshold = float(at.carry["threshold"])
    except InvalidInput:  # nobody is near anybody
        return 0.0, 0.0, float("nan")
    return found["one-shot"], found["refine-1"], threshold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("threshold_window.svg"))
    parser.add_argument("--distance", default="l2")
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "corymb"
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(SPREADS), figsize=(11, 3.2), sharey=True, layout="constrained")
    thresholds = np.geomspace(0.08, 2.2, asked.points)
    for panel, within in zip(panels, SPREADS, strict=True):
        data = mixed_regression(asked.seed, n=60, m=100, d=20, k=3, sigma=0.2, within=within)
        assert data.truth is not None
        assert data.true_parameters is not None
        fed = Federation(VectorisedEngine(LinearRegression(20), data))
        of = replace(ALGORITHM, distance=asked.distance)
        rows = [scores(fed, data.truth, replace(of, threshold=float(value))) for value in thresholds]
        _, auto, found = scores(fed, data.truth, of)
        truth = torch.cdist(*[data.true_parameters["weight"].double()] * 2)
        apart = float(truth[truth > 0].min()) - within
        panel.axvspan(max(within, thresholds[0]), max(apart, thresholds[0]), color="0.93")
        panel.plot(thresholds, [row[0] for row in rows], "o--", ms=3, lw=1, color="C1", label="after ONE_SHOT")
        panel.plot(thresholds, [row[1] for row in rows], "s-", ms=3, lw=1.4, color="C0", label="after one REFINE")
        panel.plot([found], [auto], "*", ms=13, color="C3", label='threshold="auto"')
        panel.set(xscale="log", xlabel="threshold λ", title=f"ε1 = {within:g}, ε2 = {apart:.2f}")
        right = [value for value, row in zip(thresholds, rows, strict=True) if row[1] == 1.0]
        window = f"{right[0]:.2f} to {right[-1]:.2f}" if right else "none"
        print(f"within {within}: ε2 {apart:.3f}; ARI 1 after REFINE for λ {window}; auto {found:.3f}, ARI {auto:.3f}")
    panels[0].set_ylabel("adjusted Rand index")
    panels[-1].legend(frameon=False, fontsize=8)
    figure.savefig(asked.out, metadata={"Date": None} if asked.out.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
