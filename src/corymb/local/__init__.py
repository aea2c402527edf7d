"""The operations of a client on its data: `losses`, `scores`, `loss`, `gradient`, `descend`.

Client functions call them as for one client. Under an engine's vmap they leave vmap (`corymb.local.leaving`), and the
engine's kernel computes them for many clients at once. They have no backward pass: differentiate
`client.objective.losses` instead.

One model is a dict of tensors, `params`; k models, `models`, are the same dict with a leading axis k on every tensor.
`on` are the examples to use instead of the client's training examples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corymb.core.client import Client, ClientFn, Served, on_client
from corymb.core.objective import Examples
from corymb.local.descent import Descent
from corymb.local.leaving import Descending, Gradient, Measuring, OfEach, leave
from corymb.local.mistaken import taking
from corymb.local.reference import as_params, weighted_mean
from corymb.trees import Params, count, take

__all__ = [
    "Descent",
    "descend",
    "descend_from",
    "descend_with_loss",
    "gradient",
    "loss",
    "losses",
    "losses_of",
    "one_hot",
    "part",
    "point_losses",
    "score",
    "scores",
    "serve_assigned",
    "serve_labelled",
    "serve_mixture",
    "served_loss",
    "served_predictions",
    "served_score",
    "serving",
]


def losses(client: Client, models: Params, on: Examples | None = None) -> Tensor:
    """The mean loss of each of k models on the client's training examples.

    Arguments:
        client: Whose examples.
        models: k models, stacked: each tensor k × its shape.
        on: Other examples, such as `client.test` or a part of the training examples.

    Returns:
        k losses; a client picks its cluster by their `argmin()`.
    """
    with taking(client, "losses", models, stacked=True):
        return leave(client, Measuring("losses"), models, on or client.train)[0]


def scores(client: Client, models: Params, on: Examples | None = None) -> Tensor:
    """The mean score (accuracy, squared error) of each of k stacked models on the client's test examples: k numbers."""
    with taking(client, "scores", models, stacked=True):
        return leave(client, Measuring("scores"), models, on or client.test)[0]


def loss(client: Client, params: Params, on: Examples | None = None) -> Tensor:
    """The mean loss of one model on the client's training examples, or on `on`: a scalar tensor."""
    with taking(client, "loss", params, stacked=False):
        return losses(client, _one_row(params), on)[0]


def score(client: Client, params: Params, on: Examples | None = None) -> Tensor:
    """The mean score of one model on the client's test examples, or on `on`: a scalar tensor."""
    with taking(client, "score", params, stacked=False):
        return scores(client, _one_row(params), on)[0]


def point_losses(client: Client, models: Params, on: Examples | None = None) -> Tensor:
    """The loss of each of k models on each of the client's m training examples: k m.

    These values describe single examples: do not include them in a reply.
    """
    on = on or client.train
    with taking(client, "point_losses", models, stacked=True):
        return torch.stack([leave(client, OfEach("losses"), take(models, j), on)[0] for j in range(count(models))])


def gradient(client: Client, params: Params, on: Examples | None = None, purpose: str = "gradient") -> Params:
    """The gradient of the mean training loss at one model.

    Arguments:
        client: Whose examples.
        params: The model.
        on: Examples to use instead of the client's training examples.
        purpose: Selects the random key, for example for dropout: two gradients in one call need two purposes.

    Returns:
        A tensor of the same shape for each of the model's tensors.
    """
    with taking(client, "gradient", params, stacked=False):
        return as_params(params, leave(client, Gradient(), params, on or client.train, client.key(purpose)))


def descend(
    client: Client, params: Params, how: Descent, on: Examples | None = None, purpose: str = "batches"
) -> Params:
    """Train one model on the client's examples.

    Arguments:
        client: Whose examples.
        params: The model to start from; it is not modified.
        how: Steps, step size, batches, optimiser.
        on: Examples to use instead of the client's training examples, or the same examples with other weights.
        purpose: Selects the random key of batches and dropout: give each of two descents in one call its own.

    Returns:
        The trained model.
    """
    return descend_with_loss(client, params, how, on, purpose)[0]


def descend_with_loss(
    client: Client, params: Params, how: Descent, on: Examples | None = None, purpose: str = "batches"
) -> tuple[Params, Tensor]:
    """Train one model as `descend` does, and return it with the training loss of `params` on the first step's examples.

    Without a batch size in `how`, those are all examples. The first step computes this loss anyway, including dropout
    and class weights if they are used; a separate pass over all examples could cost as much as the steps.
    """
    _check_descent(how)
    with taking(client, "descend", params, stacked=False):
        *values, before = leave(client, Descending(how), params, on or client.train, client.key(purpose))
    return as_params(params, values), before


def descend_from(
    client: Client, models: Params, label: Tensor, how: Descent, on: Examples | None = None, purpose: str = "batches"
) -> Params:
    """Equivalent to `descend` from `take(models, label)`, with one copy of the model fewer."""
    _check_descent(how)
    models = dict(sorted(models.items()))  # `take` returns the names in this order
    key = torch.stack([client.key(purpose), label.to(torch.int64)])
    with taking(client, "descend_from", models, stacked=True):
        *values, _ = leave(client, Descending(how, chosen=True), models, on or client.train, key)
    return as_params(models, values)


