"""Assign new clients to clusters by a few labelled examples, or decide that no cluster fits.

A cluster fits if the mean loss of its model is no larger than that of nearly all of the run's clients on as many
examples. To calibrate this, every client of the run draws some of its test examples, which no model was trained on, and
returns the loss of the best model on them; quantiles of these losses are stored with the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from corymb.core.client import Client, on_client
from corymb.core.federation import Federation
from corymb.core.objective import Examples, Objective
from corymb.core.pixels import MAX_PIXEL
from corymb.data.features import Array, as_array, as_features
from corymb.data.prepare.cells import as_column
from corymb.data.prepare.columns import ColumnPlan
from corymb.data.prepare.pictures import channels_first
from corymb.data.prepare.pipeline import Preparation
from corymb.data.readers.frames import frame_columns, is_frame
from corymb.data.schema import DataSchema
from corymb.keys import fold, uniform
from corymb.local import point_losses
from corymb.runs.serving import rows_at_once
from corymb.settings import InvalidInput, did_you_mean, require
from corymb.trees import Params, count, take

SIZES = (1, 2, 5, 10, 20, 50)
"""Numbers of examples for which thresholds are calibrated; others are interpolated."""
OUTLIER = 0.995
"""A new client is an outlier if this share of the run's clients has a smaller loss."""
LAST_DIGITS = 32.0
"""Units in the last place of a target, by which rounding in training and prediction may move a prediction."""
CHECKED = 8
"""Clients whose losses are compared with those that they have in a block with others."""
DRAWS = 2000
"""Approximate number of draws of test examples over all clients, for each size."""


class Calibration(NamedTuple):
    """The distribution of losses of the run's own clients."""

    thresholds: Tensor
    """For each of `SIZES`, the `OUTLIER` quantile of the mean losses of the run's own clients."""
    scale: Tensor
    """Divides a loss to give a negative log-likelihood."""


class Assignment(NamedTuple):
    """The cluster that a new client belongs to."""

    cluster: int | None
    """None if no cluster fits."""
    probability: float
    """The probability of the nearest cluster, given that the client belongs to one of them."""
    nearest: int
    losses: list[float]
    """The mean loss of each cluster's model on the examples; infinite for a cluster without clients."""
    threshold: float | None
    """The loss up to which a cluster fits; None for a run without test examples, where the nearest always fits."""

    def __str__(self) -> str:
        if self.cluster is None:
            best = self.losses[self.nearest]
            return f"no cluster fits: the nearest, {self.nearest}, has loss {best:.4g}, above {self.threshold:.4g}"
        unsure = "" if self.threshold is not None else " (whether it fits is unknown: the run had no test examples)"
        return f"cluster {self.cluster}, probability {self.probability:.4f}{unsure}"


@on_client
def draw_test_losses(client: Client, models: Params, *, draws: int) -> Tensor:
    """The best model's mean loss on a few test examples (draws sizes); -1 without test examples.

    A draw is without replacement, as a new client's examples would be. If there are too few examples, all are drawn.
    """
    test = client.test
    if not len(test.y):
        return torch.full((draws, len(SIZES)), -1.0, device=test.weight.device, dtype=test.weight.dtype)
    losses = point_losses(client, models, on=test)  # k m
    keys = fold(client.key("calibration"), torch.arange(draws, device=losses.device))
    m = test.weight.shape[-1]
    order = (uniform(keys, (m,)) + 2 * (test.weight == 0)).argsort(-1)  # draws m; padding last
    weight = test.weight[order]
    places = torch.tensor([min(size, m) - 1 for size in SIZES], device=losses.device)
    total = (torch.where(weight > 0, losses[:, order], 0)).cumsum(-1)[..., places]
    smallest = (total / weight.cumsum(-1)[:, places].clamp_min(1)).amin(0)
    finite = smallest.nan_to_num(nan=torch.finfo(smallest.dtype).max, posinf=torch.finfo(smallest.dtype).max)
    return torch.where(test.weight.sum() > 0, finite, -1)


