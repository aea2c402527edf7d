"""The clients' side of clusters by evidence: losses of models on held-out examples.

A client holds out a quarter of its training examples (`corymb.local.held_out`). Models are trained on the rest (the
kept examples), chosen by their losses there, and compared on the held-out ones.

Label skew looks like clusters: a model for clients with many sevens beats the common model at a client with many
sevens. So each client first adds its own class bias to every model, fitted to its kept examples (a normal prior of
variance 4), and models are chosen and compared with it; the remaining differences are not due to class frequencies.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot as indicator

from corymb.algorithms.parts.linear import design
from corymb.algorithms.parts.work import Work
from corymb.core.client import Client, Examples, Share, on_client
from corymb.local import Descent, descend, one_hot
from corymb.local.held_out import hold_out
from corymb.local.reference import weighted_mean
from corymb.objectives.classification import Classification
from corymb.objectives.linear_form import linear_form
from corymb.trees import Params, add, concat, count, prefixed, take

PRIOR = 4.0
"""Variance of a client's class bias."""
NEWTON_STEPS = 15


class Compared(NamedTuple):
    """The losses of k models on a client's held-out examples."""

    mean: Tensor  # k
    spread: Tensor  # k k: covariances over the examples


class LossReport(NamedTuple):
    """A client's report on k models."""

    fit: Tensor
    """k: mean losses on the examples that it trains on, with its class bias."""
    plain_fit: Tensor
    """k: the same, without the bias."""
    held: Compared
    """Losses on the held-out examples, with its class bias."""
    plain: Compared
    """Losses on the held-out examples, without the bias."""
    number: Tensor
    """The number of held-out examples."""


@on_client
def train_on_kept(client: Client, model: Params, *, alone: Descent) -> Params:
    """The client's model after training alone from a common start, without its held-out examples."""
    return descend(client, model, alone, on=hold_out(client.train).kept)


@on_client
def publish_change(client: Client, model: Params, *, alone: Descent) -> Params:
    """How training alone changes a model, without the held-out examples."""
    return add(descend(client, model, alone, on=hold_out(client.train).kept), model, alpha=-1.0)


@on_client
def publish_ridge(client: Client) -> Params:
    """The ridge solution on the client's kept examples; the penalty grows with features per example."""
    form = linear_form(client.objective)
    assert form is not None
    x, y, _ = design(client)
    weight = hold_out(client.train).kept.weight
    number, d = weight.sum().clamp_min(1), x.shape[-1]
    gram = (x * weight.unsqueeze(-1)).mT @ x / number
    scale = gram.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(torch.finfo(gram.dtype).tiny)
    penalty = scale * d / number * torch.eye(d, dtype=gram.dtype, device=gram.device)
    return form.parameters(torch.linalg.solve(gram + penalty, x.mT @ (y * weight) / number))


@on_client
def choose_and_train(
    client: Client, models: Params, others: Params, one: Params, *, work: Work, biased: bool
) -> Share[LossReport]:
    """Train the model that fits best and the common model; report held-out losses of these and other models."""
    k = count(models)
    weighed = weigh(client, concat([models, others, _row(one)]))
    label = (weighed.fit if biased else weighed.plain_fit)[:k].argmin()
    value = _trained(client, work, own=take(models, label), one=one)
    return Share(value, weight=one_hot(label, k) * work.weight(client), label=label, note=weighed)


@on_client
def train_side_by_side(
    client: Client, own: Params, merger: Params | None, one: Params | None, label: Tensor, *, k: int, work: Work
) -> Share[tuple[()]]:
    """Train the cluster's model, its candidate merged model and the common model side by side."""
    sent = {"own": own, "merger": merger, "one": one}
    models = {name: model for name, model in sent.items() if model is not None}
    return Share(_trained(client, work, **models), weight=one_hot(label, k) * work.weight(client), label=label)


@on_client
def report_losses(client: Client, models: Params) -> LossReport:
    """The losses of models on kept and held-out examples, without any training."""
    return weigh(client, models)


def _trained(client: Client, work: Work, **models: Params) -> Params:
    kept = hold_out(client.train).kept
    trained = [prefixed(name, descend(client, model, work.local, on=kept)) for name, model in models.items()]
    return {name: value for model in trained for name, value in model.items()}


def weigh(client: Client, models: Params) -> LossReport:
    """The losses of k models on the client's kept and held-out examples, with and without its own class bias."""
    kept, held = hold_out(client.train)
    plain, biased = example_losses(client, models, kept)
    return LossReport(
        weighted_mean(biased, kept.weight),
        weighted_mean(plain, kept.weight),
        _compared(biased, held.weight),
        _compared(plain, held.weight),
        held.weight.sum(),
    )


def example_losses(client: Client, models: Params, kept: Examples) -> tuple[Tensor, Tensor]:
    """The loss of every model on every training example, without and with the client's class bias: k m each."""
    objective = client.objective
    classes = _classes(objective)
    each = [take(models, j) for j in range(count(models))]
    if classes is None:
        plain = torch.stack([objective.losses(model, client.train) for model in each])
        plain = _finite(plain)
        return plain, plain
    logits = torch.stack([objective.predict(model, client.train.x) for model in each]).log_softmax(-1)  # k m C
    logits = logits.nan_to_num(nan=-30.0, neginf=-30.0)
    right = indicator(client.train.y.long(), classes).to(logits)  # m C
    return _log_loss(logits, right), _log_loss(logits + _class_bias(logits, right, kept.weight), right)


def _finite(values: Tensor) -> Tensor:
    most = torch.finfo(values.dtype).max ** 0.25  # small enough that sums of squares do not overflow
    return values.nan_to_num(nan=most, posinf=most).clamp_max(most)


def _classes(objective: object) -> int | None:
    """The number of classes of a (possibly wrapped) `Classification`; None for any other objective."""
    while not isinstance(objective, Classification):
        objective = getattr(objective, "inner", None)
        if objective is None:
            return None
    return objective.classes


def _log_loss(logits: Tensor, right: Tensor) -> Tensor:
    return -(logits.log_softmax(-1) * right).sum(-1)


def _class_bias(logits: Tensor, right: Tensor, weight: Tensor) -> Tensor:
    """The class bias that fits the weighted examples best, for each model: k 1 C. Newton's method, class by class."""
    bias = torch.zeros_like(logits[:, :1])
    weight = weight.unsqueeze(-1)
    for _ in range(NEWTON_STEPS):
        chance = (logits + bias).softmax(-1)
        slope = (weight * (right - chance)).sum(-2, keepdim=True) - bias / PRIOR
        curvature = (weight * chance * (1 - chance)).sum(-2, keepdim=True) + 1 / PRIOR
        bias = bias + (slope / curvature).clamp(-1, 1)
    return bias


def _compared(values: Tensor, weight: Tensor) -> Compared:
    number = weight.sum()
    portion = weight / number.clamp_min(1)
    values = torch.where(weight > 0, values, 0)
    mean = values @ portion
    deviations = values - mean.unsqueeze(-1)
    return Compared(mean, (deviations * portion) @ deviations.mT * (number / (number - 1).clamp_min(1)))


def _row(model: Params) -> Params:
    return {name: value.unsqueeze(0) for name, value in model.items()}
