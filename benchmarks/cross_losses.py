"""Every client's loss under every client's model, as SR-FCA needs it: as one matrix, and evaluated pair by pair.

    python benchmarks/cross_losses.py [--clients 200] [--examples 100] [--repeats 2] [--threads 1]
    python benchmarks/cross_losses.py --device cuda --clients 1000 [--tf32]

The model is an MLP 784-200-10. "Pair by pair", as in most code, loads every model into a module for every client; "by
hand" evaluates the same pairs without a module. On the CPU the variants take turns, the minimum CPU time of the repeats
counts, and the results are the ratios. On a GPU the result is the speed of the whole matrix as a fraction of that of
one large matrix product, measured there in the same precision; pairs are measured on a few clients only (`--pairs`)
and scaled up.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, relu

from corymb.clustering.distances import cross_losses
from corymb.core.federation import Federation
from corymb.engines import Placement, VectorisedEngine
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.trees import Params

FEATURES, HIDDEN, CLASSES = 784, 200, 10


def federation(n: int, m: int, device: str, tf32: bool) -> tuple[Federation, Tensor, Tensor]:
    """n clients with m random images each: the time does not depend on their contents."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(n * m, FEATURES, generator=draw).to(device)
    y = torch.randint(CLASSES, (n * m,), generator=draw).to(device)
    flat = SimpleNamespace(x=x, y=y, offsets=torch.arange(n + 1) * m)
    data = SimpleNamespace(names=[f"client-{i}" for i in range(n)], train=flat, test=flat)
    objective = Classification(Network(mlp(FEATURES, [HIDDEN], CLASSES), device=device), CLASSES)
    engine = VectorisedEngine(objective, data, Placement(device=device, tf32=tf32))
    return Federation(engine), x.unflatten(0, (n, m)), y.unflatten(0, (n, m))


def own_models(n: int, device: str) -> Params:
    draw = torch.Generator().manual_seed(1)
    shapes = {"1.weight": (HIDDEN, FEATURES), "1.bias": (HIDDEN,), "3.weight": (CLASSES, HIDDEN), "3.bias": (CLASSES,)}
    return {
        name: (torch.randn(n, *shape, generator=draw) / shape[-1] ** 0.5).to(device) for name, shape in shapes.items()
    }


@torch.no_grad()
def pair_by_pair(x: Tensor, y: Tensor, models: Params) -> Tensor:
    """As in most code: for every client, load every model into a module in turn."""
    module = mlp(FEATURES, [HIDDEN], CLASSES)().to(x.device)
    rows = []
    for xi, yi in zip(x, y, strict=True):
        row = []
        for j in range(len(models["1.bias"])):
            module.load_state_dict({name: value[j] for name, value in models.items()})
            row.append(cross_entropy(module(xi), yi))
        rows.append(torch.stack(row))
    return torch.stack(rows)


@torch.no_grad()
def by_hand(x: Tensor, y: Tensor, models: Params) -> Tensor:
    rows = []
    for xi, yi in zip(x, y, strict=True):
        row = []
        for j in range(len(models["1.bias"])):
            hidden = relu(linear(xi, models["1.weight"][j], models["1.bias"][j]))
            row.append(cross_entropy(linear(hidden, models["3.weight"][j], models["3.bias"][j]), yi))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def product_speed(device: str, tf32: bool, side: int, clock: Callable[[], float]) -> float:
    """FLOP/s of one large matrix product, the fastest of several."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a, b = torch.rand(2, side, side, device=device)
    best = float("inf")
    for _ in range(6):
        began = clock()
        a @ b
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, clock() - began)
    torch.backends.cuda.matmul.allow_tf32 = before
    return 2 * side**3 / best


def compare(args: argparse.Namespace) -> dict[str, object]:
    n, m, device = args.clients, args.examples, args.device
    torch.set_num_threads(args.threads)
    fed, x, y = federation(n, m, device, args.tf32)
    models = own_models(n, device)
    few = n if device == "cpu" else min(n, args.pairs)
    variants: dict[str, Callable[[], Tensor]] = {
        "corymb": lambda: cross_losses(fed.clients, models).value,
        "pair by pair": lambda: pair_by_pair(x[:few], y[:few], models).cpu(),
        "by hand": lambda: by_hand(x[:few], y[:few], models).cpu(),
    }
    clock = time.process_time if device == "cpu" else time.perf_counter  # others may be at work on the same cores
    best, matrices = dict.fromkeys(variants, float("inf")), {}
    for repeat in range(args.repeats + 1):  # the first time warms up, if there is a second
        for name, variant in variants.items():
            began = clock()
            matrices[name] = variant()  # in the server's memory: nothing is left to wait for
            spent = (clock() - began) * (1 if name == "corymb" else n / few)
            if repeat or not args.repeats:
                best[name] = min(best[name], spent)
    for name in ("pair by pair", "by hand"):
        close = 1e-2 if args.tf32 else 1e-4
        assert torch.allclose(matrices["corymb"][:few].float(), matrices[name], rtol=close, atol=close)
    flops = 2.0 * n * n * m * (FEATURES * HIDDEN + HIDDEN * CLASSES)
    peak = product_speed(device, args.tf32, 8192 if device == "cuda" else 1024, clock)
    return {
        "clients": f"{n}×{m}",
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "precision": "tf32" if args.tf32 else "float32",
        "threads": args.threads,
        "seconds": {name: round(spent, 3) for name, spent in best.items()},
        "vs pair by pair": round(best["pair by pair"] / best["corymb"], 2),
        "vs by hand": round(best["by hand"] / best["corymb"], 2),
        "TFLOP/s": round(flops / best["corymb"] / 1e12, 3),
        "of a large product's speed": round(flops / best["corymb"] / peak, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tf32", action="store_true", help="matrix products on the GPU in TF32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10, help="clients to evaluate pair by pair on a GPU")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    row = compare(args)
    print("  ".join(f"{name}: {value}" for name, value in row.items()))
    if args.json:
        args.json.write_text(json.dumps(row, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
