"""Records of rounds as plain values for JSON lines, and the detection of divergence and convergence in them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corymb.core.federation import Ledger
from corymb.core.smallest import BLOCK
from corymb.core.snapshot import Snapshot
from corymb.evaluate import clusters_in_use

Round = dict[str, Any]
"""Always has clock, round, stage, train_loss, churn, moves, clusters, asked, replied, rejected, bytes_down, bytes_up,
notes and seconds. `moves` maps the position (as text) of each client whose label changed to its new label, in the first
round that of all clients with a label: see `labels_after`. `notes` come from the algorithm, such as a repair or the
evidence for k or a threshold. An evaluated round also has `metrics`; `not_scored`, the names of clients that could not
be scored; `points`, the number of training examples in each cluster if examples are clustered; and `evaluated_loss`,
the training loss of the scored clients, infinite once a client's loss is. `diverging` marks rounds whose loss has grown
(see `GROWN`), and `warning` the one round in which that was reported. `loss_unit` is present if losses have no natural
zero, such as negative log-densities: the amount of loss that counts as small. `refreshed` marks the first round on new
data, since losses on the old data cannot be compared with later ones."""


CONVERGED = "converged"
"""The reason to stop when further rounds would change nothing."""
BUDGET = "privacy budget"
"""The reason to stop when the clients' privacy budget is exhausted."""
ENDED = ("", CONVERGED, BUDGET)
"""The values of `stopped` for a run that has finished."""
GROWN = 10.0
"""A loss has grown if it is more than this many times that of the first round of the run and of its stage.

The test is on the difference, more than 9 times the first loss, so that it also works for negative losses."""
IN_A_ROW = 3
"""A run diverges if its loss has grown in this many consecutive evaluations, or rounds."""
LEAST = 0.01
"""The floor of the first loss in that test (unless there is a `loss_unit`): a run may start at the optimum."""


class Mark(NamedTuple):
    """The labels of the clients and the counts of the ledger after a round."""

    labels: Tensor | None
    asked: int
    replied: int
    rejected: int
    bytes_down: int
    bytes_up: int

    @staticmethod
    def of(ledger: Ledger, labels: Tensor | None) -> Mark:
        """The current labels and counts."""
        return Mark(labels, ledger.asked, ledger.replied, len(ledger.rejected), ledger.bytes_down, ledger.bytes_up)


def record(snapshot: Snapshot, before: Mark, after: Mark, seconds: float, loss_unit: float | None = None) -> Round:
    """The record of the round between two marks."""
    changed = _changed(before.labels, snapshot.labels)
    return {
        "clock": snapshot.clock,
        "round": snapshot.round,
        "stage": snapshot.stage,
        "train_loss": snapshot.notes.get("train_loss"),
        "churn": float(torch.tensor(float(len(changed))) / len(snapshot.labels)),  # in float32, as recorded before
        "moves": dict(zip(map(str, changed.tolist()), snapshot.labels[changed].tolist(), strict=True)),
        "clusters": clusters_in_use(snapshot.labels),
        **{name: getattr(after, name) - getattr(before, name) for name in Mark._fields[1:]},
        "notes": {name: value for name, value in snapshot.notes.items() if name != "train_loss"},
        "seconds": round(seconds, 4),
        **({} if loss_unit is None else {"loss_unit": loss_unit}),
    }


_NUMBERS = ("clock", "round", "clusters", "asked", "replied", "rejected", "bytes_down", "bytes_up", "seconds", "churn")


def is_number(value: object) -> bool:
    """Whether a value read from a file is a number within the range of a float; booleans are not."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def round_problem(row: object, clients: int | None = None) -> str:
    """Why a value read from a file is not a valid record of a round with this many clients; empty if it is."""
    if not isinstance(row, dict):
        return f"it is a {type(row).__name__}"
    odd = [name for name in _NUMBERS if not is_number(row.get(name))]
    odd += ["train_loss"] if row.get("train_loss") is not None and not is_number(row["train_loss"]) else []
    odd += ["stage"] if not isinstance(row.get("stage"), str) else []
    odd += ["metrics"] if not isinstance(row.get("metrics", {}), dict) else []
    odd += [name for name in ("notes", "moves") if not isinstance(row.get(name), dict)]
    if not odd and any(not place.isdecimal() or type(label) is not int for place, label in row["moves"].items()):
        odd = ["moves"]
    if not odd and clients is not None and any(int(place) >= clients for place in row["moves"]):
        return f"it moves a client that is not one of the {clients}"
    return f"its {odd[0]} is missing or of another type" if odd else ""


def _changed(before: Tensor | None, now: Tensor) -> Tensor:
    """The positions of the clients that have a new label; before the first round no client has one."""
    blocks, places, done = now.split(BLOCK), [torch.empty(0, dtype=torch.int64)], 0
    for block, last in zip(blocks, repeat(None) if before is None else before.split(BLOCK), strict=False):
        places.append(done + (block >= 0 if last is None else block != last).nonzero().flatten())
        done += len(block)
    return torch.cat(places)


def labels_after(history: Sequence[Round], rounds: int, n: int) -> list[int]:
    """The labels of n clients after the first `rounds` rounds of a history; -1 for none.

    >>> labels_after([{"moves": {"0": 1, "2": 0}}, {"moves": {"2": 1}}], 2, 3)
    [1, -1, 1]
    """
    labels = [-1] * n
    for row in history[:rounds]:
        for place, label in row["moves"].items():
            labels[int(place)] = label
    return labels


# ---- losses that grow


class Growth(NamedTuple):
    """The first and the last training loss."""

    first: float
    last: float


def noted_loss(row: Round) -> float | None:
    """The training loss noted by the algorithm; None if it notes none."""
    loss: float | None = row["train_loss"]
    return loss


def evaluated_loss(row: Round) -> float | None:
    """The training loss at the round's evaluation; None if it was not evaluated."""
    if "evaluated_loss" not in row:
        return None
    return math.inf if row["evaluated_loss"] is None else float(row["evaluated_loss"])  # JSON has null for infinity


