"""Validation of data sets. Every error is one line that says how to correct it.

Examples are checked once, when a data set is created; subsets of its clients are not checked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from corymb.core.names import ClientNames
from corymb.data.ragged import Ragged, owners
from corymb.settings import InvalidInput, require

if TYPE_CHECKING:
    from corymb.data.dataset import FederatedDataset

_BLOCK = 2**22  # values checked at once, so that a check does not copy the data
_FLOATS = (torch.float16, torch.float32, torch.float64)  # types supported by files and fingerprints


def check_dataset(data: FederatedDataset) -> None:
    """Raise `InvalidInput` at the first problem with `data`."""
    check_names(data.names)
    for part, examples in (("train", data.train), ("test", data.test)):
        _check_layout(part, examples, len(data.names))
    _check_alike(data.train, data.test)
    _check_no_empty_client(data)
    _check_labels(data)
    for part, examples in (("train", data.train), ("test", data.test)):
        _check_finite(part, examples, data)
    _check_truth(data)


def check_names(names: Sequence[str]) -> None:
    """Reject a data set without clients, empty names and duplicate names."""
    require(len(names) > 0, "The data set has no clients: give it the examples of at least one.")
    if isinstance(names, ClientNames) and names.numbered:
        return
    require(all(isinstance(name, str) and name for name in names), "Client names must be text and not empty.")
    seen: set[str] = set()
    for name in names:
        require(name not in seen, f"Two clients are called {name!r}: merge the two or rename one.")
        seen.add(name)


def check_features(shape: Sequence[int]) -> None:
    """Reject examples without features; `shape` is that of one example."""
    require(0 not in shape, f"One example has shape {list(shape)}, which has no features: give at least one.")


def _check_layout(part: str, examples: Ragged, n: int) -> None:
    x, y, offsets = examples
    require(x.ndim >= 2, f"{part}.x has the shape {list(x.shape)}: wanted [rows, features].")
    check_features(x.shape[1:])
    require(y.ndim == 1, f"{part}.y has the shape {list(y.shape)}: wanted one label for each row.")
    require(len(x) == len(y), f"{part}.x has {len(x)} rows and {part}.y {len(y)}: give one label for each row.")
    require(
        offsets.dtype == torch.int64 and offsets.device.type == "cpu" and offsets.shape == (n + 1,),
        f"{part}.offsets is {offsets.dtype} {list(offsets.shape)} on {offsets.device}: wanted int64 [{n + 1}] on the "
        f"CPU, one more than the {n} clients.",
    )
    ascending = int(offsets[0]) == 0 and bool((offsets.diff() >= 0).all()) and int(offsets[-1]) == len(x)
    require(ascending, f"{part}.offsets must rise from 0 to the number of rows, {len(x)}, without falling.")


def _check_alike(train: Ragged, test: Ragged) -> None:
    for name, one, other in (("x", train.x, test.x), ("y", train.y, test.y)):
        same = one.shape[1:] == other.shape[1:] and one.dtype == other.dtype
        require(
            same,
            f"One row of train.{name} is {one.dtype} {list(one.shape[1:])} and of test.{name} {other.dtype} "
            f"{list(other.shape[1:])}: they must agree.",
        )
    x = train.x
    require(
        x.dtype in (*_FLOATS, torch.uint8, torch.int64),
        f"x is {x.dtype}: wanted floating features (float16, float32 or float64), uint8 pixels or int64 codes.",
    )


def _check_no_empty_client(data: FederatedDataset) -> None:
    for position in (data.train.sizes == 0).nonzero()[:1]:
        raise InvalidInput(
            f"Client {data.names[int(position)]!r} has no training examples: every client needs one or more; leave it "
            "out, or hold out fewer of its examples."
        )


def _check_labels(data: FederatedDataset) -> None:
    known = ("classification", "regression", "density")
    require(data.task in known, f"task={data.task!r}: wanted {', '.join(map(repr, known))}.")
    if data.task == "regression":
        wanted = "float16, float32 or float64"
        require(data.train.y.dtype in _FLOATS, f"Regression targets are {data.train.y.dtype}: wanted {wanted}.")
        require(not data.classes, "A regression has no classes: leave `classes` out, or set task='classification'.")
        return
    require(data.train.y.dtype == torch.int64, f"Class labels are {data.train.y.dtype}: wanted int64.")
    if data.task == "density" and not data.classes:
        require(not bool(data.train.y.any()), "Examples have true clusters without names: give `classes`.")
        return
    require(len(data.classes) > 0, "Classification needs the names of the classes: give `classes`.")
    require(len(set(data.classes)) == len(data.classes), "Two classes have the same name: names must differ.")
    for part, examples in (("train", data.train), ("test", data.test)):
        _check_range(part, examples, data)


def _check_range(part: str, examples: Ragged, data: FederatedDataset) -> None:
    beyond = (examples.y < 0) | (examples.y >= len(data.classes))
    if bool(beyond.any()):
        row = int(beyond.nonzero()[0, 0])
        raise InvalidInput(
            f"{_place(part, examples, row, data)}: the label is {int(examples.y[row])}, but there are "
            f"{len(data.classes)} classes, numbered from 0: correct it or name more classes."
        )


def _check_finite(part: str, examples: Ragged, data: FederatedDataset) -> None:
    for name, values in (("feature", examples.x), ("label", examples.y)):
        rows = max(1, _BLOCK // max(1, values[:1].numel()))
        for start in range(0, len(values) if values.is_floating_point() else 0, rows):
            block = values[start : start + rows]
            # The sum is finite only if every value is, so a mask of the block is only computed if it is not.
            if not bool(block.sum(dtype=torch.float64).isfinite()):
                _name_the_offender(part, examples, name, block, start, data)


def _name_the_offender(
    part: str, examples: Ragged, name: str, block: Tensor, start: int, data: FederatedDataset
) -> None:
    bad = (~block.isfinite()).nonzero()
    if len(bad) == 0:
        return  # huge but finite values: only their sum overflowed
    row, *column = bad[0].tolist()
    value = float(block[tuple(bad[0])])
    what = f"{name} {_column(column, data)}" if column else name
    shown = "nan" if value != value else f"{value}, or beyond what float32 holds ({torch.finfo(torch.float32).max:.3g})"
    raise InvalidInput(
        f"{_place(part, examples, start + row, data)}: {what} is {shown}: every value must be finite; correct it or "
        "drop the row."
    )


def _column(column: list[int], data: FederatedDataset) -> str:
    if len(column) > 1:
        return str(column)
    return repr(data.feature_names[column[0]]) if data.feature_names else str(column[0])


def _place(part: str, examples: Ragged, row: int, data: FederatedDataset) -> str:
    position = int(owners(examples.offsets, torch.tensor(row)))
    number = row - int(examples.offsets[position])
    return f"Client {data.names[position]!r}, {part} example {number}"


def _check_truth(data: FederatedDataset) -> None:
    names, truth = data.feature_names, data.truth
    if names:
        shape = list(data.features)
        require(
            [len(names)] == shape, f"There are {len(names)} feature names for features of shape {shape}: name each one."
        )
    if truth is None:
        return
    n = len(data.names)
    whole = truth.dtype == torch.int64 and truth.shape == (n,) and bool((truth >= 0).all())
    require(
        whole,
        f"truth is {truth.dtype} {list(truth.shape)}: wanted an int64 cluster from 0 for each of the {n} clients.",
    )
    for name, rows in (data.true_parameters or {}).items():
        least = int(truth.max()) + 1
        require(
            len(rows) >= least,
            f"true_parameters[{name!r}] has {len(rows)} rows for {least} true clusters: give each a row.",
        )
