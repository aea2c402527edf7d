"""Every algorithm of the catalogue with its default settings on one data set that suits it: the README's table.

    python benchmarks/every_algorithm.py --seeds 0 1 2

Rotated digits (80 clients of 60 pictures, four rotations) for clusters of clients, 200 clients of 50 points for mixed
regression (k = 3), four Gaussians with every client holding all of them for clusters of examples.
"""

import argparse
import statistics
import time

import corymb
from corymb.algorithms.catalogue import CATALOGUE

DATA = {"moment-descent": "mixed-regression", "fedx": "mixed-regression"}
OF_EXAMPLES = ("uifca", "kfed", "clustergan")
K = {"digits": 4, "mixed-regression": 3, "gaussians": 4}
GIVEN = {"uifca": {"density": "gaussian", "init": "kfed"}}


def one(name, seed):
    """The run of an algorithm with one seed."""
    data_name = "gaussians" if name in OF_EXAMPLES else DATA.get(name, "digits")
    data = corymb.datasets.load(data_name, seed=seed)
    fields = CATALOGUE[name].algorithm.__dataclass_fields__
    given = dict(GIVEN.get(name, {}))
    if "k" in fields:
        given["k"] = K[data_name]
    return data_name, corymb.fit(corymb.configure(name, data, **given), data, seed=seed, evaluate_every=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="*", default=list(CATALOGUE))
    asked = parser.parse_args()
    print(
        "| algorithm | data | score | ARI or purity | clusters | MB down, up | seconds |\n|---|---|--:|--:|--:|--:|--:|"
    )
    for name in asked.only:
        began = time.process_time()
        data_name, runs = "", []
        for seed in asked.seeds:
            data_name, run = one(name, seed)
            runs.append(run)
        seconds = (time.process_time() - began) / len(runs)
        score = "test_accuracy" if data_name == "digits" else "test_squared_error"
        scores = [run.metrics[score] for run in runs if score in run.metrics]
        found = [run.metrics["purity" if name in OF_EXAMPLES else "ari"] for run in runs]
        clusters = sorted({run.clusters if isinstance(run.clusters, int) else len(run.clusters) for run in runs})
        traffic = [
            statistics.mean(getattr(run.ledger, way) for run in runs) / 1e6 for way in ("bytes_down", "bytes_up")
        ]
        shown = f"{statistics.mean(scores):.3f}" if scores else ""
        print(
            f"| `{name}` | {data_name} | {shown} | {statistics.mean(found):.2f} | {', '.join(map(str, clusters))} "
            f"| {traffic[0]:.1f}, {traffic[1]:.1f} | {seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
