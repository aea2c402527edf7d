"""A round of FedAvg by the naive loop and by Corymb, for a hundred kinds of networks.

    python -m benchmarks.zoo [--only WORD ...] [--clients 100] [--threads 1] [--optimiser sgd|momentum|adam]
                             [--device cpu|cuda] [--tf32] [--repeats 3] [--write FILE]

Every client has 50 examples and takes five steps a round, in batches of 10 (one pass) and of all its examples. The
naive loop is the straightforward one: one module, `load_state_dict`, `torch.optim` and a mean. Both take turns, and the
minimum of the repeats counts; only ratios are results, and above 1 Corymb is faster. With all examples in a step both
do the same arithmetic, so after the first round both models must agree (except with dropout, whose draws differ): a
network for which they do not is named, and the command fails. With one thread of a CPU, CPU time counts, otherwise wall
time; both compute in float32, or with `--tf32` in TF32.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from benchmarks.zoo import further, networks
from benchmarks.zoo.networks import CLASSES, WORDS, Case
from torch import Tensor, nn

from corymb.algorithms import FedAvg
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.engines import Placement, VectorisedEngine
from corymb.local import Descent
from corymb.models import Network
from corymb.objectives import Classification, Regression

CASES = networks.CASES | further.CASES
EXAMPLES, STEPS, BATCH = 50, 5, 10
WARM = 2  # rounds before those that count
BAR = 0.95
SAME = {"cpu": 1e-3, "cuda": 1e-2}
"""How far models may be apart by rounding in float32, by the largest step: a ReLU near zero may go either way."""
SETTINGS = {
    "sgd": Descent(lr=0.05),
    "momentum": Descent(lr=0.05, momentum=0.9),
    "adam": Descent(lr=0.001, optimiser="adam"),
}
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.001),
}


def examples(case: Case, clients: int, device: str) -> tuple[Tensor, Tensor]:
    """Random examples of the right shape: the time does not depend on their contents."""
    draw, shape = torch.Generator().manual_seed(0), (clients, EXAMPLES, *case.shape)
    x = torch.randint(WORDS, shape, generator=draw) if case.codes else torch.rand(shape, generator=draw)
    y = torch.rand(shape[:2], generator=draw) if case.regression else torch.randint(CLASSES, shape[:2], generator=draw)
    return x.to(device), y.to(device)


class Naive:
    """A straightforward round of FedAvg."""

    def __init__(self, case: Case, x: Tensor, y: Tensor, batch: int | None, optimiser: str) -> None:
        self.x, self.y, self.batch, self.optimiser = x, y, batch, OPTIMISERS[optimiser]
        self.model, self.worker = case.make().to(x.device), case.make().to(x.device)
        self.loss_of: Callable[[Tensor, Tensor], Tensor] = nn.MSELoss() if case.regression else nn.CrossEntropyLoss()
        self.regression = case.regression

    def __call__(self) -> None:
        start = self.model.state_dict()
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for x, y in zip(self.x, self.y, strict=True):
            self.worker.load_state_dict(start)
            optimiser = self.optimiser([p for p in self.worker.parameters() if p.requires_grad])
            for rows in self._batches():
                optimiser.zero_grad()
                out = self.worker(x[rows])
                self.loss_of(out.squeeze(-1) if self.regression else out, y[rows]).backward()
                optimiser.step()
            for name, value in self.worker.state_dict().items():
                total[name] += value / len(self.x)
        self.model.load_state_dict(total)

    def _batches(self) -> list[slice | Tensor]:
        if self.batch is None:
            return [slice(None)] * STEPS
        return list(torch.randperm(EXAMPLES, device=self.x.device).split(self.batch))


class Corymb:
    """A round of FedAvg by the vectorised engine, with the kernel that it chooses."""

    def __init__(self, case: Case, x: Tensor, y: Tensor, batch: int | None, optimiser: str) -> None:
        n, device = len(x), str(x.device)
        flat = SimpleNamespace(x=x.flatten(0, 1), y=y.flatten(), offsets=torch.arange(n + 1) * EXAMPLES)
        data = SimpleNamespace(names=[f"client-{i}" for i in range(n)], train=flat, test=flat)
        network = Network(case.make, device=device)
        objective = Regression(network) if case.regression else Classification(network, CLASSES)
        tf32 = torch.backends.cuda.matmul.allow_tf32
        engine = VectorisedEngine(objective, data, Placement(device=device, tf32=tf32))  # type: ignore[arg-type]
        how = {"steps": STEPS} if batch is None else {"epochs": 1, "batch": batch}
        local = Descent(**{**vars(SETTINGS[optimiser]), **how})
        self.kernels, self.kernel = engine.kernels, engine.kernels.pick(local, EXAMPLES)
        federation = Federation(engine)
        self.start = {name: value[0] for name, value in Snapshot.fresh(federation, 1).models.items()}
        self.frozen = {name: value for name, value in network.module.state_dict().items() if name not in self.start}
        self.rounds = drive(FedAvg(rounds=10**6, local=local), federation)

    def __call__(self) -> dict[str, Tensor]:
        return {name: value[0] for name, value in next(self.rounds).models.items()}


class Result(NamedTuple):
    """A network's comparison."""

    ratio: float
    """The time of the naive loop divided by Corymb's."""
    kernel: str
    difference: float
    """The largest difference of the models after the first round, relative to the largest step of a parameter."""


def measure(case: Case, batch: int | None, args: argparse.Namespace) -> Result:
    """Measure both by turns, from the same start."""
    x, y = examples(case, args.clients, args.device)
    naive, ours = Naive(case, x, y, batch, args.optimiser), Corymb(case, x, y, batch, args.optimiser)
    naive.model.load_state_dict(ours.start | ours.frozen)
    best, difference = {"naive": float("inf"), "ours": float("inf")}, 0.0
    clock = time.process_time if args.device == "cpu" and args.threads == 1 else time.perf_counter
    for repeat in range(WARM + args.repeats):
        for name, way in (("naive", naive), ("ours", ours)):
            began = clock()
            models = way()  # type: ignore[operator]
            if args.device != "cpu":
                torch.cuda.synchronize()
            if repeat >= WARM:
                best[name] = min(best[name], clock() - began)
        if repeat == 0:
            theirs = naive.model.state_dict()
            step = max(float((models[name] - value).abs().max()) for name, value in ours.start.items())
            difference = max(float((theirs[name] - value).abs().max()) for name, value in models.items()) / max(
                step, 1e-9
            )
    return Result(best["naive"] / best["ours"], ours.kernel, difference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--optimiser", choices=list(SETTINGS), default="sgd")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # the table shows which kernel is used
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    table = ["| network | batches of 10 | kernel | all examples | kernel |", "|---|--:|---|--:|---|"]
    below, wrong = list[str](), list[str]()
    for name in [name for name in CASES if any(word in name for word in args.only)]:
        small, whole = (measure(CASES[name], batch, args) for batch in (BATCH, None))
        table.append(f"| {name} | {small.ratio:.2f} | {small.kernel} | {whole.ratio:.2f} | {whole.kernel} |")
        print(table[-1], flush=True)
        below += [name] if min(small.ratio, whole.ratio) < BAR else []
        wrong += (
            [f"{name} ({whole.difference:.0e})"]
            if whole.difference > SAME[args.device] and "dropout" not in name
            else []
        )
        if args.write:  # after every network, so that an interrupted run keeps its results
            args.write.write_text("\n".join(table) + "\n")
    print(f"below {BAR} of the naive loop: {', '.join(below) or 'none'}")
    if wrong:
        sys.exit(f"other models than the naive loop's after a round: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
