"""The score of a finished run, used to choose between runs: the mean training loss, lower is better."""

from __future__ import annotations

from torch import Tensor

from corymb.algorithms.parts.sharing import Sent, pack
from corymb.core.client import Client, ClientFn, Served, Share, on_client
from corymb.core.federation import Federation, each
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.local import losses, one_hot, served_loss, serving
from corymb.trees import Params


@on_client
def loss_served(
    client: Client, models: Params, label: Tensor, share: Tensor | None, *, serve: ClientFn[..., Params | Served]
) -> Share[tuple[()]]:
    """The training loss of the model that the client is served."""
    served = served_loss(client, serve(client, models, label, share))
    return Share({"loss": served}, weight=served.new_ones(1))


def score_of(algorithm: Algorithm, fed: Federation, at: Snapshot) -> float:
    """The algorithm's own `score` if it has one, else the mean training loss of the models clients are served."""
    if hasattr(algorithm, "score"):
        return float(algorithm.score(fed, at))
    labels, serve = each(fed.clients.pick(at.labels)), serving(algorithm.serve, fed.clients.pick(at.labels))
    share = None if at.shares is None else each(fed.clients.pick(at.shares))
    sums = fed.clients.sum(loss_served, at.models, labels, share, serve=serve).value
    return float(sums.total["loss"] / sums.weight)


@on_client
def least_loss_of(client: Client, sent: Sent) -> Share[tuple[()]]:
    """The training loss of the model that fits best."""
    fit = losses(client, sent.models())
    return Share({"loss": fit.min()}, weight=one_hot(fit.argmin() * 0, 1))


def least_loss(fed: Federation, at: Snapshot, shared: tuple[str, ...] = ()) -> float:
    """The mean over clients of the loss of the model that fits each best, whatever its label."""
    sums = fed.clients.sum(least_loss_of, pack(at.models, shared)).value
    return float(sums.total["loss"] / sums.weight)
