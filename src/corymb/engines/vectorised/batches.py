"""The batches of a stack of clients: where they lie among the examples, and the examples themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Examples
from corymb.core.objective import Draws
from corymb.keys import Key
from corymb.local.descent import MAX_DRAWN_ROWS, Batches, Descent

Step = tuple[Examples, Tensor | None, Draws]
"""The examples of a step, the clients that take it (None: all), and its draws."""


class Places(NamedTuple):
    """Where the batches of n clients lie, B examples each."""

    rows: Tensor
    """The rows of each client's own examples: n B. -1 fills up a short batch."""
    flat: Tensor
    """The same rows, numbered through all clients' examples."""
    weight: Tensor
    """The weights of the examples; 0 for a row that does not count."""

    @staticmethod
    def of(rows: Tensor, weight: Tensor, active: Tensor | None = None) -> Places:
        """The places of these rows; clients that are not active get weight 0."""
        count = rows >= 0 if active is None else (rows >= 0) & active[:, None]
        n, m = weight.shape
        flat = rows.clamp_min(0) + m * torch.arange(n, device=rows.device)[:, None]
        return Places(rows, flat, torch.where(count, _at(flat, weight.flatten()), 0))

    def examples(self, x: Tensor, y: Tensor) -> Examples:
        """The batches, from the examples of all clients in one flat tensor: twice as fast as from x[i, j]."""
        return Examples(_at(self.flat, x), _at(self.flat, y), self.weight)


def _at(places: Tensor, flat: Tensor) -> Tensor:
    return flat.index_select(0, places.flatten()).reshape(*places.shape, *flat.shape[1:])


def some_rows(on: Examples, rows: Tensor) -> Examples:
    """Some rows of every client's examples; row -1 gets weight 0."""
    return Places.of(rows, on.weight).examples(*_flat(on))


def steps_of(on: Examples, key: Key, how: Descent, *, padded: bool = True) -> Iterator[Step]:
    """The steps of a descent. Without `padded`, for clients of equal size, a short last batch is not filled up."""
    x, y = _flat(on) if how.batch is not None else (on.x, on.y)
    m = on.weight.shape[1]
    for step, (rows, active) in enumerate(Batches(how, on.weight, key)):
        if rows is None:
            yield on, active, Draws(key, step)
            continue
        if how.batch is not None and not padded:
            rows = rows[:, : m - step % -(-m // how.batch) * how.batch]
        yield Places.of(rows, on.weight, active).examples(x, y), active, Draws(key, step, rows)


def number_of_steps(how: Descent, examples: int) -> int:
    """The number of steps in the descent of a client with this many examples."""
    if how.batch is None or how.epochs is None or not examples:
        return how.steps or how.epochs or 1
    return how.epochs * -(-examples // how.batch)


class DrawnSteps:
    """The steps of a descent in batches, located for all clients at once and to be taken by some clients at a time.

    For a few clients, locating a batch takes as long as for a hundred.
    """

    def __init__(self, on: Examples, key: Key, how: Descent) -> None:
        self._key, (self._x, self._y) = key, _flat(on)
        drawn = [(rows, active) for rows, active in Batches(how, on.weight, key) if rows is not None]
        self._steps = [(Places.of(rows, on.weight, active), active) for rows, active in drawn]

    @staticmethod
    def fit(on: Examples, how: Descent) -> bool:
        """Whether the places of all batches fit into little memory."""
        each = (how.batch or 0) * (how.steps or 1) if how.epochs is None else how.epochs * on.weight.shape[1]
        return len(on.weight) * each <= MAX_DRAWN_ROWS

    def of(self, some: slice) -> Iterator[Step]:
        """The steps of some clients."""
        key = self._key[some]
        for step, (all_places, active) in enumerate(self._steps):
            places = Places(*(t[some] for t in all_places))
            draws = Draws(key, step, places.rows)
            yield places.examples(self._x, self._y), None if active is None else active[some], draws


def _flat(on: Examples) -> tuple[Tensor, Tensor]:
    return on.x.flatten(0, 1), on.y.flatten(0, 1)
