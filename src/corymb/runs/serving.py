"""The models that the clients of a run predict with: their cluster's, a mixture of models, or their own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from corymb.algorithms.parts.own_models import is_refined, serve_refined
from corymb.core.client import ClientFn, Served
from corymb.core.engine import each
from corymb.core.federation import Federation
from corymb.core.objective import Objective
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data.features import Array
from corymb.data.prepare.cells import TRUTH_VALUES
from corymb.data.schema import DataSchema
from corymb.local import serve_assigned, serve_mixture
from corymb.settings import first_line, require
from corymb.trees import Params, count, map_tensors, nbytes, take

log = logging.getLogger(__name__)
MOST_OWN = 2**30
"""The most bytes of clients' own models that are saved with a run."""
ServedBy = Literal["assigned", "mixture", "own", "points", "refined"]
"""`assigned`: the model of the client's cluster. `mixture`: all models, weighted by the client's shares. `own`: a model
that the client keeps itself. `points`: examples are clustered, and all models are weighted by the shares of the
client's examples, which it keeps itself. `refined`: its own model until SR-FCA refines clusters, then `assigned`."""
Serving = tuple[Federation, ClientFn[..., Params | Served]]
"""The clients of a run, if they keep memory, and the client function that returns the model to use."""


def served_by(algorithm: Algorithm) -> ServedBy:
    """How the clients of an algorithm are served."""
    if algorithm.serve is serve_assigned:
        return "assigned"
    if labels_points(algorithm):
        return "points"
    if algorithm.serve is serve_refined:
        return "refined"
    return "mixture" if algorithm.serve is serve_mixture else "own"


def served_at(by: ServedBy, at: Snapshot) -> ServedBy:
    """How clients are served after a round, if that changes during the run."""
    if by != "refined":
        return by
    return "assigned" if is_refined(at.stage) else "own"


def remembers(algorithm: Algorithm) -> bool:
    """Whether further rounds need the client memory of this run; only rounds at the end of a run can be continued."""
    return bool(getattr(algorithm, "keeps_memory", False)) and getattr(algorithm, "rounds_come_last", True)


def labels_points(algorithm: Algorithm | type[Algorithm]) -> bool:
    """Whether the algorithm clusters examples instead of clients."""
    return hasattr(algorithm, "label_points")


def served_in(
    snapshot: Snapshot, by: ServedBy, position: int, name: str, losses: Tensor | None = None
) -> Params | Served:
    """The model or mixture that a client uses, from a snapshot that holds all models.

    `losses` of the client under every model tell which cluster to name if it has none.
    """
    label, shares = int(snapshot.labels[position]), snapshot.shares
    if by == "mixture" and shares is not None and float(shares[position].sum()) > 0:
        return Served(snapshot.models, shares[position] / shares[position].sum())
    require(
        label >= 0 or snapshot.k == 1,
        f"Client {name!r} has no cluster, as no reply of it was accepted in a round. Choose one instead (cluster=, "
        f"--cluster){_nearest(losses)}.",
    )
    return take(snapshot.models, max(label, 0))  # a single model serves every client, as in the run's scores


def _nearest(losses: Tensor | None) -> str:
    """Name the cluster in which a client has the smallest loss, if that is known."""
    if losses is None or not losses.isfinite().any():
        return ""
    return f": {int(losses.nan_to_num(torch.inf).argmin())} fits its training examples best"


def ask_served(fed: Federation, serve: ClientFn[..., Params | Served], at: Snapshot, position: int) -> Params | Served:
    """The model or mixture that a client uses, obtained from the client itself."""
    share = None if at.shares is None else each(at.shares[[position]])
    replies = fed.clients[[position]].map(serve, at.models, each(at.labels[[position]]), share)
    return map_tensors(lambda leaf: leaf[0].cpu(), replies.value)


class OwnModels(NamedTuple):
    """The models that clients keep themselves, as a run folder holds them."""

    known: Tensor
    """n: the clients whose models these are; the others gave no usable reply."""
    models: Params
    """A row for each known client."""
    weights: Tensor | None = None
    """If a client uses several models at once, their weights; each row of `models` then holds all of them."""

    def at(self, position: int) -> Params | Served | None:
        """The model or mixture of a client; None if it is not known."""
        if not bool(self.known[position]):
            return None
        place = int(self.known[:position].sum())
        own = take(self.models, place)
        return own if self.weights is None else Served(own, self.weights[place])


def ask_own(fed: Federation, serve: ClientFn[..., Params | Served], at: Snapshot) -> OwnModels | None:
    """Every client's own model, if the clients are in this process and the models are not too large to be saved.

    A failure is logged: a run must not be lost because of it.
    """
    if not hasattr(innermost(fed._engine), "host") or len(fed.names) * nbytes(take(at.models, 0)) > MOST_OWN:
        return None
    share = None if at.shares is None else each(at.shares)
    try:
        replies = fed.clients.map(serve, at.models, each(at.labels), share)
    except (RuntimeError, MemoryError) as error:  # out of memory, or too few replies
        log.warning("the clients' own models could not be saved: %s", first_line(error))
        return None
    value = map_tensors(lambda leaf: leaf.cpu(), replies.value)
    models, weights = (value.models, value.weights) if isinstance(value, Served) else (value, None)
    return OwnModels(replies.clients.mask, models, weights)


def innermost(engine: Any) -> Any:
    """The engine inside those that wrap it; one that runs clients in this process has a `host`."""
    while not hasattr(engine, "host") and hasattr(engine, "engine"):
        engine = engine.engine
    return engine


AT_ONCE, LEAST_ROWS = 2**20, 64
"""Examples are predicted in blocks of at most `AT_ONCE` feature values, but at least `LEAST_ROWS` rows: the activations
of a network may take a hundred times the memory of its input."""


def predictions(objective: Objective, served: Params | Served, x: Tensor) -> Tensor:
    """The prediction for each example by one model or a mixture of several."""
    return by_blocks(partial(_predicted, objective, served), x)


def by_blocks(of: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function to blocks of examples and join its rows.

    >>> by_blocks(lambda block: block.sum(1), torch.ones(3, 2)).tolist()
    [2.0, 2.0, 2.0]
    """
    parts = [of(block) for block in x.split(rows_at_once(x))]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def rows_at_once(x: Tensor) -> int:
    """The number of examples like these in a block."""
    return max(LEAST_ROWS, AT_ONCE // max(1, x[:1].numel()))


def _predicted(objective: Objective, served: Params | Served, x: Tensor) -> Tensor:
    if not isinstance(served, Served):
        return objective.predict(served, x)
    of_each = [objective.predict(take(served.models, j), x) for j in range(count(served.models))]
    return objective.mix(torch.stack(of_each), served.weights)


def classes_at(places: Tensor, schema: DataSchema) -> Array:
    """Classes from their indices, as in the data: integers, booleans, or names."""
    names = schema.classes
    numbers = all(name.removeprefix("-").isdecimal() and str(int(name)) == name for name in names)
    classes = np.array([int(name) for name in names] if numbers else names)
    if set(names) <= TRUTH_VALUES.keys():  # text would be equal to none of the labels, with no error
        classes = np.array([bool(TRUTH_VALUES[name]) for name in names])
    chosen: Array = classes[places.numpy()]
    return chosen
