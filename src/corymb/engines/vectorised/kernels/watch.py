"""Observes how much a kernel works on at once, and reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from corymb.core.client import Examples
from corymb.local.descent import CURVATURE_BATCHES, Descent


class Watch:
    """Observes how much a kernel works on at once, and reports its progress.

    During descents, `report` is called before each step with the fraction done, over all clients of the stack, and at
    the end with 1; during other work, which has no steps, it is called with 0.
    """

    def __init__(self, report: Callable[[float], None] = lambda part: None) -> None:
        self.rows, self.batch, self.brief = 1, 0, False
        self.how: Descent | None = None
        self.report = report

    @contextmanager
    def trial(self, *, brief: bool) -> Iterator[None]:
        """Start observing afresh; `brief` descents take one step, with one example instead of a batch."""
        self.rows, self.batch, self.brief = 1, 0, brief
        try:
            yield
        finally:
            self.brief = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Report no progress for work that is only repeated for a comparison."""
        report, self.report = self.report, lambda part: None
        try:
            yield
        finally:
            self.report = report

    @contextmanager
    def part(self, done: int, clients: int, total: int) -> Iterator[None]:
        """Report progress as part of `total` clients, of which `done` are finished and `clients` descend now."""
        report, self.report = self.report, lambda part: report((done + clients * part) / total)
        try:
            yield
        finally:
            self.report = report

    @contextmanager
    def repeating(self) -> Iterator[Callable[[], None]]:
        """A function that reports the last progress again, to call while waiting for other threads."""
        report, last = self.report, 0.0

        def noted(part: float) -> None:
            nonlocal last
            last = part
            report(part)

        self.report = noted
        try:
            yield lambda: report(last)
        finally:
            self.report = report

    def note_stack(self, on: Examples) -> None:
        """Note the number of models in a stack."""
        self.rows = max(self.rows, len(on.weight))
        self.report(0.0)

    def descent(self, how: Descent) -> Descent:
        """Note a descent and its batch size; returns the descent to run, shortened during a brief trial."""
        self.how = how
        if how.batch is not None:
            self.batch = max(self.batch, how.batch * (CURVATURE_BATCHES if how.safe else 1))
        if not self.brief:
            return how
        return replace(how, steps=1, epochs=None, batch=None if how.batch is None else 1, safe=False)

    def work(self, sizes: Tensor) -> Tensor:
        """The relative cost of the last descent for clients of these sizes: the number of examples per step."""
        batch = None if self.how is None or self.how.epochs is not None else self.how.batch
        return sizes if batch is None else sizes.clamp(max=batch)
