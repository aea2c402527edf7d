"""Every algorithm with its default settings, on a data set that suits it: the table of docs/algorithms/index.md.

    python -m benchmarks.every_algorithm

Rotated digits (80 clients of 60 pictures, four rotations) for clusters of clients, 200 clients of 50 points for mixed
regression (k = 3), four Gaussians, all of them at every client, for clusters of examples. Results are kept in
benchmarks/results/every_algorithm.json; cells that are there are not run again. A cell takes 1 to 20 seconds of a core.
"""

import statistics
import time

from benchmarks.kept import arguments, run_kept

import corymb
from corymb.algorithms.catalogue import CATALOGUE

SEEDS = range(5)
DATA = {"moment-descent": "mixed-regression", "fedx": "mixed-regression"}
OF_EXAMPLES = ("uifca", "kfed", "clustergan")
K = {"digits": 4, "mixed-regression": 3, "gaussians": 4}
GIVEN = {"uifca": {"density": "gaussian", "init": "kfed"}}
TABLE = "| | data | score | ARI or purity | clusters | MB down, up | seconds of a core |\n|---|---|--:|--:|--:|--:|--:|"


def work(cell: str) -> dict[str, object]:
    """`ALGORITHM/SEED`."""
    name, seed = cell.split("/")
    data_name = "gaussians" if name in OF_EXAMPLES else DATA.get(name, "digits")
    data = corymb.datasets.load(data_name, seed=int(seed))
    k = {"k": K[data_name]} if "k" in CATALOGUE[name].algorithm.__dataclass_fields__ else {}
    began = time.process_time()
    algorithm = corymb.configure(name, data, **GIVEN.get(name, {}), **k)
    run = corymb.fit(algorithm, data, seed=int(seed), evaluate_every=0)
    score = "test_accuracy" if data_name == "digits" else "test_squared_error"
    return {
        "data": data_name,
        "score": run.metrics.get(score),
        "found": run.metrics.get("purity" if name in OF_EXAMPLES else "ari"),
        "clusters": run.clusters if isinstance(run.clusters, int) else len(run.clusters),
        "down": run.ledger.bytes_down / 1e6,
        "up": run.ledger.bytes_up / 1e6,
        "seconds": time.process_time() - began,
    }


def mean(values: list[float], factor: float = 1.0, digits: int = 2) -> str:
    """The mean, and ± the standard deviation if values differ."""
    values = [factor * value for value in values]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f}" + (f" ± {spread:.{digits}f}" if spread else "")


def main() -> None:
    """Run the missing cells, and print the table, the best algorithm first."""
    parser = arguments(__doc__, "benchmarks/results/every_algorithm.json")
    parser.add_argument("--only", nargs="+", default=list(CATALOGUE), help="these algorithms")
    args = parser.parse_args()
    cells = run_kept("benchmarks.every_algorithm:work", [f"{one}/{n}" for n in SEEDS for one in args.only], args)
    rows = {name: [cells[cell] for n in SEEDS if (cell := f"{name}/{n}") in cells] for name in CATALOGUE}
    print(TABLE)
    for name, runs in sorted(rows.items(), key=lambda row: -sum(run["score"] or 0.0 for run in row[1])):
        if not runs:
            continue
        of_classes = runs[0]["data"] == "digits"
        scores = [run["score"] for run in runs if run["score"] is not None]
        score = (mean(scores, 100, 1) if of_classes else mean(scores, digits=3)) if scores else ""
        clusters = ", ".join(str(number) for number in sorted({run["clusters"] for run in runs}))
        sent = [statistics.mean(run[way] for run in runs) for way in ("down", "up", "seconds")]
        found = "" if runs[0]["found"] is None else mean([run["found"] for run in runs])
        print(f"| `{name}` | {runs[0]['data']} | {score} | {found} | {clusters} ", end="")
        print(f"| {sent[0]:.1f}, {sent[1]:.1f} | {sent[2]:.0f} |")


if __name__ == "__main__":
    main()
