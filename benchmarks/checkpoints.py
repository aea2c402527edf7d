"""The cost of a checkpoint in every round: the time of a round with one, relative to that of a round without.

    python benchmarks/checkpoints.py [--demo] [--folder DIR] [--repeat 5]

Measured on the demo (80 clients with 60 digits, 4 small networks) and on 1200 clients with 200 pictures of 28 x 28.
Runs with and without checkpoints take turns, so that a busy machine slows down both; the ratio is that of the fastest
rounds of each.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

import corymb
from corymb.data import digits
from corymb.local import Descent
from corymb.models import mlp
from corymb.runs.defaults import configure


def pictures(clients: int = 1200, each: int = 200):
    """Random images with as many bytes as MNIST."""
    rng = np.random.default_rng(0)
    x = rng.random((clients * each, 784), dtype=np.float32)
    client = np.repeat(np.arange(clients), each)
    return corymb.FederatedDataset.from_arrays(x, rng.integers(0, 10, len(x)), client, test=0, scale="none")


def cases(demo_only: bool):
    """The name, algorithm, data and model of each case."""
    data = digits()
    yield "demo", configure("ifca", data, k=4, rounds=40), data, None
    if demo_only:
        return
    small = corymb.IFCA(k=4, rounds=2, local=Descent(lr=0.1, steps=1))
    yield "1200 x 200 pictures", small, pictures(), mlp(784, [200], 10)


def rounds(algorithm, data, model, out: Path | None) -> float:
    """Seconds of each round, including checkpoints and waiting for them, without the first round and the end."""
    from time import perf_counter

    times = []
    corymb.fit(
        algorithm, data, model, out=out, evaluate_every=0, threads=1, progress=lambda row: times.append(perf_counter())
    )
    return (times[-1] - times[0]) / (len(times) - 1)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="where runs are kept; a temporary folder unless given")
    parser.add_argument("--demo", action="store_true", help="the demo only")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, algorithm, data, model in cases(options.demo):
        without, with_one = [], []
        for _ in range(options.repeat):
            without.append(rounds(algorithm, data, model, None))
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                with_one.append(rounds(algorithm, data, model, Path(folder)))
        plain, kept = min(without), min(with_one)
        print(
            f"{name}: {plain * 1e3:.1f} ms a round, {kept * 1e3:.1f} ms with a checkpoint: {kept / plain - 1:+.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
