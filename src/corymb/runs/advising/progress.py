"""The progress of trials: the line of a run, with the rounds of all trials and the time left."""

from __future__ import annotations

from corymb.runs.history import Round
from corymb.runs.progress import RoundLine


class TrialLine:
    """Shows the rounds of all trials, done and expected, as one line."""

    def __init__(self, line: RoundLine) -> None:
        self._line, self._name = line, ""

    def begin(self, name: str, rounds: int, later: int) -> None:
        self._name = name
        self._line.expect(self._line.done + rounds + later)

    def round(self, row: Round) -> None:
        self._line({**row, "stage": f"{self._name} {row['stage']}".strip()})


class SilentObserver:
    """Shows nothing."""

    def begin(self, name: str, rounds: int, later: int) -> None: ...
    def round(self, row: Round) -> None: ...
