"""Class weights and label smoothing for training; balanced weights come from class counts summed over clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.objective import Objective
from corymb.objectives.classification import Classification
from corymb.settings import InvalidInput, did_you_mean, require

BALANCED = "balanced"


def as_text(given: str | Mapping[str, float] | None) -> str | None:
    """The setting as it is stored: `balanced`, or the weights by class name.

    >>> as_text({"no": 1, "yes": 5.5})
    'no=1,yes=5.5'
    """
    if isinstance(given, Mapping):
        given = ",".join(f"{name}={weight}" for name, weight in given.items())
    if given is not None:
        _parsed(given)
    return given


def _parsed(text: str) -> dict[str, float]:
    if text == BALANCED:
        return {}
    try:
        pairs = [part.rsplit("=", 1) for part in text.split(",")]
        weights = {name.strip(): float(weight) for name, weight in pairs}
    except (AttributeError, ValueError):  # not text, or malformed
        weights = {}
    good = bool(weights) and all(0 < weight < float("inf") for weight in weights.values())
    require(good, f"class_weight is 'balanced' or a positive weight for classes, such as no=1,yes=5; got {text!r}.")
    return weights


@on_client
def count_classes(client: Client, *, classes: int) -> Share[tuple[()]]:
    """How many training examples of each class the client has; the server gets only the sum over all clients."""
    y, weight = client.train.y, client.train.weight
    own = (y[:, None] == torch.arange(classes, device=y.device)) & (weight > 0)[:, None]
    return Share({"count": own.sum(0).to(weight.dtype)}, weight=torch.ones(1, device=y.device, dtype=weight.dtype))


def class_weights(fed: Federation, text: str, classes: Sequence[str]) -> dict[str, float]:
    """The weight of each class. Balanced weights are proportional to 1 / class count, with mean 1 over examples."""
    given = _parsed(text)
    for name in given:
        if name not in classes:
            raise InvalidInput(f"class_weight has an unknown class {name!r}. {did_you_mean(name, classes)}")
    if given:
        return {name: given.get(name, 1.0) for name in classes}
    total = fed.clients.sum(count_classes, classes=len(classes)).value.total["count"][0].double()
    fed.ledger.rounds += 1
    present = int((total > 0).sum())
    balanced = torch.where(total > 0, total.sum() / (present * total.clamp_min(1)), 1.0)
    return {name: float(f"{weight:.6g}") for name, weight in zip(classes, balanced.tolist(), strict=True)}


def weighed(
    objective: Objective, fed: Federation, text: str, classes: Sequence[str]
) -> tuple[Objective, dict[str, float]]:
    """The objective with class weights, and the weights by class."""
    ours = _classification(objective, "class_weight", "weighs its own training_losses")
    weights = class_weights(fed, text, classes)
    return Classification(ours.network, ours.classes, tuple(weights.values()), ours.label_smoothing), weights


def smoothed(objective: Objective, amount: float) -> Objective:
    """The objective with label smoothing: the fraction `amount` of every label is spread over all classes."""
    ours = _classification(objective, "label_smoothing", "takes it as an argument or in its own training_losses")
    return Classification(ours.network, ours.classes, ours.class_weight, amount)


def _classification(objective: Objective, option: str, own: str) -> Classification:
    if not isinstance(objective, Classification):
        raise InvalidInput(
            f"{option} is for classification by a network: numbers have no classes, and a custom objective {own}."
        )
    return objective
