"""User-defined metrics, computed at the clients: functions of predictions and labels with a value per example."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from corymb.core.client import Client, ClientFn, Served, on_client
from corymb.core.engine import each
from corymb.core.federation import Federation, TooFewReplies
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.evaluate import Evaluation
from corymb.local import serving
from corymb.local.reference import weighted_mean
from corymb.runs.serving import predictions
from corymb.settings import InvalidInput, require
from corymb.trees import Params
from corymb.wire import WireError

Metric = Callable[[Tensor, Tensor], Tensor]
"""From predictions (logits (m classes), or numbers (m) in the units of the data) and labels (m) to values (m)."""


class Measured(NamedTuple):
    """A client's values of user-defined metrics."""

    means: dict[str, Tensor]
    """The mean of each metric over the client's test examples; 0 if it has none."""
    tested: Tensor


@on_client
def measure_own(
    client: Client,
    models: Params,
    label: Tensor,
    share: Tensor | None,
    *,
    serve: ClientFn[..., Params | Served],
    metrics: Mapping[str, Metric],
) -> Measured:
    """The mean of each metric over the client's test examples, with the model that it is served."""
    test, objective = client.test, client.objective
    predicted = predictions(objective, serve(client, models, label, share), test.x)
    means = {
        name: weighted_mean(_checked(name, fn(predicted, test.y), test.weight), test.weight)
        for name, fn in metrics.items()
    }
    return Measured(means, test.weight.sum())


def _checked(name: str, values: Tensor, weight: Tensor) -> Tensor:
    shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
    wanted = f"one value for each of {len(weight)} examples"
    require(shape == list(weight.shape), f"Metric {name!r} returned {shape}: wanted a tensor with {wanted}.")
    return values.to(weight.dtype)


def check_metrics(metrics: object) -> dict[str, Metric]:
    """Validate the `metrics` argument of `fit`."""
    named = isinstance(metrics, Mapping) and all(isinstance(name, str) and name.isidentifier() for name in metrics)
    require(named, 'metrics must map names to functions: metrics={"name": function(predictions, y)}.')
    assert isinstance(metrics, Mapping)
    for name, metric in metrics.items():
        require(callable(metric), f"Metric {name!r} is a {type(metric).__name__}: wanted a function(predictions, y).")
    return dict(metrics)


def with_own(
    found: Evaluation, fed: Federation, algorithm: Algorithm, at: Snapshot, metrics: Mapping[str, Metric]
) -> Evaluation:
    """Add `test_<name>` to an evaluation for each metric: the mean over clients of each client's mean.

    A client whose value is not finite makes the metric NaN, and is named among those not scored.
    """
    for name in metrics:
        require(f"test_{name}" not in found.metrics, f"There already is a metric {name!r}: give yours another name.")
    clients = fed.evaluation().clients
    share = None if at.shares is None else each(clients.pick(at.shares))
    labels = clients.pick(at.labels)
    serve = serving(algorithm.serve, labels)
    try:
        replies = clients.map(measure_own, at.models, each(labels), share, serve=serve, metrics=dict(metrics))
    except TooFewReplies as problem:
        raise InvalidInput(f"Metrics {', '.join(metrics)} have no finite value at any client: {problem}.") from None
    except WireError:
        raise InvalidInput("metrics= are functions of this process: they cannot be sent to remote clients.") from None
    silent = [fed.names[place] for place in (~replies.clients.mask).nonzero().flatten().tolist()]
    tested = replies.value.tested > 0
    means = {f"test_{name}": float(row[tested].double().mean()) for name, row in replies.value.means.items()}
    if silent:
        means = dict.fromkeys(means, math.nan)
    kept = {name: value for name, value in means.items() if bool(tested.any())}
    named = [*found.not_scored, *(name for name in silent if name not in found.not_scored)]
    return found._replace(metrics={**found.metrics, **kept}, not_scored=named)