def on_these_data(history: Sequence[Round]) -> Sequence[Round]:
    """The rounds since the last refresh with new data; all rounds if there was none.

    >>> on_these_data([{"clock": 1}, {"clock": 2, "refreshed": True}, {"clock": 3}])
    [{'clock': 2, 'refreshed': True}, {'clock': 3}]
    """
    first = next((place for place in reversed(range(len(history))) if history[place].get("refreshed")), 0)
    return history[first:] if first else history


def of_this_plan(history: Sequence[Round]) -> Sequence[Round]:
    """The rounds that count among those that the algorithm has planned: all, or those since it last restarted.

    A refresh restarts the algorithm from its models, unless clients keep memory: then its count of rounds continues.

    >>> of_this_plan([{"round": 1}, {"round": 2}, {"round": 1, "refreshed": True}])
    [{'round': 1, 'refreshed': True}]
    >>> len(of_this_plan([{"round": 1}, {"round": 2}, {"round": 3, "refreshed": True}]))
    3
    """
    places = reversed(range(len(history)))
    first = next((at for at in places if history[at].get("refreshed") and history[at]["round"] == 1), 0)
    return history[first:] if first else history


def growth(history: Sequence[Round], loss_of: Callable[[Round], float | None], times: int = IN_A_ROW) -> Growth | None:
    """The growth of the loss, if it has grown in each of the last `times` rounds in which it is known; else None."""
    history = on_these_data(history)
    last = [(row, loss) for row in history[-1:] if (loss := loss_of(row)) is not None]
    for row in reversed(history[:-1] if last else ()):
        if len(last) == times:
            break
        if (loss := loss_of(row)) is not None:
            last.append((row, loss))
    firsts = [_first_loss(history, row["stage"], loss_of) for row, _ in last]
    grown = [
        not loss <= first + (GROWN - 1) * max(abs(first), row.get("loss_unit", LEAST))
        for first, (row, loss) in zip(firsts, last, strict=True)
    ]
    return Growth(firsts[0], last[0][1]) if len(last) == times and all(grown) else None


def _first_loss(history: Sequence[Round], stage: str, loss_of: Callable[[Round], float | None]) -> float:
    """The reference loss: the larger of the first losses of the run and of the stage.

    The run's alone would not do, since locally trained models are no reference for shared ones. A round's noted loss is
    measured before its training, so it is a better reference than its evaluation. It is not used as the reference of an
    evaluation if it misses clients whose replies were rejected.
    """

    def known(row: Round) -> tuple[float | None, float | None]:
        partial = loss_of is evaluated_loss and row.get("rejected", 0) > 0
        return None if partial else noted_loss(row), evaluated_loss(row)

    found = (
        next((loss for row in rows for loss in known(row) if loss is not None), None)
        for rows in (history, (row for row in history if row["stage"] == stage))
    )
    return max((loss for loss in found if loss is not None), default=0.0)


# ---- losses that no longer fall


SETTLED = 10
"""Rounds in a window: a run has converged if its mean loss differs from that of the previous window ..."""
LITTLE = 0.002
"""... by less than this fraction, and no client or example has changed cluster meanwhile."""


NOISE = 0.01
"""Losses of batches, or of a few clients, are noisy. The window is doubled until the standard error of its mean is at
most this fraction of the loss: two means over ten rounds would soon be equal by chance."""


def converged(history: Sequence[Round]) -> bool:
    """Whether the last rounds, all of one stage, changed neither the training loss nor any cluster assignment."""
    history, window = on_these_data(history), SETTLED
    while len(history) >= 2 * window:
        rows = history[-2 * window :]
        losses = [noted_loss(row) for row in rows]
        moving = any(row["churn"] or row.get("notes", {}).get("moved") for row in rows[1:])
        if rows[0]["stage"] != rows[-1]["stage"] or moving:
            return False
        known = [loss for loss in losses if loss is not None and math.isfinite(loss)]
        if len(known) < len(rows):
            return False
        before, now = math.fsum(known[:window]), math.fsum(known[window:])
        if abs(before - now) > LITTLE * abs(before):
            return False
        if _noise(known) * math.sqrt(2 / window) <= NOISE * abs(before) / window:
            return True
        window *= 2
    return False


