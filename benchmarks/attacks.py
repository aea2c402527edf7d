"""Attacks on clusters of rotated digits, against every reduction and the default: `python -m benchmarks.attacks`.

Accuracy is that of honest clients on their own test examples, with the models of the clusters that they choose. A fifth
of the clients attack, spread over all clusters (`table`); or one client alone, with updates of every kind and length,
against the default (`alone`). Results are kept in `benchmarks/results/attacks.json`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import nan
from statistics import mean

import torch
from benchmarks.kept import arguments, run_kept
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
"""Maps an honest parameter, its value before training, and the client to a dishonest parameter."""


def _noise(v: Tensor, s: Tensor, c: Client, *, length: float = 1.0) -> Tensor:
    drawn = normal(fold(c.key("attack"), v.numel()), tuple(v.shape)).to(v)
    return s + length * drawn * (v - s).norm() / drawn.norm()


def _reversed(v: Tensor, s: Tensor, c: Client, *, length: float) -> Tensor:
    return s - length * (v - s)


def _filled(v: Tensor, s: Tensor, c: Client, *, value: float) -> Tensor:
    return torch.full_like(v, value)


ATTACKS: dict[str, Attack] = {
    "sign flip": lambda v, s, c: s - (v - s),
    "flip × 2.5": lambda v, s, c: s - 2.5 * (v - s),
    "flip × 100": lambda v, s, c: s - 100 * (v - s),
    "all 1e3": lambda v, s, c: torch.full_like(v, 1e3),
    "all 1e20": lambda v, s, c: torch.full_like(v, 1e20),
    "noise as long": _noise,
    "zeros": lambda v, s, c: torch.zeros_like(v),
}
LENGTHS = (0.5, 1.0, 1.5, 2.0, 2.5, 2.8, 3.1, 3.4, 3.8, 4.2, 5.0, 7.0, 10.0, 1e3, 1e6, 1e12)
"""Lengths of one client's reversed update, relative to its honest one."""
ALONE: dict[str, Attack] = {
    **{f"flip × {length:g}": partial(_reversed, length=length) for length in LENGTHS},
    **{f"noise × {length:g}": partial(_noise, length=length) for length in (1.0, 2.0, 3.0, 5.0, 10.0, 100.0)},
    **{f"honest × {length:g}": partial(_reversed, length=-length) for length in (2.0, 3.0, 5.0, 10.0)},
    **{f"all {value:g}": partial(_filled, value=value) for value in (0.0, 0.01, 0.1, 0.3, 1.0, 1e3, 1e20, -1e30)},
}
"""The attacks of a single client against the default."""


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
    """The objective: classification of digits by a small perceptron."""
    return Classification(Network(mlp(64, [32], 10)), 10)


def honest_result(algorithm: object, engine: object, truth: Tensor, bad: Tensor, seed: int) -> dict[str, float]:
    """Accuracy of honest clients, whether they are in the right clusters, and which were wrongly named as bad."""
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
    """Rotated digits for forty clients, ten for each rotation."""
    data = corymb.datasets.digits(seed=seed, clients=CLIENTS).in_order()
    assert data.truth is not None
    return VectorisedEngine(objective(), data), data.truth


def attackers(truth: Tensor, share: float) -> Tensor:
    """The first few clients of every cluster."""
    each_cluster = [(truth == c).nonzero().flatten() for c in truth.unique()]
    return torch.cat([ids[: int(share * len(ids) + 1e-9)] for ids in each_cluster])


def run_cell(name: str) -> dict[str, float]:
    """`table/ATTACK/REDUCTION/SEED` or `alone/ATTACK/SEED`; the attack `none` means no attack."""
    logging.disable(logging.WARNING)
    part, attack, *rest = name.split("/")
    seed = int(rest[-1])
    engine, truth = setting(seed)
    bad = attackers(truth, 0.2) if part == "table" else torch.tensor([0])
    algorithm = corymb.IFCA(k=K, rounds=ROUNDS, init="one-shot")
    if part == "table":
        algorithm = replace(algorithm, aggregate=rest[0])
    attacked: object = engine
    if attack == "flipped labels":
        attacked = inject(engine, [Fault("flipped-labels", clients=tuple(engine.names[i] for i in bad.tolist()))])
    elif attack != "none":
        attacked = Attacked(engine, bad, (ATTACKS if part == "table" else ALONE)[attack])
    return honest_result(algorithm, attacked, truth, bad, seed)


def cells(seeds: int, only: str | None) -> list[str]:
    """The names of all cells, ordered by seed."""
    table = [f"table/{attack}/{one}" for attack in ("none", *ATTACKS, "flipped labels") for one in REDUCTIONS]
    alone = [f"alone/{attack}" for attack in ("none", *ALONE)]
    every = [name for name in (*alone, *table) if only is None or name.startswith(only)]
    return [f"{name}/{seed}" for seed in range(seeds) for name in every]


def show(found: dict[str, dict[str, float]]) -> None:
    """Print a line for each row: accuracy and the loss of accuracy in per cent, its mean over seeds and its maximum."""
    rows: dict[str, list[dict[str, float]]] = {}
    for name, result in found.items():
        rows.setdefault(name.rpartition("/")[0], []).append(result)
    for name, results in rows.items():
        accuracy, ari = (mean(result[key] for result in results) for key in ("accuracy", "ari"))
        lost = [
            found[f"{_without(name)}/{seed}"]["accuracy"] - result["accuracy"] for seed, result in _seeds(found, name)
        ]
        lost = lost or [nan]
        named = sum(result["honest_named"] for result in results)
        print(
            f"{name:40} {100 * accuracy:5.1f}  lost {100 * mean(lost):5.1f}, at most {100 * max(lost):5.1f}"
            f"  ARI {ari:.2f}  honest clients named {named:g}  seeds {len(results)}"
        )


def _without(name: str) -> str:
    part, _, *rest = name.split("/")
    return "/".join([part, "none", *rest])


def _seeds(found: dict[str, dict[str, float]], name: str) -> list[tuple[str, dict[str, float]]]:
    """The results of a row, for the seeds whose run without an attack has been done."""
    own = [(key.rpartition("/")[2], result) for key, result in found.items() if key.rpartition("/")[0] == name]
    return [(seed, result) for seed, result in own if f"{_without(name)}/{seed}" in found]


def main() -> int:
    """Run the missing cells, and print all results."""
    parser = arguments(__doc__, "benchmarks/results/attacks.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=["table", "alone"])
    args = parser.parse_args()
    names = cells(args.seeds, args.only)
    found = run_kept("benchmarks.attacks:run_cell", names, args)
    show(found)
    return int(len(found) < len(names))


if __name__ == "__main__":
    sys.exit(main())
