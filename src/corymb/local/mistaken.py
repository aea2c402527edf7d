"""A one-line error for an operation that was given k stacked models instead of one, or one instead of k."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from corymb.core.client import Client
from corymb.keys import no_transform_active
from corymb.trees import Params, count

REMEDIES = {
    "descend": "train one of them, descend(client, take(models, j), how), or each, "
    "vmap(lambda model: descend(client, model, how))(models)",
    "gradient": "take one of them, gradient(client, take(models, j)), or each, "
    "vmap(lambda model: gradient(client, model))(models)",
    "loss": "losses(client, models) gives the loss of each",
    "score": "scores(client, models) gives the score of each",
    "losses": "loss(client, params) gives the loss of one model",
    "scores": "score(client, params) gives the score of one model",
    "point_losses": "stack the model first, {name: value[None] for name, value in params.items()}",
    "descend_from": "descend(client, params, how) trains one model",
}
"""What to write instead, by operation."""


@contextmanager
def taking(client: Client, what: str, models: Params, *, stacked: bool) -> Iterator[None]:
    """Explain errors raised inside by the number of models, if that is wrong.

    Shapes are compared only after an error: some objectives have models of other shapes than those that they start
    from, and a fresh model may take long to make. Under vmap nothing is explained: the engine runs a client that failed
    there again on its own.
    """
    try:
        yield
    except Exception as error:
        line = _mistake(client, what, models, stacked=stacked) if no_transform_active() else None
        if line is None:
            raise
        raise TypeError(line) from error


def _mistake(client: Client, what: str, models: Params, *, stacked: bool) -> str | None:
    try:
        one = client.objective.init(torch.tensor(0))
        name = next(iter(one))
        got, wanted = list(models[name].shape), list(one[name].shape)
        axes = {models[other].dim() - value.dim() for other, value in one.items()}
        alike = all(
            list(models[other].shape)[-value.dim() :] == list(value.shape)
            for other, value in one.items()
            if value.dim()
        )
    except Exception:  # the original error is more informative than one raised here
        return None
    if not alike or axes != {0 if stacked else 1}:
        return None
    if stacked:
        return f"{what} takes k stacked models, got one ({name!r} is {got}, wanted k × {wanted}): {REMEDIES[what]}"
    several = f"{count(models)} stacked models" if count(models) > 1 else "a stack of one model"
    return f"{what} takes one model, got {several} ({name!r} is {got}, wanted {wanted}): {REMEDIES[what]}"
