"""What clients do in private rounds: their update leaves them shortened, and nothing else but the cluster's number."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.parts.sharing import Sent
from corymb.algorithms.parts.work import Work
from corymb.core.client import Client, Share, on_client
from corymb.keys import fold, integers, uniform
from corymb.local import losses, one_hot
from corymb.trees import Params, count, leaves, map_tensors, take


class Veil(NamedTuple):
    """How a client hides: the longest update, and how often it says another cluster than its own."""

    clip: Tensor
    blur: Tensor
    secret: Tensor
    """What draws are folded with besides the client's key, which follows from the run's seed."""


@on_client
def choose_and_work_privately(client: Client, sent: Sent, veil: Veil, *, work: Work) -> Share[tuple[()]]:
    """The clipped update of the model that fits best, and which one that is (randomised if asked for)."""
    models = sent.models()
    label = losses(client, models).argmin()
    said = _blurred(client, label, count(models), veil)
    return Share(_update(client, take(models, label), veil, work), weight=one_hot(said, count(models)), label=said)


@on_client
def work_on_own_privately(
    client: Client, model: Params, label: Tensor, veil: Veil, *, k: int, work: Work
) -> Share[tuple[()]]:
    """The clipped update of the only model sent, that of the client's cluster."""
    return Share(_update(client, model, veil, work), weight=one_hot(label, k), label=label)


def _update(client: Client, model: Params, veil: Veil, work: Work) -> Params:
    """From the model that was sent to the model after work, or the gradient; at most as long as `clip`."""
    done = work.on(client, model, client.train)
    update = done if work.averaging == "gradients" else {name: done[name] - model[name] for name in model}
    squares = torch.stack([leaf.double().square().sum() for leaf in leaves(update)])
    factor = veil.clip / squares.sum().sqrt().clamp_min(veil.clip)
    return map_tensors(lambda leaf: leaf * torch.where(torch.isfinite(veil.clip), factor, 1).to(leaf), update)


def _blurred(client: Client, label: Tensor, k: int, veil: Veil) -> Tensor:
    """Randomised response."""
    key = fold(client.key("label"), veil.secret)
    other = integers(fold(key, 1), k).to(label)
    return torch.where(uniform(fold(key, 0), (), torch.float64).to(veil.blur) < veil.blur, other, label)
