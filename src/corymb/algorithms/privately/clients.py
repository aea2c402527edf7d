"""Client functions of private rounds: a client sends its clipped update and the number of its cluster, nothing else."""

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


class ClientPrivacy(NamedTuple):
    """The parameters of a client's privacy."""

    clip: Tensor
    """The longest update."""
    blur: Tensor
    """The probability of reporting a random cluster instead of the client's own."""
    secret: Tensor
    """Folded into the client's key for its draws: the key itself follows from the run's seed, which is not secret."""


@on_client
def choose_and_work_privately(client: Client, sent: Sent, privacy: ClientPrivacy, *, work: Work) -> Share[tuple[()]]:
    """The clipped update of the model that fits best, and which one that is (randomised if asked for)."""
    models = sent.models()
    label = losses(client, models).argmin()
    reported = _blurred(client, label, count(models), privacy)
    return Share(
        _update(client, take(models, label), privacy, work), weight=one_hot(reported, count(models)), label=reported
    )


@on_client
def work_on_own_privately(
    client: Client, model: Params, label: Tensor, privacy: ClientPrivacy, *, k: int, work: Work
) -> Share[tuple[()]]:
    """The clipped update of the only model sent, that of the client's cluster."""
    return Share(_update(client, model, privacy, work), weight=one_hot(label, k), label=label)


def _update(client: Client, model: Params, privacy: ClientPrivacy, work: Work) -> Params:
    """The change of the model by local work, or its gradient, clipped to the length `clip`."""
    done = work.on(client, model, client.train)
    update = done if work.averaging == "gradients" else {name: done[name] - model[name] for name in model}
    squares = torch.stack([leaf.double().square().sum() for leaf in leaves(update)])
    factor = privacy.clip / squares.sum().sqrt().clamp_min(privacy.clip)
    return map_tensors(lambda leaf: leaf * torch.where(torch.isfinite(privacy.clip), factor, 1).to(leaf), update)


def _blurred(client: Client, label: Tensor, k: int, privacy: ClientPrivacy) -> Tensor:
    """The label after randomised response: with probability `blur`, a random one of k."""
    key = fold(client.key("label"), privacy.secret)
    other = integers(fold(key, 1), k).to(label)
    return torch.where(uniform(fold(key, 0), (), torch.float64).to(privacy.blur) < privacy.blur, other, label)
