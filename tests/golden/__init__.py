"""A few rounds of every algorithm as text: what a change that is no change of results must reproduce.

Each line is one round on one engine: stage, labels, training loss, then for every model parameter the sum and the norm
of each row, and a hash of all bits. `python -m tests.golden` writes the files anew.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from corymb.core.snapshot import Snapshot
from corymb.testing.engines import IN_PROCESS
from corymb.trees import leaves
from tests.contracts.cases import CASES, run

FOLDER = Path(__file__).parent
NO_REPAIR = {
    f"{name}, no repair": case._replace(algorithm=replace(case.algorithm, repair=False))
    for name, case in CASES.items()
    if hasattr(case.algorithm, "repair")
}
GOLDEN = CASES | NO_REPAIR


def path_of(name: str) -> Path:
    return FOLDER / f"{name.replace(',', '').replace(' ', '-').lower()}.txt"


def lines_of(name: str, engine: str) -> Iterator[str]:
    case = GOLDEN[name]
    for at in run(case, case.federation(engine), seed=1):
        yield f"{engine} | {_line(at)}"


def _line(at: Snapshot) -> str:
    labels = " ".join(map(str, at.labels.tolist()))
    loss = at.notes.get("train_loss")
    numbers = []
    for parameter, rows in sorted(at.models.items()):
        flat = rows.reshape(len(rows), -1).double()
        pairs = zip(flat.sum(1).tolist(), flat.norm(dim=1).tolist(), strict=True)
        numbers.append(f"{parameter} " + " ".join(f"{total!r} {norm!r}" for total, norm in pairs))
    return " | ".join(
        [f"{at.stage} {at.round}".strip(), labels, "-" if loss is None else repr(loss), *numbers, _bits(at)]
    )


def _bits(at: Snapshot) -> str:
    digest = hashlib.sha256()
    for leaf in leaves((at.models, at.labels)):
        digest.update(leaf.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def write() -> None:
    for name in GOLDEN:
        path_of(name).write_text("".join(f"{line}\n" for engine in IN_PROCESS for line in lines_of(name, engine)))