def calibrate(fed: Federation, models: Params, labels: Tensor) -> Calibration | None:
    """Calibrate on the losses of the run's clients; None if no client has a cluster and test examples."""
    used = labels[labels >= 0].unique()
    if not len(used):
        return None
    available = fed.evaluation().clients
    clients = available[available.pick(labels) >= 0]
    draws = max(1, min(50, DRAWS // int((labels >= 0).sum())))
    rows = clients.map(draw_test_losses, take(models, used.to(_device(models))), draws=draws).value.double().cpu()
    drawn = rows[rows[:, 0, 0] >= 0].flatten(0, 1)  # clients' draws, sizes
    if not len(drawn):
        return None
    squared = fed.objective.squared is not None
    scale = 2 * drawn[:, -1].mean().clamp_min(1e-12) if squared else torch.ones((), dtype=torch.float64)
    return Calibration(drawn.quantile(OUTLIER, dim=0), scale)


def _device(models: Params) -> torch.device:
    return next(iter(models.values())).device


def assign(
    objective: Objective,
    models: Params,
    used: Tensor,
    examples: Examples,
    sizes: Sequence[int],
    calibration: Calibration | None,
) -> list[Assignment]:
    """Assign clients to the clusters in use; their examples follow one another, as many as `sizes` says."""
    with torch.no_grad():
        losses = _losses(objective, models, examples, sizes)
    mean = torch.stack([own.mean(1) for own in losses.split(list(sizes), 1)]).double()  # n k
    mean = torch.where(used, mean.nan_to_num(nan=torch.inf), torch.inf)
    scale = 1.0 if calibration is None else float(calibration.scale)
    likely = torch.softmax(-mean * torch.tensor(sizes)[:, None] / scale, 1).nan_to_num(nan=0.0)
    rounding = [_rounding(objective, y) for y in examples.y.split(list(sizes))]
    thresholds: Sequence[float | None] = [None] * len(sizes)
    if calibration is not None:
        thresholds = list(map(max, _thresholds(calibration, sizes), rounding))
    return [
        _answer(*facts)
        for facts in zip(mean.tolist(), mean.argmin(1).tolist(), likely.tolist(), thresholds, strict=True)
    ]


def _answer(mean: list[float], nearest: int, likely: list[float], threshold: float | None) -> Assignment:
    fits = math.isfinite(mean[nearest]) and (threshold is None or mean[nearest] <= threshold)
    return Assignment(nearest if fits else None, likely[nearest], nearest, mean, threshold)


def _losses(objective: Objective, models: Params, examples: Examples, sizes: Sequence[int]) -> Tensor:
    """The loss of every model on every example (k m), of many clients at once unless that changes a client's losses."""

    def of(some: Examples) -> Tensor:
        return torch.stack([objective.losses(take(models, j), some) for j in range(count(models))])

    by_client = [Examples(*part) for part in zip(*(one.split(list(sizes)) for one in examples), strict=True)]
    if len(by_client) == 1:
        return of(by_client[0])
    blocks = [Examples(*map(torch.cat, zip(*block, strict=True))) for block in _blocks(by_client)]
    first, alone = of(blocks[0]), torch.cat([of(one) for one in by_client[:CHECKED]], 1)[:, : len(blocks[0].y)]
    if not torch.allclose(first[:, : alone.shape[1]], alone, rtol=1e-3, atol=1e-6, equal_nan=True):
        return torch.cat([of(one) for one in by_client], 1)
    return torch.cat([first, *(of(block) for block in blocks[1:])], 1)


def _blocks(by_client: Sequence[Examples]) -> Iterator[list[Examples]]:
    """Yield blocks of clients with about as many examples as are predicted at once."""
    most, block, held = rows_at_once(by_client[0].x), list[Examples](), 0
    for one in by_client:
        if block and held + len(one.y) > most:
            yield block
            block, held = [], 0
        block.append(one)
        held += len(one.y)
    yield block


def _rounding(objective: Objective, y: Tensor) -> float:
    """The squared loss that rounding alone may cause: targets without noise are fitted to the last digits."""
    if objective.squared is None or not y.is_floating_point():
        return 0.0
    y, digit = y.double(), torch.finfo(torch.float32).eps  # targets are kept in single precision
    squared = (LAST_DIGITS * digit) ** 2 * y.var(correction=0) + (digit * y.mean()) ** 2
    return float(objective.squared * squared / getattr(objective, "score_unit", 1.0))


def _thresholds(calibration: Calibration, sizes: Sequence[int]) -> list[float]:
    """The threshold for each number of examples, interpolated linearly in its logarithm."""
    found: list[float] = np.interp(np.log(sizes), np.log(SIZES), calibration.thresholds.numpy()).tolist()
    return found


def rows_of(owners: Array) -> list[tuple[str, Array]]:
    """Each client with the indices of its rows, sorted by name.

    >>> [(name, rows.tolist()) for name, rows in rows_of(np.array(["b", "a", "b"]))]
    [('a', [1]), ('b', [0, 2])]
    """
    names, place, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(place, kind="stable"), np.cumsum(sizes)[:-1])
    return [(str(name), rows) for name, rows in zip(names, parts, strict=True)]


def to_tree(calibration: Calibration | None) -> Any:
    """Convert to a tree that `corymb.wire` can pack."""
    return None if calibration is None else tuple(calibration)


def from_tree(tree: Any) -> Calibration | None:
    """The inverse of `to_tree`."""
    return None if tree is None else Calibration(*tree)


# ---- examples as users give them


def features_of(x: Any, schema: DataSchema) -> Tensor:
    """Prepare a user's examples as the clients prepared theirs; a single example becomes a batch."""
    features = _prepared(x, schema)
    require(
        tuple(features.shape[1:]) == schema.features,
        f"Examples have shape {list(features.shape[1:])}, but those of the run have shape {list(schema.features)}.",
    )
    finite = not features.is_floating_point() or bool(features.isfinite().all())
    require(finite, "A feature is not finite: fill it in, or leave out the example.")
    return features


def _prepared(x: Any, schema: DataSchema) -> Tensor:
    how, x = schema.preparation, _by_name(x)
    if is_frame(x) or isinstance(x, Mapping):
        plans = (how.columns if how else ()) or tuple(ColumnPlan(name, "number") for name in schema.feature_names)
        require(len(plans) > 0, "The run's examples are arrays without column names: give an array.")
        return (how or Preparation("none"))._replace(columns=plans).apply(frame_columns(x).cells)
    array = as_array(x)
    one = array.shape in _shapes_of_one(schema) or (how is not None and array.shape == (len(how.columns),))
    array = array[None] if one else array
    if how is not None:
        return how.apply(array)
    if schema.codes:
        return torch.as_tensor(array)
    pixels = array.dtype == np.uint8 and not schema.standardise
    array = channels_first(array) if schema.picture and array.shape[1:] != schema.features else array
    return as_features(array) / MAX_PIXEL if pixels else as_features(array)


def _shapes_of_one(schema: DataSchema) -> set[tuple[int, ...]]:
    """The shapes that a single example may have: of a picture also with its channels last, or without its only one."""
    if not schema.picture:
        return {schema.features}
    channels, *sides = schema.features
    last, plain = (*sides, channels), tuple(sides)
    return {schema.features, last, plain} if channels == 1 else {schema.features, last}


def _by_name(x: Any) -> Any:
    """Examples as columns by name where they come as one or several mappings: rows of a frame, records of a service."""
    if hasattr(x, "to_dict") and hasattr(x, "index") and not is_frame(x) and len(x):  # a row, or a column, of pandas
        x = dict(x.items()) if all(isinstance(name, str) for name in x.index) else x
    if isinstance(x, Mapping):
        return {name: [cell] if _is_cell(cell) else cell for name, cell in x.items()}
    if isinstance(x, (list, tuple)) and len(x) and all(isinstance(row, Mapping) for row in x):
        names = dict.fromkeys(name for row in x for name in row)
        return {name: [row.get(name) for row in x] for name in names}
    return x


def _is_cell(value: object) -> bool:
    return isinstance(value, str) or np.ndim(value) == 0  # type: ignore[arg-type]


def targets_of(y: ArrayLike, schema: DataSchema) -> Tensor:
    """Convert a user's labels for the objective: numbers, or indices of classes."""
    values = as_array(y).reshape(-1)
    if schema.task == "regression":
        try:
            targets = torch.as_tensor(values.astype(np.float64))
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"The labels of this run are numbers: {error}.") from None
        require(bool(targets.isfinite().all()), "A label is not finite: fill it in, or leave out the example.")
        return targets
    cells = as_column(values, "y")
    names = [cells.text(row) for row in range(len(values))]
    places = {name: place for place, name in enumerate(schema.classes)}
    unknown = next((name for name in names if name not in places), None)
    if unknown is not None:
        raise InvalidInput(f"There is no class {unknown!r}. {did_you_mean(unknown, schema.classes)}")
    return torch.tensor([places[name] for name in names])
