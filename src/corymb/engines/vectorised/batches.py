"""The batches of a stack of clients: where they lie among the examples, and the examples themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    def last(self, clients: int) -> Places:
        """The places of the last clients."""
        return Places(*(t[-clients:] for t in self))

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


def steps_of(on: Examples, key: Key, how: Descent, *, padded: bool = True, shrinks: bool = False) -> Iterator[Step]:
    """The steps of a descent. Without `padded`, for clients of equal size, a short last batch is not filled up.

    If the stack `shrinks`, the first clients are left out once they have finished (`stack_sizes`).
    """
    x, y = _flat(on) if how.batch is not None else (on.x, on.y)
    m = on.weight.shape[1]
    sizes = stack_sizes(how, on.weight) if shrinks else []
    for step, (rows, active) in enumerate(Batches(how, on.weight, key)):
        if rows is None:
            yield on, active, Draws(key, step)
            continue
        if how.batch is not None and not padded:
            rows = rows[:, : m - step % -(-m // how.batch) * how.batch]
        places = Places.of(rows, on.weight, active)
        yield _step(places, active, key, step, x, y, sizes[step] if sizes else len(rows))


def _step(places: Places, active: Tensor | None, key: Key, step: int, x: Tensor, y: Tensor, clients: int) -> Step:
    """A step of the last clients of a stack."""
    if clients < len(places.rows):
        places, key, active = places.last(clients), key[-clients:], None if active is None else active[-clients:]
    return places.examples(x, y), active, Draws(key, step, places.rows)


def stack_sizes(how: Descent, weight: Tensor) -> list[int]:
    """For every step of a stack on a CPU, how many clients it still has; empty if all take equally many steps.

    A client with more examples takes more steps in an epoch, and clients are sorted by size. Once enough of the first
    ones have finished, the stack is cut to the others, so that steps compute little that is not used. It is cut to
    powers of two and to the numbers halfway between them, so that different stacks have steps of the same shapes, which
    are recorded once (`tape`).

    >>> stack_sizes(Descent(epochs=2, batch=1), torch.tensor([[1.0, 0, 0], [1, 0, 0], [1, 0, 0], [1, 1, 1]]))
    [4, 4, 1, 1, 1, 1]
    """
    if how.epochs is None or how.batch is None:
        return []
    each = (how.epochs * ((weight > 0).sum(1) + how.batch - 1).floor_divide(how.batch).clamp_min(1)).tolist()
    if min(each) == max(each):
        return []
    sizes, clients, finished = list[int](), len(each), 0
    for step in range(max(each)):
        while each[finished] <= step:
            finished += 1
        clients = min(clients, _rounded_up(len(each) - finished))
        sizes.append(clients)
    return sizes


def _rounded_up(number: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    power = 1 << (number - 1).bit_length()
    return power * 3 // 4 if 4 * number <= 3 * power else power


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

    def of(self, some: slice, sizes: Sequence[int] = ()) -> Iterator[Step]:
        """The steps of some clients; `sizes` has how many of them are left at every step (`stack_sizes`)."""
        key, clients = self._key[some], some.stop - some.start
        for step, (all_places, active) in enumerate(self._steps[: len(sizes) or None]):
            own = None if active is None else active[some]
            places = Places(*(t[some] for t in all_places))
            yield _step(places, own, key, step, self._x, self._y, sizes[step] if sizes else clients)


def _flat(on: Examples) -> tuple[Tensor, Tensor]:
    return on.x.flatten(0, 1), on.y.flatten(0, 1)
