"""The overhead of a federation beyond its nodes' work: 1,200 clients on 3 nodes, rounds of IFCA compared with echoes.

    python benchmarks/federation.py --folder myfed --times 10

The folder is one made by `corymb flower new`, with its nodes up; `--make` makes one with 1,200 clients of 50 examples.
The cost of messages is the time of a round less the slowest node's own work, which its reply reports; an echo sends the
same payload without any work. Both are measured in turn, so that a busy machine slows down both equally.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import torch

import corymb
from corymb.algorithms.ifca import IFCA
from corymb.cli.flower.folder import read_federation, state_of
from corymb.cli.flower.perform import run_settings
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.runs.remote.engine import FEDERATION, federation
from corymb.trees import stack

DATA = '''"""1,200 clients with 50 examples each."""

import corymb


def clients(node, number, of):
    data = corymb.datasets.mixed_regression(n=1200, m=50, d=64, k=4, test=5)
    y = (data.train.y > 0).long(), (data.test.y > 0).long()
    parts = {name: rows._replace(y=labels) for name, rows, labels in zip(("train", "test"), (data.train, data.test), y)}
    made = corymb.FederatedDataset(name="many", names=data.names, task="classification", classes=("0", "1"), **parts)
    return made.subset(list(range(number, len(made), of)))
'''


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--folder", type=Path, default=Path())
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--make", action="store_true")
    given = options.parse_args()
    fed = read_federation(given.folder)
    if given.make:
        (given.folder / fed.data.partition(".")[0] / "data.py").write_text(DATA)
        return
    engine = federation(run_settings(fed, state_of(given.folder), {"nodes": fed.nodes}), FEDERATION, keeps_memory=False)
    objective = Classification(Network(mlp(64, [200], 2)), 2)
    session = engine.open(objective)
    payload = stack([objective.init(torch.tensor(seed)) for seed in range(4)])
    rounds = drive(
        IFCA(k=4, rounds=given.times + 1, local=corymb.Descent(lr=0.1, steps=5)), Federation(session), seed=0
    )
    next(rounds)  # in the first round, nodes choose their kernels
    costs, echoes = [], []
    before = session.traffic.messages
    for _ in range(given.times):
        echoes.append(session.echo(payload))
        began = time.perf_counter()
        next(rounds)
        costs.append(time.perf_counter() - began - session.traffic.slowest)
        work = session.traffic.slowest
        print(f"echo {echoes[-1]:.2f} s, round without the nodes' work {costs[-1]:.2f} s, their work {work:.2f} s")
    engine.close()
    sent = (session.traffic.messages - before) / (2 * given.times)
    print(f"{len(session.names)} clients on {fed.nodes} nodes, {sent:g} messages a call, load {os.getloadavg()[0]:.1f}")
    apart = statistics.median(costs) - statistics.median(echoes)
    print(
        f"medians: echo {statistics.median(echoes):.2f} s, round {statistics.median(costs):.2f} s, apart {apart:.2f} s"
    )


if __name__ == "__main__":
    main()
