"""Steps of many clients on a GPU: Corymb's, plain vmap's and the naive loop's, by model and precision.

    python -m benchmarks.gpu [--device cuda] [--models ...] [--precisions ...] [--small]
                             [--exact|--variants|--rounds] [--json FILE]

A step is one of plain SGD on every client's own model. The implementations take turns, and the minimum of the repeats
counts; Corymb's result after a few steps is compared with plain vmap's. The fraction of the peak is the rate of a
step's floating-point operations (three times those of a forward pass) relative to the fastest product measured in the
same precision. `--exact` instead compares a few captured steps of every variant in float64, several times, with plain
vmap's: only errors, such as two streams that do not wait for each other, could differ by more than rounding there.
`--variants` instead times every captured variant, of those that take the step and of those that return gradients for an
optimiser. `--rounds` compares a whole round of FedAvg, 10 steps at every client, with those steps alone. `--small` is
for a machine without a GPU: it only shows that everything runs.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from corymb.algorithms import FedAvg
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.objective import Draws, Examples, Objective
from corymb.engines import Placement, VectorisedEngine
from corymb.engines.vectorised.graphs import Player, StepFunction, capture
from corymb.engines.vectorised.graphs.variants import at_once, by_streams
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.recurrent import Cells
from corymb.engines.vectorised.traits import Traits, traits_of
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.local.operations import operations
from corymb.local.reference import descend_one, training_losses, weighted_mean
from corymb.models import Network, char_lstm, cnn, ifca_cifar, mlp, resnet9
from corymb.models.flows.coupling import RealNVP
from corymb.objectives import Classification, Density
from corymb.trees import take

LR = 0.01
PRECISIONS = {"float32": {}, "tf32": {"tf32": True}, "bfloat16": {"mixed": True}}


# ---- models


class Case(NamedTuple):
    """A model, and how many clients take a step on how many examples each."""

    model: Callable[[], nn.Module] | RealNVP
    shape: tuple[int, ...]
    classes: int
    clients: int
    batch: int
    characters: int = 0

    def objective(self, device: str, dtype: torch.dtype = torch.float32) -> Objective:
        """Classes by a network, or densities by a flow."""
        if isinstance(self.model, RealNVP):
            return Density(self.model, device=device, dtype=dtype)
        return Classification(Network(self.model, device=device, dtype=dtype), self.classes)


CASES = {
    "mlp-50": Case(mlp(784, [200], 10), (784,), 10, 4800, 50),
    "mlp-200": Case(mlp(784, [200], 10), (784,), 10, 1200, 200),
    "femnist-cnn": Case(cnn(1, 28, 62, width=2048), (1, 28, 28), 62, 50, 10),
    "cifar-cnn": Case(cnn(3, 32, 10), (3, 32, 32), 10, 20, 50),
    "ifca-cifar": Case(ifca_cifar(), (3, 32, 32), 10, 20, 50),
    "resnet9": Case(resnet9(), (3, 32, 32), 10, 8, 100),
    "char-lstm": Case(char_lstm(), (80,), 80, 10, 10, characters=80),
    "char-lstm-50": Case(char_lstm(), (80,), 80, 50, 50, characters=80),
    "flow": Case(RealNVP(784, side=28, mask="cyclic"), (784,), 1, 200, 100),
}
SMALL = {
    "mlp-50": CASES["mlp-50"]._replace(clients=6, batch=5),
    "femnist-cnn": CASES["femnist-cnn"]._replace(model=cnn(1, 28, 62, width=16), clients=2, batch=2),
    "cifar-cnn": CASES["cifar-cnn"]._replace(model=cnn(3, 32, 10, width=16), clients=2, batch=2),
    "resnet9": CASES["resnet9"]._replace(model=resnet9(width=8), clients=2, batch=2),
    "char-lstm": CASES["char-lstm"]._replace(model=char_lstm(width=6), shape=(5,), clients=2, batch=3),
    "flow": Case(RealNVP(16, side=4, mask="cyclic", layers=2, hidden=8), (16,), 1, 2, 3),
}


def examples(case: Case, device: str) -> Examples:
    draw = torch.Generator().manual_seed(0)
    shape = (case.clients, case.batch, *case.shape)
    x = torch.randint(case.characters, shape, generator=draw) if case.characters else torch.rand(shape, generator=draw)
    y = torch.randint(case.classes, shape[:2], generator=draw)
    return Examples(x.to(device), y.to(device), torch.ones(shape[:2], device=device))


# ---- implementations of a step


def plain_step(objective: Objective, params: dict[str, Tensor], on: Examples, *, recurrent: bool) -> None:
    """The straightforward implementation: vmap of the gradient, and a step in place."""

    def mean_loss(one: dict[str, Tensor], own: Examples) -> Tensor:
        return weighted_mean(training_losses(objective, one, own, Draws(root(0))), own.weight)

    with torch.enable_grad():
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        if recurrent:
            with Cells():
                losses = vmap(mean_loss)(leaves, on)
        else:
            losses = vmap(mean_loss)(leaves, on)
        slopes = torch.autograd.grad(losses.sum(), list(leaves.values()))
    torch._foreach_add_(list(params.values()), list(slopes), alpha=-LR)


class Setup:
    """A model and its examples on a device, with each implementation of a step from the same start."""

    def __init__(self, case: Case, device: str, precision: str) -> None:
        self.case, self.placement = case, Placement(device=device, **PRECISIONS[precision])
        self.objective = case.objective(device)
        self.on = examples(case, device)
        one = self.objective.init(root(0))
        self.start = {name: value.expand(case.clients, *value.shape).contiguous() for name, value in one.items()}
        self.key = fold(root(1), torch.arange(case.clients)).to(device)
        few = Examples(*(t[0, :1] for t in self.on))
        self.objective.losses(one, few)  # a `Network` runs an extra check in its first pass
        traits = traits_of(self.objective, one, few)
        # Without `span`, so that steps take as many operations as are counted.
        self.traits = traits._replace(entry=None)
        kind = torch.device(device).type
        self.kernels = Kernels(self.traits, kind, torch.get_num_threads(), self.placement.mixed)
        if kind == "cpu":  # show what a GPU would do
            self.kernels = replace(self.kernels, only="foreach")

    def corymb(self, steps: int) -> dict[str, Tensor]:
        with self.placement.computing(), torch.no_grad():
            return self.kernels.descend(self.objective, self.start, self.on, self.key, Descent(lr=LR, steps=steps))[0]

    def plain(self, steps: int) -> dict[str, Tensor]:
        params = {name: value.clone() for name, value in self.start.items()}
        with self.placement.computing(), torch.no_grad():
            for _ in range(steps):
                plain_step(self.objective, params, self.on, recurrent=self.traits.recurrent)
        return params

    def naive(self, steps: int) -> None:
        """Steps of a few clients of a large stack: one after another, all clients take the same time."""
        with self.placement.computing():
            for i in range(min(self.case.clients, 20)):
                how = Descent(lr=LR, steps=steps)
                descend_one(self.objective, take(self.start, i), take(self.on, i), self.key[i], how)

    @property
    def share(self) -> float:
        return self.case.clients / min(self.case.clients, 20)

    def flops(self) -> float:
        """Three times those of a forward pass; recurrent layers count as the products of their cells."""
        return 3.0 * operations(self.objective, take(self.start, 0), take(self.on, 0)) * self.case.clients

    def variant(self) -> str:
        players = [seen.player for seen in self.kernels.graphs.seen.values() if seen.player is not None]
        return f"graph of {players[0].variant}" if players else self.kernels.pick(Descent(lr=LR))

    def difference(self, steps: int = 3) -> float:
        """The largest difference from plain vmap after a few steps, relative to the distance of these steps."""
        ours, theirs = self.corymb(steps), self.plain(steps)
        difference = max(float((ours[n] - theirs[n]).abs().max()) for n in ours)
        moved = max(float((theirs[n] - self.start[n]).abs().max()) for n in ours)
        return difference / moved


def variants_of(objective: Objective, device: str, traits: Traits, *, steps: bool) -> dict[str, StepFunction]:
    """Every variant of a step to capture, by name."""
    found = {"vmap": at_once(objective, traits, steps=steps)}
    if not traits.recurrent:
        found["streams"] = by_streams(objective, torch.device(device), traits, steps=steps)
    return {f"{variant}, {'steps' if steps else 'gradients'}": function for variant, function in found.items()}


def exact(name: str, case: Case, device: str, steps: int = 3, times: int = 5) -> dict[str, Any]:
    """The largest float64 difference of captured from plain steps, relative to these steps' distance, by variant."""
    objective = case.objective(device, torch.float64)
    on = examples(case, device)
    on = on._replace(x=on.x if case.characters else on.x.double(), weight=on.weight.double())
    one = objective.init(root(0))
    traits = traits_of(objective, one, Examples(*(t[0, :1] for t in on)))
    start = {name: value.expand(case.clients, *value.shape).contiguous() for name, value in one.items()}
    draws = Draws(fold(root(1), torch.arange(case.clients)).to(device))
    want = {name: value.clone() for name, value in start.items()}
    for _ in range(steps):
        plain_step(objective, want, on, recurrent=bool(case.characters))
    moved = max(float((want[n] - start[n]).abs().max()) for n in start)
    row: dict[str, Any] = {"model": name}
    variants = variants_of(objective, device, traits, steps=True) | variants_of(objective, device, traits, steps=False)
    rates = torch.full_like(on.weight[:, 0], LR)
    for variant, function in variants.items():
        player, worst = capture(variant, function, start, on, draws, rates), 0.0
        for _ in range(times):
            player.begin(start, rates)
            for _ in range(steps):
                _, slopes = player.step(on, draws)
                if slopes:
                    torch._foreach_add_(list(player.params.values()), slopes, alpha=-LR)
            worst = max(worst, *(float((player.params[n] - want[n]).abs().max()) for n in start))
        row[f"{variant}, float64"] = worst / moved
    return row


