"""One IFCA round three ways, in one run: the naive per-client loop, hand-written batched products, and Corymb.

    python benchmarks/rounds.py [--threads 1 2] [--repeats 5] [--device cpu|cuda] [--json FILE] [--small]
                                [--fedavg | --cnn]

MLP 784-200-10, k = 4, 10 full-batch steps on 400×50 and 100×200 clients, and batches of 50 on 100×600. `--fedavg` is a
round of FedAvg by hand and by Corymb, 10 steps on 100×600 in batches of 50 and on 1000×50 full-batch, and the cost of a
round of IFCA relative to a round of FedAvg and k forward passes. `--cnn` is a round of FedAvg with the CNN of FEMNIST,
10 steps of batch 10, by the naive loop and by Corymb: with the kernel it chooses, and client by client as in the
reference. "No span" is Corymb with every step on the weights themselves (`engines/vectorised/span.py`). `--small` only
shows that everything runs. Machines are noisy: the implementations take turns, the minimum of the repeats counts, and
only ratios are reported as results.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from corymb.algorithms import IFCA, FedAvg
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.engines import Placement, VectorisedEngine
from corymb.local import Descent
from corymb.models import Network, cnn, mlp
from corymb.objectives import Classification

K, STEPS, LR = 4, 10, 0.1
CASES = [(400, 50, None), (100, 200, None), (100, 600, 50)]
FEDAVG_CASES = [(100, 600, 50), (1000, 50, None)]
GPU_CASES = [(4800, 50, None), (1200, 200, None)]
CNN_CASES = [(8, 100, 10), (20, 20, 10)]
SMALL_CASES = [(20, 50, None), (20, 20, 10)]
SMALL_CNN_CASES = [(2, 20, 10)]


def clients(n: int, m: int, device: str) -> tuple[Tensor, Tensor]:
    """n clients with m random images and classes each: the time does not depend on their contents."""
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(n, m, 784, generator=draw)
    y = torch.randint(10, (n, m), generator=draw)
    return x.to(device), y.to(device)


def modules(device: str) -> list[nn.Module]:
    return [mlp(784, [200], 10)().to(device) for _ in range(K)]


# ---- the naive way: one module, one client after another


def naive_round(x: Tensor, y: Tensor, models: list[nn.Module], batch: int | None) -> None:
    loss_of = nn.CrossEntropyLoss()
    chosen: list[list[dict[str, Tensor]]] = [[] for _ in models]
    worker = mlp(784, [200], 10)().to(x.device)
    for xi, yi in zip(x, y, strict=True):
        with torch.no_grad():
            label = min(range(K), key=lambda j: float(loss_of(models[j](xi), yi)))
        worker.load_state_dict(models[label].state_dict())
        optimiser = torch.optim.SGD(worker.parameters(), lr=LR)
        for rows in batches(len(yi), batch):
            optimiser.zero_grad()
            loss_of(worker(xi[rows]), yi[rows]).backward()
            optimiser.step()
        chosen[label].append({name: p.clone() for name, p in worker.state_dict().items()})
    for model, states in zip(models, chosen, strict=True):
        if states:
            model.load_state_dict({name: sum(s[name] for s in states) / len(states) for name in states[0]})


def batches(m: int, batch: int | None) -> list[slice | Tensor]:
    if batch is None:
        return [slice(None)] * STEPS
    return list(torch.randperm(m).split(batch))


# ---- by hand: the same arithmetic for all clients at once, with bmm


def hand_round(x: Tensor, y: Tensor, models: list[nn.Module], batch: int | None) -> None:
    n, m, _ = x.shape
    with torch.no_grad():
        each = [nn.functional.cross_entropy(f(x.flatten(0, 1)), y.flatten(), reduction="none") for f in models]
        label = torch.stack([loss.reshape(n, m).mean(1) for loss in each]).argmin(0)
        stacked = [torch.stack(ps)[label] for ps in zip(*(f.parameters() for f in models), strict=True)]
        w1, b1, w2, b2 = stacked
        for rows in batches(m, batch):
            hand_step(x[:, rows], y[:, rows], w1, b1, w2, b2)
        one_hot = nn.functional.one_hot(label, K).to(x.dtype)
        size = one_hot.sum(0)
        for place, values in enumerate(stacked):
            total = (one_hot.T @ values.flatten(1)).reshape(K, *values.shape[1:])
            for j, model in enumerate(models):
                if size[j]:
                    list(model.parameters())[place].copy_(total[j] / size[j])


def hand_step(x: Tensor, y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> None:
    h = torch.baddbmm(b1[:, None], x, w1.mT).relu_()
    logits = torch.baddbmm(b2[:, None], h, w2.mT)
    g = logits.softmax(-1)
    g.scatter_add_(2, y[..., None], -torch.ones_like(y[..., None], dtype=g.dtype)).div_(x.shape[1])
    gh = torch.bmm(g, w2) * (h > 0)
    w2.baddbmm_(g.mT, h, alpha=-LR)
    b2.sub_(g.sum(1), alpha=LR)
    w1.baddbmm_(gh.mT, x, alpha=-LR)
    b1.sub_(gh.sum(1), alpha=LR)


def hand_fedavg(x: Tensor, y: Tensor, model: nn.Module, batch: int | None) -> None:
    """A round of FedAvg, with a different order of examples for every client."""
    n, m, _ = x.shape
    with torch.no_grad():
        stacked = [p.expand(n, *p.shape).clone() for p in model.parameters()]
        order, client = torch.rand(n, m).argsort(1), torch.arange(n)[:, None]
        for step in range(STEPS):
            if batch is None:
                hand_step(x, y, *stacked)
            else:
                rows = order[:, step * batch : (step + 1) * batch]
                hand_step(x[client, rows], y[client, rows], *stacked)
        for p, rows in zip(model.parameters(), stacked, strict=True):
            p.copy_(rows.mean(0))


@torch.no_grad()
def forward_passes(x: Tensor, y: Tensor, models: list[nn.Module]) -> None:
    """Every model's losses on all examples, in blocks of the same size as Corymb's."""
    for rows, labels in zip(x.flatten(0, 1).split(10_000), y.flatten().split(10_000), strict=True):
        for model in models:
            nn.functional.cross_entropy(model(rows), labels, reduction="none")


# ---- Corymb


def corymb_round(
    x: Tensor,
    y: Tensor,
    batch: int | None,
    *,
    kernel: str | None = None,
    k: int = K,
    steps: bool = False,
    span: bool = True,
    network: Callable[[], nn.Module] | None = None,
) -> Callable[[], object]:
    n, m = y.shape
    flat = SimpleNamespace(x=x.flatten(0, 1), y=y.flatten(), offsets=torch.arange(n + 1) * m)
    data = SimpleNamespace(names=[f"client-{i}" for i in range(n)], train=flat, test=flat)
    classes = 10 if network is None else 62
    objective = Classification(Network(network or mlp(784, [200], 10), device=x.device), classes)
    engine = VectorisedEngine(objective, data, Placement(device=str(x.device)), kernel=kernel)  # type: ignore[arg-type]
    if not span:
        engine.kernels = replace(engine.kernels, traits=engine.kernels.traits._replace(entry=None))
    local = Descent(lr=LR, steps=STEPS, batch=batch)
    if batch is not None and not steps:
        local = Descent(lr=LR, epochs=1, batch=batch)
    algorithm = IFCA(k=k, rounds=10**6, local=local) if k else FedAvg(rounds=10**6, local=local)
    rounds = drive(algorithm, Federation(engine))
    return lambda: next(rounds)


# ---- a convolutional network


def naive_cnn(x: Tensor, y: Tensor, model: nn.Module, batch: int) -> None:
    """A straightforward round of FedAvg."""
    loss_of, worker, start = nn.CrossEntropyLoss(), cnn(1, 28, 62)(), model.state_dict()
    total = {name: torch.zeros_like(p) for name, p in start.items()}
    for xi, yi in zip(x, y, strict=True):
        worker.load_state_dict(start)
        optimiser = torch.optim.SGD(worker.parameters(), lr=LR)
        for rows in batches(len(yi), batch):
            optimiser.zero_grad()
            loss_of(worker(xi[rows]), yi[rows]).backward()
            optimiser.step()
        for name, p in worker.state_dict().items():
            total[name] += p / len(x)
    model.load_state_dict(total)


def compare_cnn(n: int, m: int, batch: int, threads: int, repeats: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    draw, model = torch.Generator().manual_seed(0), cnn(1, 28, 62)()
    x, y = torch.rand(n, m, 1, 28, 28, generator=draw), torch.randint(62, (n, m), generator=draw)
    variants: dict[str, Callable[[], object]] = {
        "naive": lambda: naive_cnn(x, y, model, batch),
        "corymb": corymb_round(x, y, batch, k=0, network=cnn(1, 28, 62)),
        "serial": corymb_round(x, y, batch, k=0, network=cnn(1, 28, 62), kernel="serial"),
    }
    best = measure(variants, repeats, "cpu")
    return {
        "CNN, clients": f"{n}×{m}",
        "batch": batch,
        "threads": threads,
        "CPU ms a step": {name: round(1e3 * cpu / (n * m / batch), 1) for name, (_, cpu) in best.items()},
        "vs naive, CPU": round(best["naive"][1] / best["corymb"][1], 2),
        "vs naive, wall": round(best["naive"][0] / best["corymb"][0], 2),
    }


# ---- timing


def measure(variants: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, tuple[float, float]]:
    """The minimum wall and CPU seconds of each implementation, taking turns; the first round of each warms up."""
    best = {name: (float("inf"), float("inf")) for name in variants}
    for repeat in range(repeats + 1):
        for name, variant in variants.items():
            wall, cpu = time.perf_counter(), time.process_time()
            variant()
            if device == "cuda":
                torch.cuda.synchronize()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if repeat:
                best[name] = min(best[name][0], wall), min(best[name][1], cpu)
    return best


def compare(n: int, m: int, batch: int | None, threads: int, repeats: int, device: str) -> dict[str, object]:
    torch.set_num_threads(threads)
    x, y = clients(n, m, device)
    for_naive, for_hand = modules(device), modules(device)
    few = n if device == "cpu" else n // 20  # on a GPU the loop takes minutes: a twentieth of it, twenty times
    variants: dict[str, Callable[[], object]] = {
        "naive": lambda: naive_round(x[:few], y[:few], for_naive, batch),
        "hand": lambda: hand_round(x, y, for_hand, batch),
        "corymb": corymb_round(x, y, batch),
        "foreach": corymb_round(x, y, batch, kernel="foreach"),
    }
    if batch is None:
        variants["no span"] = corymb_round(x, y, batch, span=False)
    best = measure(variants, repeats, device)
    best["naive"] = best["naive"][0] * n / few, best["naive"][1] * n / few
    ours = best["corymb"]
    return {
        "clients": f"{n}×{m}",
        "batch": batch or "all",
        "threads": threads,
        "seconds": {name: round(wall, 4) for name, (wall, _) in best.items()},
        "vs hand, wall": round(best["hand"][0] / ours[0], 2),
        "vs hand, CPU": round(best["hand"][1] / ours[1], 2),
        "vs naive, wall": round(best["naive"][0] / ours[0], 2),
        "vs naive, CPU": round(best["naive"][1] / ours[1], 2),
    }


def compare_fedavg(n: int, m: int, batch: int | None, threads: int, repeats: int) -> dict[str, object]:
    torch.set_num_threads(threads)
    x, y = clients(n, m, "cpu")
    models = modules("cpu")
    variants: dict[str, Callable[[], object]] = {
        "hand": lambda: hand_fedavg(x, y, models[0], batch),
        "fedavg": corymb_round(x, y, batch, k=0, steps=True),
        "ifca": corymb_round(x, y, batch, steps=True),
        "forwards": lambda: forward_passes(x, y, models),
    }
    best = measure(variants, repeats, "cpu")
    parts = [best["fedavg"][which] + best["forwards"][which] for which in (0, 1)]
    return {
        "clients": f"{n}×{m}",
        "batch": batch or "all",
        "threads": threads,
        "CPU seconds": {name: round(cpu, 4) for name, (_, cpu) in best.items()},
        "FedAvg vs hand, CPU": round(best["hand"][1] / best["fedavg"][1], 2),
        "FedAvg vs hand, wall": round(best["hand"][0] / best["fedavg"][0], 2),
        "IFCA by FedAvg and k forward passes, CPU": round(best["ifca"][1] / parts[1], 2),
        "wall": round(best["ifca"][0] / parts[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fedavg", action="store_true")
    parser.add_argument("--cnn", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    rows = []
    cases = CASES if args.device == "cpu" else GPU_CASES
    cases = FEDAVG_CASES if args.fedavg else CNN_CASES if args.cnn else cases
    if args.small:
        cases = SMALL_CNN_CASES if args.cnn else SMALL_CASES
    print("speed of Corymb's round: above 1 is faster than the other way")
    for threads in args.threads or ([1] if args.small else [1, 2]):
        for n, m, batch in cases:
            if args.cnn:
                row = compare_cnn(n, m, batch or m, threads, args.repeats)
            elif args.fedavg:
                row = compare_fedavg(n, m, batch, threads, args.repeats)
            else:
                row = compare(n, m, batch, threads, args.repeats, args.device)
            rows.append(row)
            print("  ".join(f"{name}: {value}" for name, value in row.items()), flush=True)
            if args.json:  # after every case, so that an interrupted run keeps its results
                args.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
