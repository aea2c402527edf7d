"""The principal components of all clients' examples, by federated orthogonal iteration: only sums leave the clients."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.models.flows.projected import BASIS, ORIGIN
from corymb.orthogonal import orthonormal, random_bases
from corymb.trees import Params


def seen(client: Client) -> Tensor:
    """The client's examples as vectors, in the units that the objective uses."""
    own = getattr(client.objective, "seen", None)
    x = client.train.x
    return (x if own is None else own(x)).flatten(1)


@on_client
def send_mean(client: Client) -> Share[tuple[()]]:
    """The sum of the client's examples."""
    return Share({"sum": client.train.weight @ seen(client)}, weight=client.train.weight.new_ones(1))


@on_client
def multiply_covariance(client: Client, origin: Tensor, basis: Tensor) -> Share[tuple[()]]:
    """The second moment of the client's examples about the common mean, times a basis: d q numbers."""
    x = seen(client) - origin
    product = (x * client.train.weight[:, None]).mT @ (x @ basis)
    return Share({"sum": product}, weight=client.train.weight.new_ones(1))


def find_space(fed: Federation, at: Snapshot, steps: int) -> Iterator[Snapshot]:
    """Origin and basis of all models, round after round: the mean first, then steps of orthogonal iteration."""
    for r in range(at.round, steps + 1):
        models: Params = dict(at.models)
        origin, basis = models[ORIGIN][0], models[BASIS][0]
        if r == 0:
            replies = fed.clients.sum(send_mean)
            origin = replies.value.total["sum"][0] / float(replies.clients.sizes.sum())  # only clients that answered
            basis = random_bases(fed.key("basis"), *basis.shape).to(basis)
        else:
            product = fed.clients.sum(multiply_covariance, origin, basis).value.total["sum"][0]
            basis = orthonormal(product.double()).to(basis)
        for name, value in ((ORIGIN, origin), (BASIS, basis)):
            models[name] = value.expand(at.k, *value.shape).contiguous()
        yield (at := at.next(models=models))