def each_variant(name: str, case: Case, device: str, precision: str) -> dict[str, Any]:
    """Milliseconds of one step by every captured variant."""
    setup = Setup(case, device, precision)
    row: dict[str, Any] = {"model": name, "precision": precision}
    draws, rates = Draws(setup.key), torch.full_like(setup.on.weight[:, 0], LR)
    for taken in (True, False):
        for variant, function in variants_of(setup.objective, device, setup.traits, steps=taken).items():
            with setup.placement.computing(), torch.no_grad():
                began = time.perf_counter()
                player = capture(variant, function, setup.start, setup.on, draws, rates)
                _wait(device)
                row[f"{variant}: capture s"] = time.perf_counter() - began

                def work(steps: int, player: Player = player) -> None:
                    for _ in range(steps):
                        _, slopes = player.step(setup.on, draws)
                        if slopes:
                            torch._foreach_add_(list(player.params.values()), slopes, alpha=-LR)

                row[f"{variant}: ms"] = 1e3 * seconds(work, 10, 3, device)
    return row


def whole_round(
    name: str, case: Case, device: str, precision: str, steps: int = 10, repeats: int = 5
) -> dict[str, Any]:
    """Milliseconds of a round of FedAvg, and of its steps alone, in turns."""
    setup = Setup(case, device, precision)
    flat = SimpleNamespace(
        x=setup.on.x.flatten(0, 1), y=setup.on.y.flatten(), offsets=torch.arange(case.clients + 1) * case.batch
    )
    data = SimpleNamespace(names=[f"client-{i}" for i in range(case.clients)], train=flat, test=flat)
    engine = VectorisedEngine(setup.objective, data, setup.placement)  # type: ignore[arg-type]
    short = Descent(lr=1e-6, steps=steps)  # so small that no client diverges in any number of rounds
    rounds = drive(FedAvg(rounds=10**6, local=short), Federation(engine))
    for _ in range(4):  # enough for graphs to be captured
        next(rounds)
        setup.corymb(steps)
    whole, alone = float("inf"), float("inf")
    for _ in range(repeats):
        whole = min(whole, seconds(lambda _: next(rounds), 1, 1, device))
        alone = min(alone, steps * seconds(setup.corymb, steps, 1, device))
    found = {"round ms": 1e3 * whole, f"its {steps} steps ms": 1e3 * alone, "round by its steps": whole / alone}
    return {"model": name, "precision": precision, "clients": case.clients, "batch": case.batch, **found}


