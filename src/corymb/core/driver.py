"""The driver: runs an algorithm, advances the clock, stamps snapshots and retries rounds with too few replies."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from corymb.core.federation import ClientsFailed, Federation, TooFewReplies
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.core.yielded import Yielded
from corymb.settings import InvalidInput, fingerprint, first_line, to_dict

log = logging.getLogger(__name__)
FAILURES_IN_A_ROW = 3


def drive(
    algorithm: Algorithm,
    fed: Federation,
    start: Snapshot | None = None,
    *,
    seed: int = 0,
    about: str = "",
    units: str = "",
) -> Iterator[Snapshot]:
    """Run `algorithm`, from `start` if given; yields a stamped snapshot after every round.

    Continuing from any yielded snapshot gives exactly the rest of the uninterrupted run. `about` identifies the data
    and the model in the fingerprint, `units` the data that features are standardised by.
    """
    mark = fingerprint_of(algorithm, about)
    if start is not None and start.fingerprint not in ("", mark):
        raise InvalidInput(
            f"The snapshot belongs to another run (fingerprint {start.fingerprint}, this run's is {mark}): the "
            "algorithm's settings, data or model differ. Use the same, or start.handover() to begin from its models."
        )
    at, failures = start, list[TooFewReplies]()
    seed, clock = (start.seed, start.clock) if start else (seed, 0)
    yielded = Yielded(algorithm, fed)
    fed.rewind(clock)
    while True:
        fed.set_clock(seed=seed, clock=clock)
        try:
            for snapshot in yielded.of_run(at):
                clock, failures = clock + 1, []
                fed.ledger.rounds += 1
                fed.set_clock(seed=seed, clock=clock)
                at = replace(snapshot, fingerprint=mark, units=units, seed=seed, clock=clock)
                yield at
            return
        except TooFewReplies as problem:
            failures.append(problem)
            fed.ledger.abandoned.append({"clock": clock, "reason": str(problem)})
            if len(failures) == FAILURES_IN_A_ROW:
                if (bug := _same_bug(failures)) is not None:
                    raise ClientsFailed(
                        f"Every client asked in {len(failures)} rounds failed with the same error: "
                        f"{type(bug).__name__}: {first_line(bug)}"
                    ) from bug
                raise
            log.warning("round abandoned at clock %d: %s", clock, problem)
            fed.rewind(clock)  # an abandoned round leaves nothing in client memory
            clock += 1
            at = at and replace(at, clock=clock)


def _same_bug(failures: Sequence[TooFewReplies]) -> BaseException | None:
    """The error that all clients of several rounds raised, if it is the same one.

    Each round asks different clients, so the bug is in the client function and not at the clients.
    """
    causes = [problem.__cause__ for problem in failures]
    alike = {None if cause is None else (type(cause), str(cause)) for cause in causes}
    return causes[-1] if len(alike) == 1 else None


LAST_STAGES = ("then", "finish", "inner", "second")
"""Settings that hold the stage which runs last: changing its `rounds` extends a run and keeps its fingerprint."""


def fingerprint_of(algorithm: Algorithm, about: str) -> str:
    """The fingerprint two runs must share for one to continue the other: settings (except rounds), data and model."""
    return fingerprint(type(algorithm).__name__, _without_rounds(algorithm), about)


def _without_rounds(algorithm: object) -> dict[str, Any]:
    settings = {name: value for name, value in to_dict(algorithm).items() if name != "rounds"}
    for name in settings:
        if hasattr(stage := getattr(algorithm, name), "run"):
            inside = _without_rounds(stage) if name in LAST_STAGES else to_dict(stage)
            settings[name] = {"algorithm": type(stage).__name__, **inside}
    return settings
