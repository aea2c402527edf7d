"""The loop that IFCA and FedX share: clients choose the model that fits best and work on it, the server averages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor
from torch.func import vmap

from corymb.algorithms.parts.sharing import Sent, pack
from corymb.algorithms.parts.work import Work, started_from, work_on_own
from corymb.core.client import Client, Examples, Share, Shares, on_client
from corymb.core.federation import Cohort, Federation, Replies, Sums, each
from corymb.core.snapshot import Snapshot
from corymb.local import losses, one_hot
from corymb.settings import InvalidInput, require
from corymb.trees import Params, count

Answers = Replies[Sums[Tensor]]
"""A round's replies; each client's note is the loss of every model it was sent, before training."""
Ask = Callable[[Snapshot, int], Answers]
Average = Callable[[Params, Answers, int], Params]
AfterRound = Callable[[Snapshot, Snapshot, Answers], Snapshot]


@on_client
def choose_and_work(client: Client, sent: Sent, *, work: Work) -> Share[Tensor]:
    """Train (or take the gradient of) the model that fits best; the note is every model's loss before."""
    return work_on_best(client, sent.models(), work, choosing=client.train, working=client.train)


@on_client
def work_softly(client: Client, sent: Sent, *, work: Work, temperature: float) -> Shares[Tensor]:
    """Train (or take the gradient of) every model, weighted by its fit; the note is every model's loss before."""
    models = sent.models()
    fit = losses(client, models)
    shares = soft_shares(fit, client.train.weight.sum(), temperature)
    value = vmap(lambda model: work.on(client, model, client.train))(models)
    return Shares(value, weight=shares * work.weight(client), label=fit.argmin(), note=fit)


def work_on_best(client: Client, models: Params, work: Work, *, choosing: Examples, working: Examples) -> Share[Tensor]:
    """The result of `work` on the `working` examples, for the model with the least loss on the `choosing` ones.

    Ties go to the lowest index.
    """
    fit = losses(client, models, on=choosing)
    label = fit.argmin()
    value = work.on_chosen(client, models, label, working)
    return Share(value, weight=one_hot(label, count(models)) * work.weight(client), label=label, note=fit)


def soft_shares(fit: Tensor, examples: Tensor, temperature: float) -> Tensor:
    """λ_j ∝ exp(−m F(θ_j) / temperature): how much of a client's weight each model gets, along the last axis."""
    return (-examples * fit / temperature).softmax(-1)


def begin(fed: Federation, k: int | None, start: Snapshot | None) -> Snapshot:
    """The start, checked to have k models (any number if k is None); without a start, k new models."""
    if start is None:
        if k is None:
            raise InvalidInput("k is missing, and there are no models to start from: give k, or a start.")
        return Snapshot.fresh(fed, k)
    require(k in (None, start.k), f"The start has {start.k} models, but k = {k}: give k={start.k}, or another start.")
    return start


def ask(
    clients: Cohort,
    at: Snapshot,
    work: Work,
    *,
    shared: tuple[str, ...] = (),
    soft: float | None = None,
    own: bool = False,
) -> Answers:
    """Ask clients for one round's work on the model of their choice or, with `own`, on their own cluster's model."""
    clients = clients.near(started_from(at.models, work))
    if own:
        labels = clients.pick(at.labels)
        return clients.sum(work_on_own, each(at.models, of=labels), each(labels), k=at.k, work=work)
    sent = pack(at.models, shared)
    if soft is not None:
        return clients.sum(work_softly, sent, work=work, temperature=soft)
    return clients.sum(choose_and_work, sent, work=work)


def alternate(
    at: Snapshot, rounds: int, ask: Ask, average: Average, *, soft: float | None = None, after: AfterRound | None = None
) -> Iterator[Snapshot]:
    """Ask, average, and note the loss, round after round; `after` may add to a snapshot before it is yielded."""
    for t in range(at.round, rounds):
        before, replies = at, ask(at, t)
        fit = replies.value.note
        at = before.next(
            models=average(before.models, replies, t),
            labels=(replies.clients, replies.value.label),
            shares=None if soft is None else _put_shares(before, replies, soft),
            carry={},
            notes={"train_loss": float(fit.amin(1).mean())},
        )
        yield (at := at if after is None else after(before, at, replies))


def _put_shares(at: Snapshot, replies: Answers, temperature: float) -> Tensor:
    fit = replies.value.note
    new = soft_shares(fit, replies.clients.sizes[:, None].to(fit), temperature)
    before = new.new_zeros(len(at.labels), at.k) if at.shares is None or not at.round else at.shares
    return replies.clients.put(before, new)
