"""New clients: which cluster a few labelled examples belong to, how sure that is, and whether any cluster fits at all.

A cluster fits where the mean loss of its model is not larger than it is, with so many examples, at nearly all clients
of the run. For that every client of the run draws some of its test examples, which no model was trained on, and says
how large the loss of the best model is on them; a quantile of what they say stays with the run.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, Examples, Objective, on_client
from corymb.core.federation import Federation
from corymb.keys import fold, uniform
from corymb.trees import Params, count, take

SIZES = (1, 2, 5, 10, 20, 50)
"""How many examples a new client may have; in between, thresholds are interpolated."""
OUTLIER = 0.995
"""A new client is called an outlier if so many genuine ones have a smaller loss."""
DRAWS = 2000
"""About so many draws of test examples in all, for every size."""


class Calibration(NamedTuple):
    """What the losses of genuine clients look like."""

    thresholds: Tensor
    """For each of `SIZES`: the mean loss that genuine clients hardly ever exceed."""
    scale: Tensor
    """What a loss is divided by to be a negative log-likelihood."""


class Assignment(NamedTuple):
    """Where a new client belongs."""

    cluster: int | None
    """None: no cluster fits."""
    probability: float
    """Of the nearest cluster among all, if one of them it is."""
    nearest: int
    losses: list[float]
    """The mean loss of each cluster's model on the examples; infinite for a cluster without clients."""
    threshold: float | None
    """The loss up to which a cluster fits; None for a run without test examples, where one always does."""

    def __str__(self) -> str:
        if self.cluster is None:
            best = self.losses[self.nearest]
            return f"no cluster fits: the nearest, {self.nearest}, has loss {best:.4g}, more than {self.threshold:.4g}"
        unsure = "" if self.threshold is not None else " (whether it fits is not known: the run had no test examples)"
        return f"cluster {self.cluster}, probability {self.probability:.4f}{unsure}"


@on_client
def draw_test_losses(client: Client, models: Params, *, draws: int) -> Tensor:
    """The smallest of the models' mean losses on a few test examples: draws x sizes; -1 without test examples.

    A draw is without replacement, as a new client's examples would be; where there are too few, all are drawn.
    """
    test, k = client.test, count(models)
    losses = torch.stack([client.objective.losses(take(models, j), test) for j in range(k)])  # k m
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
    """What genuine clients' losses look like, asked through the door; None where nobody has test examples."""
    used = labels[labels >= 0].unique()
    if not len(used) or not _have_test(fed):
        return None
    clients = fed.evaluation().clients[labels >= 0]
    draws = max(1, min(50, DRAWS // len(clients)))
    rows = clients.map(draw_test_losses, take(models, used.to(_device(models))), draws=draws).value.double().cpu()
    said = rows[rows[:, 0, 0] >= 0].flatten(0, 1)  # clients' draws, sizes
    if not len(said):
        return None
    squared = bool(getattr(fed.objective, "squared", False))
    scale = 2 * said[:, -1].mean().clamp_min(1e-12) if squared else torch.ones((), dtype=torch.float64)
    return Calibration(said.quantile(OUTLIER, dim=0), scale)


def _have_test(fed: Federation) -> bool:
    sizes = fed.evaluation().clients.map(count_test_examples).value
    return bool((sizes > 0).any())


@on_client
def count_test_examples(client: Client) -> Tensor:
    """How many test examples the client has."""
    return client.test.weight.sum()


def _device(models: Params) -> torch.device:
    return next(iter(models.values())).device


def assign(
    objective: Objective, models: Params, used: Tensor, examples: Examples, calibration: Calibration | None
) -> Assignment:
    """Where a client with these examples belongs, of the clusters that have clients."""
    with torch.no_grad():
        mean = torch.stack([objective.losses(take(models, j), examples).mean() for j in range(count(models))]).double()
    mean = torch.where(used, mean.nan_to_num(nan=torch.inf), torch.inf)
    scale = 1.0 if calibration is None else float(calibration.scale)
    likely = torch.softmax(-mean * len(examples.y) / scale, 0).nan_to_num(nan=0.0)
    nearest = int(mean.argmin())
    threshold = None if calibration is None else _threshold(calibration, len(examples.y))
    fits = math.isfinite(float(mean[nearest])) and (threshold is None or float(mean[nearest]) <= threshold)
    return Assignment(nearest if fits else None, float(likely[nearest]), nearest, mean.tolist(), threshold)


def _threshold(calibration: Calibration, m: int) -> float:
    """The threshold for m examples: between the sizes that were asked for, linear in log m."""
    import numpy as np

    return float(np.interp(math.log(m), [math.log(size) for size in SIZES], calibration.thresholds.tolist()))


def to_tree(calibration: Calibration | None) -> Any:
    """As a tree that can be written."""
    return None if calibration is None else tuple(calibration)


def from_tree(tree: Any) -> Calibration | None:
    """What `to_tree` made."""
    return None if tree is None else Calibration(*tree)
