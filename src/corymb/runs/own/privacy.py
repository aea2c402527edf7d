"""Checks that a private run computes nothing on client data outside its privacy accounting, and its spent budget."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

from corymb.core.snapshot import Algorithm, Snapshot
from corymb.runs.settings import RunSettings
from corymb.settings import require

UNACCOUNTED = (
    "ε covers private rounds only: if the models of the start were trained on these clients without privacy, it does "
    "not cover what they reveal"
)


def is_private(algorithm: Any) -> bool:
    """Whether an algorithm, or one that it wraps, has private rounds."""
    inside = [getattr(algorithm, field.name) for field in fields(algorithm)] if is_dataclass(algorithm) else []
    wrapped = any(hasattr(one, "run") and is_private(one) for one in inside)
    return wrapped or getattr(algorithm, "privacy", None) is not None


def check_covered(algorithm: Algorithm, settings: RunSettings, *, standardises: bool) -> None:
    """Reject settings that would use clients' examples outside the privacy accounting."""
    if not is_private(algorithm):
        return
    uncovered = "privacy does not account for"
    require(
        not standardises,
        f"{uncovered} the means and scales of raw features: scale them by known numbers and give --scale "
        "none (scale='none', on a federation where the nodes read their data).",
    )
    require(settings.class_weight != "balanced", f"{uncovered} counts of classes: give class_weight as numbers.")
    require(settings.until == "rounds", f"{uncovered} stopping when losses stop falling: leave until at 'rounds'.")


def spent_in(at: Snapshot) -> dict[str, float]:
    """ε and δ of a private run, as metrics."""
    if "delta" not in at.notes or "epsilon" not in at.notes:
        return {}
    epsilon = at.notes["epsilon"]
    return {"epsilon": math.inf if epsilon is None else float(epsilon), "delta": float(at.notes["delta"])}
