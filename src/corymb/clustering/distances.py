"""Distances between clients and clusters: cross-losses, or ℓq distances of parameters.

Every cross-loss that SR-FCA needs follows from two matrices: the losses of the n clients' own models on the n clients
(`known`, measured once) and of the k clusters' models on the n clients (`fit`, once per refinement). Models are sent in
chunks, and every client evaluates a whole chunk at once: nothing is measured pair by pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from corymb.core.client import Client, on_client
from corymb.core.federation import Cohort, Replies
from corymb.core.patience import ask_again
from corymb.local import losses_of
from corymb.settings import InvalidInput
from corymb.trees import Params, count, leaves, take

AT_ONCE = 64
"""Models per message."""
BLOCK = 2**22
"""Entries of all clients' models in a block of coordinates."""


@on_client
def compare_own(client: Client, models: Params, *, q: float | None) -> Tensor:
    """The client's loss under every cluster's model, or the ℓq distance of its own model to each.

    From now on the client is served its cluster's model, no longer its own.
    """
    client.memory.set("refined", True)
    if q is None:
        return losses_of(client, models)
    own: Params = client.memory.get("own")
    difference = torch.cat([(models[name] - own[name]).flatten(1) for name in models], dim=1)
    norms: Tensor = torch.linalg.vector_norm(difference, q, dim=1)
    return norms


class Measure(Protocol):
    """A distance: `dist` in the paper's algorithms."""

    @property
    def squared(self) -> bool:
        """Whether distances behave like squared lengths above a floor, as losses do."""
        ...

    def known(self, clients: Cohort, own: Params) -> Replies[Tensor]:
        """The pairwise data on clients' own models: n n, for the clients that answered every call."""
        ...

    def fit(self, clients: Cohort, models: Params) -> Replies[Tensor]:
        """Each client's data on k clusters' models: n k."""
        ...

    def between_clients(self, known: Tensor) -> Tensor:
        """The distances between clients: n n."""
        ...

    def to_clusters(self, known: Tensor, fit: Tensor, labels: Tensor) -> Tensor:
        """The distances of clients to clusters: n k; `labels` are the clusters that the models were trained on."""
        ...

    def between_clusters(self, fit: Tensor, labels: Tensor, models: Params) -> Tensor:
        """The distances between clusters: k k."""
        ...


def measure_named(name: str) -> Measure:
    """The measure for `losses`, or for `l` and an order, as in `l2`, `l1` or `linf`."""
    if name == "losses":
        return CrossLosses()
    try:
        q = float(name.removeprefix("l"))
    except ValueError:
        q = 0.0
    if not name.startswith("l") or not q >= 1:
        raise InvalidInput(f"distance is {name!r}, wanted 'losses', or 'l' and an order of at least 1, such as 'l2'.")
    return Norms(q)


