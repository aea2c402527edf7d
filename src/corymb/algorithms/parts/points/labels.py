"""Clusters of a client's examples, found and kept at the client.

Client memory holds each example's cluster under `labels`, and the log of the share of the client's examples in each
cluster under `shares`. Neither is ever sent.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, Served, on_client
from corymb.core.objective import Examples
from corymb.keys import integers
from corymb.local import point_losses
from corymb.trees import Params, count

LABELS, SHARES = "labels", "shares"
LOSS, MOVED = "mean loss of its points", "share of its points that moved"
"""Names of the sums that clients send about each cluster besides its model."""


class Members(NamedTuple):
    """A client's examples by cluster."""

    weight: Tensor
    """k m: an example's weight in its own cluster, 0 in the others."""
    number: Tensor
    """k: how many examples each cluster has here."""
    extra: Params
    """k: statistics of each cluster (`LOSS`, `MOVED`) if examples were relabelled; the server gets only their sums."""


def choose(client: Client, models: Params, on: Examples, *, prior: bool) -> tuple[Tensor, Tensor]:
    """The most likely cluster of each example (m), and the loss of each example under every model (k m).

    With `prior`, clusters with more of the client's examples are more likely. A NaN loss counts as the largest.
    """
    each = point_losses(client, models, on)
    most = torch.finfo(each.dtype).max
    each = each.nan_to_num(nan=most, posinf=most)
    return (each - _log_shares(client, models)[:, None] if prior else each).argmin(0), each


def _log_shares(client: Client, models: Params) -> Tensor:
    k, weight = count(models), client.train.weight
    even: Tensor = weight.new_full((k,), 1 / k).log()
    shares: Tensor = client.memory.get(SHARES, even)
    return shares


def random_labels(client: Client, k: int) -> Tensor:
    """A random cluster for every training example."""
    return integers(client.key("labels"), k, tuple(client.train.weight.shape))


def keep(client: Client, labels: Tensor, k: int) -> None:
    """Store the cluster of every training example, and the log of each cluster's share of them."""
    number = members_of(labels, client.train.weight, k).sum(-1)
    client.memory.set(LABELS, labels, along="train")
    client.memory.set(SHARES, ((number + 1) / (number.sum() + k)).log())


def members_of(labels: Tensor, weight: Tensor, k: int) -> Tensor:
    """The weight of every example in each of k clusters: k m."""
    return torch.where(labels == torch.arange(k, device=labels.device)[:, None], weight, 0)


def members(client: Client, models: Params, *, relabel: bool, prior: bool) -> Members:
    """The client's examples by cluster: relabelled by likelihood, or as stored (initially at random)."""
    k, weight = count(models), client.train.weight
    before: Tensor = client.memory.get(LABELS, random_labels(client, k))
    if not relabel:
        keep(client, before, k)
        own = members_of(before, weight, k)
        return Members(own, own.sum(-1), {})
    labels, each = choose(client, models, client.train, prior=prior)
    keep(client, labels, k)
    own = members_of(labels, weight, k)
    number = own.sum(-1)
    moved = torch.where(labels != before, own, 0).sum(-1) / number.clamp_min(1)
    loss = torch.where(own > 0, each * own, 0).sum(-1) / number.clamp_min(1)
    return Members(own, number, {LOSS: loss, MOVED: moved})


@on_client
def serve_points(client: Client, models: Params, label: Tensor, share: Tensor | None) -> Served:
    """All models, weighted by the shares of the client's own examples in their clusters."""
    return Served(models, _log_shares(client, models).softmax(0))


@on_client
def label_points(client: Client, models: Params, on: Examples, *, prior: bool = False) -> Tensor:
    """The cluster of every example. Used for evaluation at the client, never sent."""
    return choose(client, models, on, prior=prior)[0]