def part(examples: Examples, number: int, parts: int) -> Examples:
    """One of `parts` disjoint parts of the examples: row i is in part i mod `parts`; rows of other parts get weight 0.

    >>> examples = Examples(torch.zeros(4, 2), torch.zeros(4), torch.ones(4))
    >>> part(examples, 0, parts=2).weight
    tensor([1., 0., 1., 0.])
    """
    rows = torch.arange(examples.weight.shape[-1], device=examples.weight.device)
    return examples._replace(weight=torch.where(rows % parts == number, examples.weight, 0))


def one_hot(label: Tensor, k: int) -> Tensor:
    """k weights: 1 at `label`, 0 elsewhere.

    >>> one_hot(torch.tensor(2), 4)
    tensor([0., 0., 1., 0.])
    """
    return (torch.arange(k, device=label.device) == label).to(torch.get_default_dtype())


@on_client
def losses_of(client: Client, models: Params) -> Tensor:
    """The loss of each of k models; NaN and infinity become the largest finite number.

    A non-finite reply would be rejected, and a model may be corrupt through another client's fault.
    """
    fit = losses(client, models)
    most = torch.finfo(fit.dtype).max
    return fit.nan_to_num(nan=most, posinf=most)


@on_client
def serve_assigned(client: Client, models: Params, label: Tensor, share: Tensor | None) -> Params:
    """The model of the client's cluster; without one (label -1), the model that fits its training data best."""
    if count(models) == 1:
        return take(models, 0)
    return take(models, torch.where(label < 0, losses(client, models).argmin(), label))


@on_client
def serve_labelled(client: Client, models: Params, label: Tensor, share: Tensor | None) -> Params:
    """The model of the client's cluster; every client asked must have one."""
    return take(models, label)


def serving(serve: ClientFn[..., Any], labels: Tensor) -> ClientFn[..., Any]:
    """`serve`, or a cheaper equivalent: if all clients have labels, none needs the losses of all k models."""
    return serve_labelled if serve is serve_assigned and bool((labels >= 0).all()) else serve


@on_client
def serve_mixture(client: Client, models: Params, label: Tensor, share: Tensor | None) -> Params | Served:
    """All models, weighted by the client's shares; without shares, the model that fits its training data best."""
    if share is None:
        return serve_assigned(client, models, label, share)
    k = count(models)
    best = one_hot(losses(client, models).argmin(), k).to(share)
    weights = torch.where(share.sum() > 0, share / share.sum().clamp_min(torch.finfo(share.dtype).tiny), best)
    return Served(models, weights)


def served_loss(client: Client, served: Params | Served, on: Examples | None = None) -> Tensor:
    """The mean loss of the served model, or of the mixture of served models, on the training examples.

    A mixture's loss is its negative log-likelihood or, for a squared loss, the loss of the weighted mean prediction.
    """
    if not isinstance(served, Served):
        return loss(client, served, on)
    on, objective = on or client.train, client.objective
    if objective.squared is not None:
        learned = getattr(objective, "learned_targets", lambda y: y)(on.y)  # as in `objective.losses`
        graded = objective.grade(_mixed(client, served, on), on._replace(y=learned)) / getattr(
            objective, "score_unit", 1.0
        )
        return weighted_mean(objective.squared * graded, on.weight)
    each = torch.stack([objective.losses(take(served.models, j), on) for j in range(count(served.models))])  # c m
    return weighted_mean(-torch.logsumexp(served.weights.log()[:, None] - each, 0), on.weight)


def served_score(client: Client, served: Params | Served, on: Examples | None = None) -> Tensor:
    """The mean score of the served model, or of the mixture of served models, on the test examples."""
    if not isinstance(served, Served):
        return score(client, served, on)
    on = on or client.test
    return weighted_mean(client.objective.grade(_mixed(client, served, on), on), on.weight)


def served_predictions(client: Client, served: Params | Served, on: Examples | None = None) -> Tensor:
    """The prediction of the served model, or mixture, for each test example; undefined for rows of weight 0."""
    on = on or client.test
    return _mixed(client, served, on) if isinstance(served, Served) else leave(client, OfEach("predict"), served, on)[0]


def _mixed(client: Client, served: Served, on: Examples) -> Tensor:
    predictions = [leave(client, OfEach("predict"), take(served.models, j), on)[0] for j in range(count(served.models))]
    return client.objective.mix(torch.stack(predictions), served.weights)


def _check_descent(how: object) -> None:
    if not isinstance(how, Descent):
        raise TypeError(f"descend wants a Descent, such as Descent(lr=0.1, steps=10), got a {type(how).__name__}")


def _one_row(params: Params) -> Params:
    return {name: value.unsqueeze(0) for name, value in params.items()}
