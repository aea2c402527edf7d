"""Attacks on clusters of rotated digits, against every reduction and the default: `python -m benchmarks.attacks`.

Accuracy is that of honest clients on their own test examples, with the models of the clusters that they choose. A fifth
of the clients attack, spread over all clusters; then one client alone, with updates of every length, against the
default; then clients that drop out.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

import corymb
from corymb.core.client import Client, ClientFn, Share
from corymb.core.driver import drive
from corymb.core.engine import Call, each
from corymb.core.federation import Federation
from corymb.engines import VectorisedEngine
from corymb.evaluate import score
from corymb.faults import Fault, inject
from corymb.faults.engine import Faulty
from corymb.keys import fold, normal
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.trees import Tree, as_tensors

CLIENTS, K, ROUNDS = 40, 4, 40
REDUCTIONS = ("mean", "trimmed", "median", "geometric-median", "krum", "multi-krum", "centred-clipping")
Attack = Callable[[Tensor, Tensor, Client], Tensor]
"""From an honest parameter, what it was before training, and the client, to a dishonest one."""


def _noise(v: Tensor, s: Tensor, c: Client) -> Tensor:
    drawn = normal(fold(c.key("attack"), v.numel()), tuple(v.shape)).to(v)
    return s + drawn * (v - s).norm() / drawn.norm()


def _reversed(v: Tensor, s: Tensor, c: Client, *, length: float) -> Tensor:
    return s - length * (v - s)


ATTACKS: dict[str, Attack] = {
    "sign flip": lambda v, s, c: s - (v - s),
    "flip × 2.5": lambda v, s, c: s - 2.5 * (v - s),
    "flip × 100": lambda v, s, c: s - 100 * (v - s),
    "all 1e3": lambda v, s, c: torch.full_like(v, 1e3),
    "all 1e20": lambda v, s, c: torch.full_like(v, 1e20),
    "noise as long": _noise,
    "zeros": lambda v, s, c: torch.zeros_like(v),
}
LENGTHS = (0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 2.9, 3.5, 4.2, 5.0, 10.0, 1e3, 1e6, 1e12)
"""Of one client's reversed update, beside its honest one."""


class Attacked(Faulty):
    """An engine some of whose clients send dishonest models wherever models are averaged."""

    def __init__(self, engine: object, who: Tensor, attack: Attack) -> None:
        super().__init__(engine, [])
        self.who, self.attack = who, attack

    def _with_bad_clients(self, call: Call, ids: Tensor) -> Call:
        if call.near is None:
            return call
        near, attack = call.near.models, self.attack

        def body(client: Client, *args: Tree, attacks: Tensor, **options: Tree) -> Tree:
            reply = as_tensors(call.fn.body(client, *args, **options))
            if not isinstance(reply, Share):
                return reply
            start = {name: value[reply.weight.argmax()] for name, value in near.items()}
            value = {n: torch.where(attacks, attack(v, start[n].to(v), client), v) for n, v in reply.value.items()}
            return reply._replace(value=value)

        body.__module__, body.__qualname__ = call.fn.body.__module__, call.fn.body.__qualname__
        return call._replace(fn=ClientFn(body), options={**call.options, "attacks": each(torch.isin(ids, self.who))})


def objective() -> Classification:
    """What is learned."""
    return Classification(Network(mlp(64, [32], 10)), 10)


def honest_result(algorithm: object, engine: object, truth: Tensor, bad: Tensor, seed: int) -> dict[str, float]:
    """Accuracy of honest clients, whether they are in the right clusters, and who was named wrongly."""
    fed = Federation(engine)  # type: ignore[arg-type]
    *_, at = drive(algorithm, fed, seed=seed)  # type: ignore[arg-type]
    good = ~torch.isin(torch.arange(len(truth)), bad)
    found = score(Federation(engine.engine if isinstance(engine, Faulty) else engine), algorithm, at, truth=truth)  # type: ignore[arg-type]
    names = {fed.names[i] for i in bad.tolist()}
    wrong = {entry["client"] for entry in fed.ledger.rejected} - names
    labels = at.labels[good]
    return {
        "accuracy": float(torch.as_tensor(found.scores)[good].mean()),
        "ari": float(adjusted_rand_score(truth[good].tolist(), labels.tolist())),
        "honest_named": float(len(wrong)),
    }