@dataclass(frozen=True)
class CrossLosses:
    """½ (F_i(w_j) + F_j(w_i)); a cluster's loss is the mean of its members'.

    `known[i, j]` is F_i(w_j), and `fit[i, c]` is F_i(ω_c).
    """

    @property
    def squared(self) -> bool:
        """True: to second order, a loss is a squared length."""
        return True

    def known(self, clients: Cohort, own: Params) -> Replies[Tensor]:
        """Every client's loss of every client's model, in the precision of the clients."""
        replies = cross_losses(clients, own)
        if len(replies.clients) == len(clients):
            return replies
        return replace(replies, value=replies.value[:, clients.pick(replies.clients.mask)])

    def fit(self, clients: Cohort, models: Params) -> Replies[Tensor]:
        """Every client's loss of every cluster's model."""
        return _on_server(clients.map(compare_own, models, q=None))

    def between_clients(self, known: Tensor) -> Tensor:
        """Definition 5.1; the diagonal holds the clients' own losses."""
        return known.to(torch.float64, copy=True).add_(known.T).div_(2)

    def to_clusters(self, known: Tensor, fit: Tensor, labels: Tensor) -> Tensor:
        """½ (F_i(ω_c) + F_c(w_i)), with client i left out of its own cluster's loss."""
        member = _members(labels, fit.shape[1], fit)
        own = known.diagonal().to(fit)[:, None]
        others = member.sum(0) - member
        blocks = known.split(max(1, BLOCK // len(known)), dim=1)
        total = torch.cat([block.to(fit).T @ member for block in blocks])  # of all n² in double precision, only a block
        cluster_loss = (total - own * member) / others.clamp_min(1)
        return (fit + torch.where(others > 0, cluster_loss, own)) / 2

    def between_clusters(self, fit: Tensor, labels: Tensor, models: Params) -> Tensor:
        """½ (F_c(ω_c') + F_c'(ω_c))."""
        member = _members(labels, fit.shape[1], fit)
        cluster_loss = member.T @ fit / member.sum(0).clamp_min(1)[:, None]
        return (cluster_loss + cluster_loss.T) / 2


@dataclass(frozen=True)
class Norms:
    """‖w_i − w_j‖ in ℓq."""

    q: float

    @property
    def squared(self) -> bool:
        """False: these are lengths."""
        return False

    def known(self, clients: Cohort, own: Params) -> Replies[Tensor]:
        """The distances themselves, which need no further calls."""
        return Replies(clients, pairwise_norms(own, self.q), [])

    def fit(self, clients: Cohort, models: Params) -> Replies[Tensor]:
        """Every client's distance to every cluster's model, measured at the client, which keeps its own model."""
        return _on_server(clients.map(compare_own, models, q=self.q))

    def between_clients(self, known: Tensor) -> Tensor:
        """The known distances."""
        return known

    def to_clusters(self, known: Tensor, fit: Tensor, labels: Tensor) -> Tensor:
        """The measured distances."""
        return fit

    def between_clusters(self, fit: Tensor, labels: Tensor, models: Params) -> Tensor:
        """The distances between the models, which the server has."""
        return pairwise_norms(models, self.q)


def cross_losses(clients: Cohort, models: Params, at_once: int = AT_ONCE) -> Replies[Tensor]:
    """Every client's loss of every model, for the clients that answered every chunk of models: n c.

    Losses are kept in the precision in which clients computed them, and once: n² of them are most of the memory.
    """
    asked, rejected, found = clients, list[tuple[str, str]](), torch.empty(0)
    for first in range(0, count(models), at_once):
        ask = partial(_losses, models=take(models, slice(first, first + at_once)))
        replies = ask_again(clients, ask(clients), ask)
        clients, rejected = replies.clients, rejected + replies.rejected
        losses = replies.value.cpu()
        if not first:
            found = losses.new_empty(len(asked), count(models))
        found[_rows_of(clients, asked), first : first + at_once] = losses
    return Replies(clients, found[_rows_of(clients, asked)], rejected)


def _rows_of(clients: Cohort, asked: Cohort) -> Tensor | slice:
    """The rows of those of the clients asked that answered: all rows as a slice, which copies nothing."""
    return slice(None) if len(clients) == len(asked) else asked.pick(clients.mask)


def _losses(clients: Cohort, models: Params) -> Replies[Tensor]:
    return clients.map(losses_of, models)


def pairwise_norms(models: Params, q: float) -> Tensor:
    """The ℓq distances of stacked models, block by block of coordinates in float64: n n."""
    n = count(models)
    total = torch.zeros(n, n, dtype=torch.float64)
    for leaf in leaves(models):
        for block in leaf.flatten(1).split(max(1, BLOCK // n), dim=1) if leaf.dim() > 1 else [leaf[:, None]]:
            part = _powers(block.double(), q).cpu()
            total = torch.maximum(total, part) if math.isinf(q) else total + part
    return total if math.isinf(q) else total.pow(1 / q)


def _powers(rows: Tensor, q: float) -> Tensor:
    """Σ |a − b|^q over the coordinates, for all pairs; for q = ∞ the maximum."""
    if q != 2:
        distances: Tensor = torch.cdist(rows, rows, p=q)
        return distances if math.isinf(q) else distances.pow(q)
    rows = rows - rows.mean(0)  # a common offset would cost digits below
    gram = rows @ rows.T
    squares = gram.diagonal()
    return (squares[:, None] + squares - 2 * gram).clamp_min(0).fill_diagonal_(0)


def _on_server(replies: Replies[Tensor]) -> Replies[Tensor]:
    return replace(replies, value=replies.value.double().cpu())


def _members(labels: Tensor, k: int, like: Tensor) -> Tensor:
    return (labels[:, None] == torch.arange(k)).to(like)  # n k
