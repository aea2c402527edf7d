"""Tiny federations for tests: ragged clients in float64, made with NumPy, without `corymb.data`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corymb.core.client import Objective
from corymb.core.federation import Federation
from corymb.engines import LoopEngine, Placement, VectorisedEngine
from corymb.settings import fingerprint

SIZES = (1, 2, 5, 7, 7, 12)
DOUBLE = Placement(dtype=torch.float64)


class Ragged(NamedTuple):
    x: Tensor
    y: Tensor
    offsets: Tensor


class Data(NamedTuple):
    names: list[str]
    train: Ragged
    test: Ragged

    @property
    def schema(self) -> dict:
        """What the examples are like."""
        task = "regression" if self.train.y.is_floating_point() else "classification"
        return {"task": task, "features": tuple(self.train.x.shape[1:]), "classes": ()}

    def fingerprint(self) -> str:
        """Equal exactly where the data are."""
        tensors = [t for rows in (self.train, self.test) for t in rows]
        return fingerprint(self.names, [t.tolist() for t in tensors])

    def at(self, positions: Sequence[int]) -> "Data":
        """Some of the clients, with their names, in that order."""
        return Data([self.names[i] for i in positions], _at(self.train, positions), _at(self.test, positions))


def _at(rows: Ragged, positions: Sequence[int]) -> Ragged:
    spans = [slice(int(rows.offsets[i]), int(rows.offsets[i + 1])) for i in positions]
    x, y = (torch.cat([t[span] for span in spans]) for t in (rows.x, rows.y))
    return Ragged(x, y, offsets([span.stop - span.start for span in spans]))


def join(first: Data, second: Data) -> Data:
    """The clients of both."""
    rows = [
        Ragged(
            torch.cat([a.x, b.x]),
            torch.cat([a.y, b.y]),
            offsets([*a.offsets.diff().tolist(), *b.offsets.diff().tolist()]),
        )
        for a, b in ((first.train, second.train), (first.test, second.test))
    ]
    return Data([*first.names, *second.names], *rows)


def offsets(sizes: Sequence[int]) -> Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


def clients(x: Tensor, y: Tensor, sizes: Sequence[int], *, test: int = 0) -> Data:
    """The last `test` rows of each client are its test examples."""
    spans = list(torch.arange(sum(sizes)).split(list(sizes)))
    train = torch.cat([span[: len(span) - test] for span in spans])
    held = torch.cat([span[len(span) - test :] for span in spans])
    return Data(
        [f"client-{i}" for i in range(len(sizes))],
        Ragged(x[train], y[train], offsets([m - test for m in sizes])),
        Ragged(x[held], y[held], offsets([test] * len(sizes))),
    )


def regression(sizes: Sequence[int] = SIZES, truth: Sequence[int] | None = None, *, d: int = 3, seed: int = 0) -> Data:
    """y = x·θ of the client's cluster plus a little noise; two test examples each."""
    rng = np.random.default_rng(seed)
    truth = np.arange(len(sizes)) % 2 if truth is None else np.asarray(truth)
    total = [m + 2 for m in sizes]
    theta = rng.normal(size=(truth.max() + 1, d)) * 2
    x = rng.normal(size=(sum(total), d))
    y = (x * theta[np.repeat(truth, total)]).sum(1) + 0.01 * rng.normal(size=len(x))
    return clients(torch.tensor(x), torch.tensor(y), total, test=2)


def classification(
    sizes: Sequence[int] = SIZES,
    truth: Sequence[int] | None = None,
    *,
    shape: tuple[int, ...] = (4,),
    classes: int = 3,
    seed: int = 0,
) -> Data:
    """Classes by the client's cluster's own linear rule; two test examples each."""
    rng = np.random.default_rng(seed)
    truth = np.arange(len(sizes)) % 2 if truth is None else np.asarray(truth)
    total = [m + 2 for m in sizes]
    rule = rng.normal(size=(truth.max() + 1, classes, int(np.prod(shape))))
    x = rng.normal(size=(sum(total), *shape))
    y = np.einsum("ncd,nd->nc", rule[np.repeat(truth, total)], x.reshape(len(x), -1)).argmax(1)
    return clients(torch.tensor(x), torch.tensor(y), total, test=2)


def tokens(sizes: Sequence[int] = SIZES, *, length: int = 5, words: int = 7, classes: int = 3, seed: int = 0) -> Data:
    """Sequences of whole numbers with a class each."""
    rng = np.random.default_rng(seed)
    total = [m + 2 for m in sizes]
    x = rng.integers(words, size=(sum(total), length))
    return clients(torch.tensor(x), torch.tensor(x.sum(1) % classes), total, test=2)


ENGINES = {
    "loop": LoopEngine,
    "vectorised": VectorisedEngine,
}


def federation(engine: str, objective: Objective, data: Data, where: Placement = DOUBLE, **options) -> Federation:
    """A federation on one of the `ENGINES`."""
    return Federation(ENGINES[engine](objective, data, where), **options)


def farthest(got, want) -> float:
    """The largest difference between two trees of tensors; a NaN counts as infinite."""
    from corymb.trees import flatten

    (left, shape), (right, other) = flatten(got), flatten(want)
    assert shape == other, f"{shape} != {other}"
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape, f"{list(a.shape)} != {list(b.shape)}"
        difference = (a.double() - b.double()).abs().nan_to_num(nan=float("inf"))
        worst = max(worst, float(difference.max()) if difference.numel() else 0.0)
    return worst