def setting(seed: int) -> tuple[VectorisedEngine, Tensor]:
    """Rotated digits at forty clients, ten for each rotation."""
    data = corymb.datasets.digits(seed=seed, clients=CLIENTS).in_order()
    assert data.truth is not None
    return VectorisedEngine(objective(), data), data.truth


def attackers(truth: Tensor, share: float) -> Tensor:
    """The first few clients of every cluster."""
    each_cluster = [(truth == c).nonzero().flatten() for c in truth.unique()]
    return torch.cat([ids[: int(share * len(ids) + 1e-9)] for ids in each_cluster])


def table(seeds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Every attack by a fifth of the clients against every reduction; `none` is without an attack."""
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for name in ("none", *ATTACKS, "flipped labels"):
        rows[name] = {}
        for reduction in REDUCTIONS:
            results = []
            for seed in range(seeds):
                engine, truth = setting(seed)
                bad = attackers(truth, 0.2)
                algorithm = replace(corymb.IFCA(k=K, rounds=ROUNDS, init="one-shot"), aggregate=reduction)
                attacked: object = engine
                if name == "flipped labels":
                    names = tuple(engine.names[i] for i in bad.tolist())
                    attacked = inject(engine, [Fault("flipped-labels", clients=names)])
                elif name != "none":
                    attacked = Attacked(engine, bad, ATTACKS[name])
                results.append(honest_result(algorithm, attacked, truth, bad, seed))
            rows[name][reduction] = {key: sum(r[key] for r in results) / seeds for key in results[0]}
            print(name, reduction, rows[name][reduction], flush=True)
    return rows


def alone(seeds: int) -> dict[str, dict[str, float]]:
    """One client whose update is reversed and of any length, against the default."""
    rows: dict[str, dict[str, float]] = {}
    for length in (0.0, *LENGTHS):
        results = []
        for seed in range(seeds):
            engine, truth = setting(seed)
            bad = torch.tensor([0])
            attacked = Attacked(engine, bad, partial(_reversed, length=length)) if length else engine
            results.append(honest_result(corymb.IFCA(k=K, rounds=ROUNDS, init="one-shot"), attacked, truth, bad, seed))
        rows[f"{length:g}"] = {key: sum(r[key] for r in results) / seeds for key in results[0]}
        print("alone", length, rows[f"{length:g}"], flush=True)
    return rows


def dropping_out(seeds: int) -> dict[str, dict[str, float]]:
    """Clients that do not answer, drawn anew in every call."""
    rows: dict[str, dict[str, float]] = {}
    for share in (0.1, 0.3, 0.5):
        results = []
        for seed in range(seeds):
            engine, truth = setting(seed)
            gone = inject(engine, [Fault("dropout", share=share, always=False)], seed)
            nobody = torch.empty(0, dtype=torch.int64)
            results.append(honest_result(corymb.IFCA(k=K, rounds=ROUNDS, init="one-shot"), gone, truth, nobody, seed))
        rows[f"{share:g}"] = {key: sum(r[key] for r in results) / seeds for key in results[0]}
        rows[f"{share:g}"]["least_ari"] = min(r["ari"] for r in results)
        print("dropout", share, rows[f"{share:g}"], flush=True)
    return rows


def main() -> None:
    """Run everything and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/attacks.json"))
    parser.add_argument("--only", choices=["table", "alone", "dropout"])
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    parts = {"table": table, "alone": alone, "dropout": dropping_out}
    found = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    for name, part in parts.items():
        if asked.only in (None, name):
            found[name] = part(asked.seeds)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{time.perf_counter() - began:.0f} seconds")


if __name__ == "__main__":
    main()
