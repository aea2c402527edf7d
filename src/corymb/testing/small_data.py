"""Small data sets for tests: clients of different sizes, in float64, generated with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corymb.settings import fingerprint

SIZES = (1, 2, 5, 7, 7, 12)
"""The default numbers of training examples of the clients."""
HELD_OUT = 2
"""Test examples of each client."""


class SmallRows(NamedTuple):
    """All clients' examples, concatenated client by client."""

    x: Tensor
    y: Tensor
    offsets: Tensor


class SmallData(NamedTuple):
    """A data set as engines need it (`corymb.core.engine.ClientData`)."""

    names: list[str]
    train: SmallRows
    test: SmallRows
    classes: int = 0

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the examples, as in a run, without the fields that only tables have."""
        task = "regression" if self.train.y.is_floating_point() else "classification"
        return {
            "task": task,
            "features": tuple(self.train.x.shape[1:]),
            "classes": tuple(map(str, range(self.classes))),
            "standardise": False,
            "codes": not self.train.x.is_floating_point(),
            "linear": False,
        }

    def fingerprint(self) -> str:
        """Equal exactly if the data are equal."""
        tensors = [t for rows in (self.train, self.test) for t in rows]
        return fingerprint(self.names, [t.tolist() for t in tensors])

    def at(self, positions: Sequence[int]) -> SmallData:
        """The clients at these positions, with their names, in this order."""
        names = [self.names[i] for i in positions]
        return SmallData(names, _at(self.train, positions), _at(self.test, positions), self.classes)


def _at(rows: SmallRows, positions: Sequence[int]) -> SmallRows:
    spans = [slice(int(rows.offsets[i]), int(rows.offsets[i + 1])) for i in positions]
    x, y = (torch.cat([t[span] for span in spans]) for t in (rows.x, rows.y))
    return SmallRows(x, y, offsets([span.stop - span.start for span in spans]))


def join(first: SmallData, second: SmallData) -> SmallData:
    """The clients of both."""
    train, test = (
        SmallRows(
            torch.cat([a.x, b.x]),
            torch.cat([a.y, b.y]),
            offsets([*a.offsets.diff().tolist(), *b.offsets.diff().tolist()]),
        )
        for a, b in ((first.train, second.train), (first.test, second.test))
    )
    return SmallData([*first.names, *second.names], train, test, max(first.classes, second.classes))


def offsets(sizes: Sequence[int]) -> Tensor:
    """The start of each client's examples, and the end of the last one's."""
    return torch.tensor([0, *sizes]).cumsum(0)


def clients(x: Tensor, y: Tensor, sizes: Sequence[int], *, test: int = 0) -> SmallData:
    """Clients of these sizes; the last `test` examples of each are its test examples."""
    spans = list(torch.arange(sum(sizes)).split(list(sizes)))
    train = torch.cat([span[: len(span) - test] for span in spans])
    held = torch.cat([span[len(span) - test :] for span in spans])
    return SmallData(
        [f"client-{i}" for i in range(len(sizes))],
        SmallRows(x[train], y[train], offsets([m - test for m in sizes])),
        SmallRows(x[held], y[held], offsets([test] * len(sizes))),
    )


def regression(
    sizes: Sequence[int] = SIZES, truth: Sequence[int] | None = None, *, d: int = 3, seed: int = 0
) -> SmallData:
    """y = x·θ of the client's cluster plus a little noise; two test examples each."""
    rng = np.random.default_rng(seed)
    cluster = _clusters(sizes, truth)
    total = [m + HELD_OUT for m in sizes]
    theta = rng.normal(size=(cluster.max() + 1, d)) * 2
    x = rng.normal(size=(sum(total), d))
    y = (x * theta[np.repeat(cluster, total)]).sum(1) + 0.01 * rng.normal(size=len(x))
    return clients(torch.tensor(x), torch.tensor(y), total, test=HELD_OUT)


def classification(
    sizes: Sequence[int] = SIZES,
    truth: Sequence[int] | None = None,
    *,
    shape: tuple[int, ...] = (4,),
    classes: int = 3,
    seed: int = 0,
) -> SmallData:
    """Classes by a linear rule of the client's cluster; two test examples each."""
    rng = np.random.default_rng(seed)
    cluster = _clusters(sizes, truth)
    total = [m + HELD_OUT for m in sizes]
    rule = rng.normal(size=(cluster.max() + 1, classes, int(np.prod(shape))))
    x = rng.normal(size=(sum(total), *shape))
    y = np.einsum("ncd,nd->nc", rule[np.repeat(cluster, total)], x.reshape(len(x), -1)).argmax(1)
    return clients(torch.tensor(x), torch.tensor(y), total, test=HELD_OUT)._replace(classes=classes)


def _clusters(sizes: Sequence[int], truth: Sequence[int] | None) -> Any:
    return np.arange(len(sizes)) % 2 if truth is None else np.asarray(truth)


def tokens(
    sizes: Sequence[int] = SIZES, *, length: int = 5, words: int = 7, classes: int = 3, seed: int = 0
) -> SmallData:
    """Sequences of whole numbers with a class each."""
    rng = np.random.default_rng(seed)
    total = [m + HELD_OUT for m in sizes]
    x = rng.integers(words, size=(sum(total), length))
    return clients(torch.tensor(x), torch.tensor(x.sum(1) % classes), total, test=HELD_OUT)._replace(classes=classes)
