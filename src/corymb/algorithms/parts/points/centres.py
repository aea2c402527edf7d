"""The parts of k-FED: k-means at each client, and clusters of the clients' centres at the server.

Dennis, Li, Smith: Heterogeneity for the Win: One-Shot Federated Clustering. ICML 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.parts.points.labels import LABELS, keep, members_of
from corymb.core.client import Client, on_client
from corymb.core.federation import Cohort, Federation, Replies, TooFewReplies
from corymb.core.patience import ask_again
from corymb.keys import Key, fold, uniform
from corymb.settings import InvalidInput
from corymb.trees import Params, take

CENTRES, CLUSTERS = "centres", "clusters of centres"
STEPS = 30
STARTS = 4
CANDIDATES = 8
"""Points drawn for each initial centre, of which the best is taken (greedy k-means++)."""


class Centres(NamedTuple):
    """A client's centres and the number of its examples nearest to each; 0 for a centre that does not count."""

    at: Tensor  # c d
    number: Tensor  # c


def k_means(x: Tensor, weight: Tensor, k: int, key: Key) -> tuple[Tensor, Tensor]:
    """k centres and each point's label; the best of a few greedy k-means++ starts.

    Written for vmap: the number of Lloyd's steps is fixed, and padding (weight 0) has no influence.
    """
    best_cost, best = x.new_full((), torch.inf), x.new_zeros(k, x.shape[-1])
    for start in range(STARTS):
        centres = _plus_plus(x, weight, k, fold(key, start))
        for _ in range(STEPS):
            own = members_of(_distances(x, centres).argmin(-1), weight, k)  # k m
            number = own.sum(-1, keepdim=True)
            centres = torch.where(number > 0, own @ x / number.clamp_min(1), centres)
        cost = (_distances(x, centres).amin(-1) * weight).sum()
        best = torch.where(cost < best_cost, centres, best)
        best_cost = torch.minimum(cost, best_cost)
    return best, _distances(x, best).argmin(-1)


def _plus_plus(x: Tensor, weight: Tensor, k: int, key: Key) -> Tensor:
    """Initial centres, each the best of a few points drawn in proportion to their squared distance from the last ones.

    The best point reduces the sum of squared distances most (Arthur and Vassilvitskii 2007, section 6). With a single
    draw, a client with one large cluster and small ones too often gets two centres in the large one.
    """
    squared, centres = torch.ones_like(weight), []
    for j in range(k):
        share = (squared * weight).clamp_min(0) + weight * 1e-12
        sums = share.cumsum(-1)
        drawn = uniform(fold(key, j), (CANDIDATES if j else 1,), x.dtype)
        place = (sums <= drawn[:, None] * sums[-1]).sum(-1).clamp_max(len(weight) - 1)
        candidates = x[place]  # c d
        nearest = _distances(x, candidates).mT.clamp_min(0)  # c m
        nearest = nearest if j == 0 else torch.minimum(squared, nearest)
        best = (nearest * weight).sum(-1).argmin()
        centres.append(candidates[best])
        squared = nearest[best]
    return torch.stack(centres)


def _distances(x: Tensor, centres: Tensor) -> Tensor:
    """Squared distances of points from centres: m c. Far from zero, their squares would cancel each other's digits."""
    middle = centres.mean(0)
    x, centres = x - middle, centres - middle
    return centres.square().sum(-1) - 2 * x @ centres.mT + x.square().sum(-1, keepdim=True)


@on_client
def find_centres(client: Client, models: Params, *, number: int, least: int) -> Centres:
    """The centres of the client's own examples; those of fewer than `least` examples do not count and are not sent."""
    x = space_of(client, models, client.train.x)
    centres, labels = k_means(x, client.train.weight, number, client.key("centres"))
    client.memory.set(CENTRES, centres)
    client.memory.set(LABELS, labels, along="train")
    size = members_of(labels, client.train.weight, number).sum(-1)
    enough = size >= least
    return Centres(torch.where(enough[:, None], centres, 0), torch.where(enough, size, 0))


@on_client
def adopt(client: Client, centres: Tensor, *, k: int) -> Tensor:
    """Assign own centres to the nearest cluster centre, and examples to the cluster of their own centre.

    The reply only confirms that it is done.
    """
    cluster = _distances(client.memory.get(CENTRES), centres).argmin(-1)
    client.memory.set(CLUSTERS, cluster)
    keep(client, cluster[client.memory.get(LABELS)], k)
    return client.train.weight.new_zeros(())


def space_of(client: Client, models: Params, x: Tensor) -> Tensor:
    """Examples as vectors, in the coordinates of the objective's `space` if it has one."""
    space = getattr(client.objective, "space", None)
    return x.flatten(1) if space is None else space(take(models, 0), x)


def nearest_centre(client: Client, x: Tensor) -> Tensor:
    """The cluster of the nearest of the client's own centres, for each row of x."""
    nearest = _distances(x, client.memory.get(CENTRES)).argmin(-1)
    cluster: Tensor = client.memory.get(CLUSTERS)[nearest]
    return cluster


def group_centres(found: Centres, k: int, least: int) -> Tensor:
    """k centres of all clients' centres, in float64: farthest-point initialisation, then weighted Lloyd's steps.

    The first is the one farthest from the overall mean, so that nothing depends on the order of clients.
    """
    real = found.number.flatten() > 0
    points, weight = found.at.flatten(0, 1)[real].double(), found.number.flatten()[real].double()
    if len(points) < k:
        lack = f"k-FED got {len(points)} centres of {least} examples or more from clients, wanted at least k = {k}"
        fewer = "lower k or centres (how many each client finds)"
        raise InvalidInput(f"{lack}: {fewer}, or least (1 lets clients send single examples).")
    squared = (points - weight @ points / weight.sum()).square().sum(-1)
    chosen: list[Tensor] = []
    for _ in range(k):
        chosen.append(points[squared.argmax()])
        nearest = (points - chosen[-1]).square().sum(-1)
        squared = nearest if len(chosen) == 1 else torch.minimum(squared, nearest)
    centres = torch.stack(chosen)
    for _ in range(STEPS):
        own = members_of(torch.cdist(points, centres).argmin(-1), weight, k)
        number = own.sum(-1, keepdim=True)
        centres = torch.where(number > 0, own @ points / number.clamp_min(1e-300), centres)
    return centres


def start_from_centres(fed: Federation, models: Params, k: int, number: int, least: int) -> Tensor:
    """Both exchanges of k-FED: the clusters' centres, k d. Clients keep the cluster of every example."""

    def ask(clients: Cohort) -> Replies[Centres]:
        return clients.map(find_centres, models, number=number, least=least)

    found = ask_again(fed.clients, ask(fed.clients), ask)
    like = next(iter(models.values()))
    if len(found.clients) < len(fed.clients) and int((found.value.number > 0).sum()) < k:
        raise TooFewReplies(
            f"{len(found.clients)} of {len(fed.clients)} clients sent centres, in all fewer than k = {k}"
        )
    centres = group_centres(Centres(*(part.cpu() for part in found.value)), k, least).to(like)
    answered = found.clients  # the others have no centres of their own to assign
    ask_again(answered, answered.map(adopt, centres, k=k), lambda late: late.map(adopt, centres, k=k))
    return centres