# ---- timing


def seconds(work: Callable[[int], Any], steps: int, repeats: int, device: str) -> float:
    """The minimum time of a step."""
    best = float("inf")
    for _ in range(repeats):
        _wait(device)
        began = time.perf_counter()
        work(steps)
        _wait(device)
        best = min(best, (time.perf_counter() - began) / steps)
    return best


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def peak(device: str, precision: str, size: int) -> float:
    """The speed of the fastest product of square matrices, in operations per second."""
    placement = Placement(device=device, **PRECISIONS[precision])
    a, b = (torch.rand(size, size, device=device) for _ in range(2))
    if placement.mixed:
        a, b = a.bfloat16(), b.bfloat16()
    with placement.computing():
        a @ b
        return 2 * size**3 / seconds(lambda steps: [a @ b for _ in range(steps)], 5, 5, device)


def measure(name: str, case: Case, device: str, precision: str, top: float, steps: int, repeats: int) -> dict[str, Any]:
    setup = Setup(case, device, precision)
    row: dict[str, Any] = {"model": name, "precision": precision, "clients": case.clients, "batch": case.batch}
    began = time.perf_counter()
    for _ in range(4):  # enough steps for graphs to be captured
        setup.corymb(max(steps, 10))
    _wait(device)
    row["first seconds"] = round(time.perf_counter() - began, 2)
    row["variant"] = setup.variant()
    row["corymb ms"] = 1e3 * seconds(setup.corymb, steps, repeats, device)
    setup.plain(1)
    row["vmap ms"] = 1e3 * seconds(setup.plain, min(steps, 5), repeats, device)
    setup.naive(1)
    row["naive ms"] = 1e3 * setup.share * seconds(setup.naive, 2, 2, device)
    row["difference"] = setup.difference()
    row["of peak"] = setup.flops() / (row["corymb ms"] / 1e3) / top
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--rounds", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.small |= args.device == "cpu"
    logging.basicConfig(level=logging.INFO, format="  %(message)s")
    cases = SMALL if args.small else CASES
    size, steps, repeats = (256, 6, 1) if args.small else (8192, 20, 4)
    print(torch.__version__, torch.cuda.get_device_name() if args.device != "cpu" else "CPU", flush=True)
    if args.exact:
        with torch.no_grad():
            for name in args.models or cases:
                print(exact(name, cases[name], args.device), flush=True)
        return
    rows = []
    for precision in args.precisions:
        top = peak(args.device, precision, size)
        print(f"{precision}: products reach {top / 1e12:.3g} TFLOP/s", flush=True)
        for name in args.models or cases:
            try:
                if args.variants:
                    row = each_variant(name, cases[name], args.device, precision)
                elif args.rounds:
                    row = whole_round(name, cases[name], args.device, precision)
                else:
                    row = measure(name, cases[name], args.device, precision, top, steps, repeats)
            except Exception as error:  # the others are still worth knowing
                row = {"model": name, "precision": precision, "error": f"{type(error).__name__}: {error}"[:500]}
            rows.append(row)
            print(
                "  ".join(f"{n}: {v:.4g}" if isinstance(v, float) else f"{n}: {v}" for n, v in row.items()), flush=True
            )
            if args.device != "cpu":
                torch.cuda.empty_cache()
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
