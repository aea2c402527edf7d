"""The fault matrix: every kind of fault in every algorithm on every engine.

One client of seven has the fault. No run may end early, every model must be finite, the bad client must be named if the
server can detect the fault, and no honest client may be. `make faults` runs all cells and prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.faults import KINDS, Fault, inject
from corymb.testing.cases import CASES
from corymb.testing.engines import ENGINES
from corymb.testing.laws.algorithms import check_number
from corymb.trees import leaves

ALGORITHMS = {
    "FedAvg": "FedAvg",
    "FedProx": "FedProx",
    "Alone": "Alone",
    "IFCA": "IFCA",
    "IFCA, gradients": "IFCA, gradients",
    "IFCA, soft": "IFCA, soft",
    "IFCA, k found": "IFCA, any number",
    "SR-FCA": "SR-FCA",
    "ONE_SHOT-IFCA": "one shot, then IFCA",
    "Local-KMeans": "local k-means",
    "one-shot": "one-shot",
    "FedX": "FedX",
    "FedSoft": "FedSoft",
    "CFL": "CFL",
    "moment descent": "moment descent",
    "UIFCA": "UIFCA",
    "k-FED": "k-FED",
    "ClusterGAN": "ClusterGAN",
    "oracle": "Oracle",
}
"""One case for every algorithm of the catalogue, and IFCA's main forms."""
BAD = "client-3"
NUMBERLESS = frozenset({"Alone", "k-FED", "moment descent", "Local-KMeans", "one-shot"})
"""Algorithms whose rows are losses, centres or minimisers, which are not expected near any model."""
BOUNDED = frozenset({"huge", "large", "one-large"})
"""Faults that are detected only by comparison with a model."""
OF_SUMS = frozenset({"nan-weight", "negative-weight", "forged-weight", "forged-label", "negative-label", "nan-note"})
"""Faults that only a share can have."""


class Cell(NamedTuple):
    """One run of the matrix."""

    fault: str
    algorithm: str
    engine: str


class Outcome(NamedTuple):
    """The result of a cell; `problem` is empty if it passed."""

    cell: Cell
    problem: str
    named: bool


def cells() -> Iterator[Cell]:
    """All cells, engines changing fastest."""
    yield from (Cell(f, a, e) for f in KINDS for a in ALGORITHMS for e in ENGINES)


def run_cell(cell: Cell) -> Outcome:
    """Run a cell."""
    case = CASES[ALGORITHMS[cell.algorithm]]
    engine = inject(case.engine(cell.engine), [Fault(cell.fault, clients=(BAD,))])
    fed = Federation(engine)
    try:
        snapshots = list(drive(case.algorithm, fed, seed=3))
    except Exception as error:  # any error that ends a run is a result of the matrix
        return Outcome(cell, f"ended: {type(error).__name__}: {str(error)[:80]}", named=False)
    rejected = {entry["client"] for entry in fed.ledger.rejected}
    return Outcome(cell, _problem(cell, snapshots, rejected), named=BAD in rejected)


def _problem(cell: Cell, snapshots: Sequence[object], rejected: set[str]) -> str:
    case = CASES[ALGORITHMS[cell.algorithm]]
    try:
        check_number(case, len(snapshots))
    except AssertionError:
        return f"{len(snapshots)} rounds"
    for at in snapshots:
        if not all(bool(torch.isfinite(value).all()) for value in leaves(at.models)):  # type: ignore[attr-defined]
            return "a model is not finite"
    if rejected - {BAD}:
        return f"honest clients named: {', '.join(sorted(rejected - {BAD}))}"
    if must_be_named(cell) and BAD not in rejected:
        return "not named"
    return ""


def must_be_named(cell: Cell) -> bool:
    """Whether the server can detect the fault, and so must name the client."""
    if not KINDS[cell.fault].named or (cell.fault in BOUNDED and cell.algorithm in NUMBERLESS):
        return False
    return cell.fault not in OF_SUMS
