"""What the clients of a run use to predict: the model of their cluster, a mixture of models, or one of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from corymb.core.client import ClientFn, Served
from corymb.core.engine import each
from corymb.core.federation import Federation
from corymb.core.objective import Objective
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data.features import Array
from corymb.data.schema import DataSchema
from corymb.local import serve_assigned, serve_mixture
from corymb.settings import require
from corymb.trees import Params, count, map_tensors, take

ServedBy = Literal["assigned", "mixture", "own", "points"]
"""The model of a client's cluster, all models by its shares, a model that the client keeps itself, or, where every
example has a cluster, all models by the shares of the client's examples, which it keeps itself."""
Serving = tuple[Federation, ClientFn[..., Params | Served]]
"""The clients of a run that keep models of their own, and the client function that returns the one to use."""


def served_by(algorithm: Algorithm) -> ServedBy:
    """What the clients of an algorithm use."""
    if algorithm.serve is serve_assigned:
        return "assigned"
    if labels_points(algorithm):
        return "points"
    return "mixture" if algorithm.serve is serve_mixture else "own"


def labels_points(algorithm: Algorithm | type[Algorithm]) -> bool:
    """Whether the algorithm gives a cluster to every example, not to every client."""
    return hasattr(algorithm, "label_points")


def served_in(snapshot: Snapshot, by: ServedBy, position: int, name: str) -> Params | Served:
    """What a client uses, from a snapshot that holds the models of all clients."""
    label, shares = int(snapshot.labels[position]), snapshot.shares
    if by == "mixture" and shares is not None and float(shares[position].sum()) > 0:
        return Served(snapshot.models, shares[position] / shares[position].sum())
    require(label >= 0, f"Client {name!r} has no cluster: it never took part in a round.")
    return take(snapshot.models, label)


def ask_served(fed: Federation, serve: ClientFn[..., Params | Served], at: Snapshot, position: int) -> Params | Served:
    """What a client uses, asked of the client itself."""
    share = None if at.shares is None else each(at.shares[[position]])
    replies = fed.clients[[position]].map(serve, at.models, each(at.labels[[position]]), share)
    return map_tensors(lambda leaf: leaf[0].cpu(), replies.value)


AT_ONCE, LEAST_ROWS = 2**20, 64
"""So many numbers of examples are predicted for at once, but no fewer rows: what a network makes of them on the way may
take a hundred times their memory."""


def predictions(objective: Objective, served: Params | Served, x: Tensor) -> Tensor:
    """The prediction for each example, of one model or of a mixture of several."""
    return by_blocks(partial(_predicted, objective, served), x)


def by_blocks(of: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A row for each example, made from a block of examples at a time.

    >>> by_blocks(lambda block: block.sum(1), torch.ones(3, 2)).tolist()
    [2.0, 2.0, 2.0]
    """
    rows = max(LEAST_ROWS, AT_ONCE // max(1, x[:1].numel()))
    parts = [of(block) for block in x.split(rows)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _predicted(objective: Objective, served: Params | Served, x: Tensor) -> Tensor:
    if not isinstance(served, Served):
        return objective.predict(served, x)
    of_each = [objective.predict(take(served.models, j), x) for j in range(count(served.models))]
    return objective.mix(torch.stack(of_each), served.weights)


def classes_at(places: Tensor, schema: DataSchema) -> Array:
    """Classes from their positions, as the data had them: whole numbers, or names."""
    numbers = all(name.removeprefix("-").isdigit() and str(int(name)) == name for name in schema.classes)
    classes = np.array([int(name) for name in schema.classes] if numbers else schema.classes)
    chosen: Array = classes[places.numpy()]
    return chosen
