"""Rotated MNIST as in Ghosh et al. 2020 (IFCA), for many seeds; a benchmark that was stopped continues.

    CORYMB_DATA=... python benchmarks/rotated_mnist.py --sizes 1200x200 --seeds 0 --methods ifca fedavg --rounds 300

Methods: `ifca` (the paper's algorithm), `repair` (with collapse repaired), `fedavg` (global); `-5` after a name gives
it one model too many, `-unbalanced` clusters of 10, 20, 30 and 40 %. Results go to a file with one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

from corymb.algorithms import IFCA, FedAvg
from corymb.core.client import Client, on_client
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.data.built_in import images, sources
from corymb.data.dataset import FederatedDataset
from corymb.engines import Placement, VectorisedEngine
from corymb.evaluate import evaluate
from corymb.local import Descent, losses, scores
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.trees import Params

LOCAL = Descent(lr=0.1, steps=10)


@on_client
def correct_by_own_test_loss(client: Client, models: Params) -> tuple[Tensor, Tensor]:
    """The paper's test protocol: how many the model with the least loss on the labelled test examples gets right."""
    best = losses(client, models, on=client.test).argmin()
    tested = client.test.weight.sum()
    return scores(client, models)[best] * tested, tested


def unbalanced(data: FederatedDataset) -> FederatedDataset:
    """Of the four equal clusters a quarter, a half, three quarters and all: 10, 20, 30 and 40 % of the clients."""
    truth = data.truth
    keep = [(truth == j).nonzero().flatten()[: int((truth == j).sum()) * (j + 1) // 4] for j in range(4)]
    return data.subset(torch.cat(keep).tolist())


def algorithm_of(method: str, rounds: int) -> IFCA | FedAvg:
    if method.startswith("fedavg"):
        return FedAvg(rounds=rounds, local=LOCAL)
    return IFCA(k=5 if "-5" in method else 4, rounds=rounds, local=LOCAL, repair=method.startswith("repair"))


def run(method: str, data: FederatedDataset, rounds: int, seed: int, device: str) -> dict[str, object]:
    objective = Classification(Network(mlp(784, [200], 10), device=device), 10)
    fed = Federation(VectorisedEngine(objective, data, Placement(device=device)))
    algorithm = algorithm_of(method, rounds)
    began, last, repairs, found = time.perf_counter(), None, [], None
    for last in drive(algorithm, fed, seed=seed):
        if "collapse" in last.notes:
            repairs.append(last.round)
        if found is None and evaluate_labels(last, data) == 1.0:
            found = last.round
    assert last is not None
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    metrics = evaluate(fed, algorithm, last, truth=data.truth)
    right, tested = fed.evaluation().clients.map(correct_by_own_test_loss, last.models).value
    return {
        "ari": round(metrics["ari"], 4),
        "test_accuracy": round(100 * metrics["test_accuracy"], 3),
        "paper_protocol_accuracy": round(100 * float(right.sum() / tested.sum()), 3),
        "clusters_right_after": found,
        "repairs": repairs,
        "seconds_a_round": round(seconds / rounds, 4),
    }


def evaluate_labels(at: Snapshot, data: FederatedDataset) -> float:
    from corymb.evaluate import adjusted_rand_index

    return adjusted_rand_index(at.labels, data.truth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["1200x200"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=["ifca", "repair", "fedavg"])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--max-seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path, default=Path("runs/rotated_mnist.jsonl"))
    asked = parser.parse_args()
    began = time.monotonic()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    have = {(row["size"], row["seed"], row["method"], row["rounds"]) for row in done}
    pictures = sources.MNIST.load()
    for seed in asked.seeds:
        for size in asked.sizes:
            todo = [m for m in asked.methods if (size, seed, m, asked.rounds) not in have]
            if not todo or time.monotonic() - began > asked.max_seconds:
                continue
            n, m = map(int, size.split("x"))
            data = images.rotated(*pictures, clients=n, per_client=m, seed=seed, flat=True)
            for method in todo:
                chosen = unbalanced(data) if method.endswith("unbalanced") else data
                row = {"size": size, "seed": seed, "method": method, "rounds": asked.rounds}
                row |= run(method, chosen, asked.rounds, seed, asked.device)
                print(json.dumps(row), flush=True)
                with asked.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