FALLING = 0.03
"""A loss that fell by more than this fraction in the last `SETTLED` rounds is still falling."""
SHORT = 0.1
"""Steps that have decayed to less than this fraction of the first may be what keeps a loss from falling."""
SETTLING = 0.15
"""A loss that would fall by more than this fraction in `SETTLED` rounds of undecayed steps has not settled. Of the
tables in docs/explanation/real-tables.md these are the ones with hardly any noise, which gain from longer training."""
LONGER = 4
"""The factor by which more rounds are then suggested, with a correspondingly slower decay of the step size."""


def unfinished(history: Sequence[Round], config: Mapping[str, Any]) -> str:
    """A message if a run with the default rounds ended while its training loss was still falling; else empty.

    The same holds for a run whose steps became short before its loss settled, even if its rounds were given.

    >>> rows = [{"stage": "", "train_loss": 0.9**t} for t in range(40)]
    >>> unfinished(rows, {"until": "converged", "rounds": 40, "local": {"decay": 0.97}})
    'the training loss is still falling (by 65 % in the last 10 rounds); try --rounds 160 --local.decay 0.9925'
    """
    history = on_these_data(history)
    rows, rounds, local = history[-2 * SETTLED :], config.get("rounds"), config.get("local") or {}
    losses = [loss for row in rows if (loss := noted_loss(row)) is not None and math.isfinite(loss)]
    if not isinstance(rounds, int) or len(losses) < 2 * SETTLED or rows[0]["stage"] != rows[-1]["stage"]:
        return ""
    before, now = math.fsum(losses[:SETTLED]), math.fsum(losses[SETTLED:])
    fell, decay = (before - now) / abs(before) if before else 0.0, local.get("decay", 1.0)
    if config.get("until") == CONVERGED and fell > FALLING:
        reason = f"the training loss is still falling (by {100 * fell:.0f} % in the last {SETTLED} rounds)"
    elif fell <= FALLING and local.get("batch") is None and (full := _with_full_steps(fell, decay, history)) > SETTLING:
        reason = (
            f"steps became short before the training loss settled ({SETTLED} rounds of full ones would lower it by "
            f"about {100 * min(full, 1):.0f} %)"
        )
    else:
        return ""
    slower = f" --local.decay {1 - (1 - decay) / LONGER:g}" if decay < 1 else ""
    return f"{reason}; try --rounds {LONGER * rounds}{slower}"


def _with_full_steps(fell: float, decay: float, history: Sequence[Round]) -> float:
    """Estimate how much a loss that fell by `fell` in the last rounds would have fallen with undecayed steps.

    0 if steps are not short. The estimate is meaningless with batches, whose noise falls with the step size.
    """
    rounds = sum(row["stage"] == history[-1]["stage"] for row in history)
    lengths = [decay**t for t in range(rounds - 3 * SETTLED // 2, rounds - SETTLED // 2)]  # between the two means
    return fell * len(lengths) / math.fsum(lengths) if decay**rounds < SHORT else 0.0


def _noise(losses: Sequence[float]) -> float:
    """The standard deviation of losses around their linear trend."""
    places = np.arange(len(losses))
    return float(np.std(np.asarray(losses) - np.polyval(np.polyfit(places, losses, 1), places)))


def divergence(history: Sequence[Round], config: Mapping[str, Any], times: int = 1) -> str:
    """A message on how the training loss grew and the setting to change; empty if it has not grown at the end.

    >>> rows = [{"stage": "", "train_loss": loss} for loss in (1.2, 40.0, 340.0)]
    >>> divergence(rows, {"local": {"lr": 0.1}})
    'training loss grew from 1.2 to 340: lower --local.lr (now 0.1)'
    """
    grown = growth(history, evaluated_loss, times) or growth(history, noted_loss, times)
    if grown is None:
        return ""
    last = readable(grown.last, 3) if math.isfinite(grown.last) else "infinity"
    steps = dict(_step_sizes(config))
    name = "local.lr" if "local.lr" in steps else next(iter(steps), None)
    advice = "use smaller steps" if name is None else f"lower --{name} (now {steps[name]:g})"
    return f"training loss grew from {readable(grown.first, 3)} to {last}: {advice}"


def _step_sizes(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _step_sizes(value, f"{prefix}{name}.")
        elif name == "lr" and isinstance(value, (int, float)):
            yield f"{prefix}{name}", value


# ---- formatting


def readable(value: float, digits: int = 4) -> str:
    """Format a number to this many significant digits, without an exponent up to 1e15.

    >>> readable(33763.2), readable(0.12345), readable(1e-7), readable(33763.2, 2), readable(1.2345e12)
    ('33,760', '0.1235', '1e-07', '34,000', '1,234,000,000,000')
    """
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e+" in text and abs(value) < 1e15 else text


def counted(number: int, what: str) -> str:
    """Format a count with its noun in the singular or plural.

    >>> counted(1, "cluster"), counted(2, "cluster"), counted(12_000, "client")
    ('1 cluster', '2 clusters', '12,000 clients')
    """
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def plain(value: Any) -> Any:
    """Replace infinities and NaN, which JSON does not have, by None."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
