"""Private rounds of FedAvg, IFCA and SR-FCA's refinement: clipped updates, noise in their sums, a budget.

Clients are drawn independently with the same probability (Poisson sampling), as the accounting assumes. With one
cluster, sums are divided by the expected number of clients; with several, by noisy counts.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from corymb.algorithms.parts.sharing import is_shared, pack
from corymb.algorithms.parts.work import Averaging, Weights, Work
from corymb.algorithms.privately.clients import ClientPrivacy, choose_and_work_privately, work_on_own_privately
from corymb.core.averaging import Aggregate
from corymb.core.federation import Cohort, Federation, check_participants, each
from corymb.core.snapshot import ACCOUNT, Snapshot
from corymb.core.sums import Sums
from corymb.keys import Key, fold, root
from corymb.local import Descent
from corymb.privacy import Privacy
from corymb.privacy.accountant import (
    Account,
    Release,
    account_from_tensor,
    account_to_tensor,
    affords,
    release_of,
    spent,
)
from corymb.privacy.sums import Released, released
from corymb.settings import require
from corymb.trees import Params, add, map_tensors

log = logging.getLogger(__name__)
BUDGET = "privacy_budget"
"""The note of a round after which the budget is spent."""
SECRET = "secret"
"""The name in a snapshot's carry for the seed of the noise, if it was drawn by the system."""


class Averages(Protocol):
    """An algorithm whose rounds can be private."""

    @property
    def rounds(self) -> int: ...
    @property
    def local(self) -> Descent: ...
    @property
    def weights(self) -> Weights: ...
    @property
    def participants(self) -> int | float | None: ...
    @property
    def aggregate(self) -> Aggregate: ...
    @property
    def clip(self) -> float | None: ...
    @property
    def privacy(self) -> Privacy | None: ...


def has_budget(privacy: Privacy | None) -> bool:
    """Whether there is a budget, which may end a run before its rounds are done."""
    return privacy is not None and privacy.epsilon is not None


def check_private(algorithm: Averages, others: Mapping[str, bool] = MappingProxyType({})) -> None:
    """Refuse settings that the accounting does not cover; `others` says which further such settings are in use."""
    if algorithm.privacy is None:
        return
    plain = algorithm.aggregate == "mean" and algorithm.clip is None
    require(plain, "privacy has its own averaging: leave aggregate and clip out (privacy.clip is used).")
    require(algorithm.weights == "clients", "privacy weights all clients equally: leave weights at 'clients'.")
    for name, used in others.items():
        require(not used, f"{name} is not covered by the privacy accounting: leave it out.")


class PrivatePlan(NamedTuple):
    """Private rounds of a federation: the settings, and what each round releases."""

    privacy: Privacy
    release: Release
    clients: int
    past: Account
    """What earlier algorithms, or this one on earlier data, released about the same clients."""

    @staticmethod
    def of(
        privacy: Privacy, fed: Federation, *, participants: int | float | None, k: int, past: Account
    ) -> PrivatePlan:
        """The plan for the clients of a federation."""
        n = len(fed.clients)
        privacy.check_clients(n)
        return PrivatePlan(privacy, release_of(privacy, rate=_rate(participants, n), k=k), n, past)

    def may_go_on(self, done: int) -> bool:
        """Whether the budget allows one more round. Logs if it does not; raises if it never allowed one."""
        if affords(self.privacy, self.release, done + 1, self.past):
            return True
        next_one, budget = self.epsilon(done + 1), self.privacy.epsilon
        before = f"{self.epsilon(0):.3g} are spent on the models of the start, one round makes it {next_one:.3g}"
        why = f": {before}; raise epsilon" if self.past else f", which costs {next_one:.3g}: raise noise"
        require(done > 0, f"epsilon={budget} does not allow a single round{why}.")
        log.warning(
            "the privacy budget is spent: ε is %.3g, one round more would make it %.3g, the budget is %g",
            self.epsilon(done),
            next_one,
            budget,
        )
        return False

    def epsilon(self, done: int) -> float:
        """ε after `done` rounds."""
        return spent(self.release, done, self.privacy.delta, self.past)

    def account(self, done: int) -> dict[str, Tensor]:
        """The entry of a snapshot's carry after `done` rounds, by which later rounds know what was spent."""
        return {ACCOUNT: account_to_tensor((*self.past, (self.release, done)))}

    def notes(self, fed: Federation, done: int, *, last: bool) -> dict[str, Any]:
        """The notes of a round; a spent budget is noted only if another round was planned."""
        epsilon, over = self.epsilon(done), not affords(self.privacy, self.release, done + 1, self.past)
        fed.ledger.epsilon = epsilon
        finite = epsilon if epsilon < torch.inf else None
        return {"epsilon": finite, "delta": self.privacy.delta, **({BUDGET: "spent"} if over and not last else {})}

    def key(self, at: Snapshot, fed: Federation) -> Key:
        """The secret key of this round."""
        secret = self.privacy.secret if self.privacy.secret is not None else int(at.carry[SECRET])
        return fold(root(secret), "privacy", fed.seed, fed.clock)

    def client_privacy(self, key: Key, like: Params) -> ClientPrivacy:
        """The privacy parameters sent to clients."""
        clip = torch.inf if self.privacy.clip is None else self.privacy.clip
        device = next(iter(like.values())).device
        most, blur = (torch.tensor(v, dtype=torch.float64, device=device) for v in (clip, self.release.blur))
        return ClientPrivacy(most, blur, fold(key, "labels").to(device))

    def near(self, clients: Cohort, models: Params) -> Cohort:
        """The same clients, refusing updates longer than the clipping length."""
        return clients.near(map_tensors(torch.zeros_like, models), most=self.privacy.clip)

    def released(self, sums: Sums[tuple[()]], key: Key, known: Tensor | None = None) -> Released:
        """The sums with noise; `known` are the clusters' numbers of clients, if they need not be counted privately."""
        if known is None and len(sums.weight) == 1:
            known = torch.full_like(sums.weight, self.release.rate * self.clients)
        return released(sums.total, sums.weight, self.privacy, blur=self.release.blur, known=known, key=key)


def past_of(at: Snapshot, done: int) -> Account:
    """What was released before the `done` private rounds of this run, the last entry of its account."""
    account = account_from_tensor(at.carry[ACCOUNT]) if ACCOUNT in at.carry else ()
    return account[:-1] if done else account


def with_secret(at: Snapshot, privacy: Privacy) -> Snapshot:
    """A snapshot that carries the seed of the noise, drawn by the system unless the settings give one."""
    if privacy.secret is not None or SECRET in at.carry:
        return at
    return replace(at, carry={**at.carry, SECRET: torch.tensor(secrets.randbits(62))})


def private_rounds(
    algorithm: Averages,
    fed: Federation,
    at: Snapshot,
    averaging: Averaging = "models",
    shared: tuple[str, ...] = (),
    step: Callable[[Federation, int], float] | None = None,
) -> Iterator[Snapshot]:
    """Private rounds of choosing, training and averaging, until they are done or the budget is spent.

    `step(fed, t)` is the step size along the sum of gradients, for `averaging="gradients"`.
    """
    assert algorithm.privacy is not None
    past = past_of(at, at.round)
    plan = PrivatePlan.of(algorithm.privacy, fed, participants=algorithm.participants, k=at.k, past=past)
    at = with_secret(at, algorithm.privacy)
    for t in range(at.round, algorithm.rounds):
        if not plan.may_go_on(t):
            return
        key = plan.key(at, fed)
        work = Work(local=algorithm.local.at(t), averaging=averaging)
        clients = fed.clients.drawn(plan.release.rate, fold(key, "who"))
        sums, labels = _sums_of_drawn(plan, clients, at, work, key, shared)
        found = plan.released(sums, fold(key, "noise"))
        if averaging == "gradients":
            assert step is not None
            models = add(at.models, _tied(found.total, found.total, shared), alpha=-step(fed, t))
        else:
            everybody = map_tensors(lambda leaf: leaf / (plan.release.rate * plan.clients), found.total)
            models = add(at.models, _tied(found.mean(algorithm.privacy.least), everybody, shared))
        sizes = [round(size, 1) for size in found.clients.tolist()]
        notes = plan.notes(fed, t + 1, last=t + 1 == algorithm.rounds) | {"cluster_sizes": sizes}
        carry = {**at.carry, **plan.account(t + 1)}
        yield (at := at.next(models=models, labels=labels, carry=carry, notes=notes))


def check_budget(privacy: Privacy, fed: Federation, *, rounds: int, past: Account) -> None:
    """Refuse a plan that would spend more than the budget."""
    plan = PrivatePlan.of(privacy, fed, participants=None, k=1, past=past)
    cost, most = plan.epsilon(rounds), privacy.epsilon
    within = most is None or cost <= most
    require(within, f"{rounds} private rounds cost ε = {cost:.3g}, epsilon is {most}: raise noise, or take fewer.")


def moved_privately(
    privacy: Privacy, fed: Federation, cohort: Cohort, at: Snapshot, models: Params, work: Work, *, done: int
) -> tuple[Params, dict[str, Any], dict[str, Tensor]]:
    """The models of clusters with known members after one private round, its notes and its entry of the carry.

    Clients are not subsampled within clusters: cluster sizes differ, and so would the sampling rates.
    """
    plan = PrivatePlan.of(privacy, fed, participants=None, k=1, past=past_of(at, done))
    k = len(next(iter(models.values())))
    key = plan.key(at, fed)
    client_privacy = plan.client_privacy(key, models)
    asked, labels = plan.near(cohort, models), cohort.pick(at.labels)
    replies = asked.sum(work_on_own_privately, each(models, of=labels), each(labels), client_privacy, k=k, work=work)
    known = torch.bincount(labels, minlength=k).to(replies.value.weight)
    mean = plan.released(replies.value, fold(key, "noise"), known).mean(privacy.least)
    step = 1.0 if work.averaging == "models" else -work.local.lr
    return add(models, mean, alpha=step), plan.notes(fed, done + 1, last=True), plan.account(done + 1)


def _sums_of_drawn(
    plan: PrivatePlan, clients: Cohort, at: Snapshot, work: Work, key: Key, shared: tuple[str, ...]
) -> tuple[Sums[tuple[()]], tuple[Cohort, Tensor | None] | None]:
    """The sums of the clients drawn, and their labels; None if labels are private, or nobody was drawn."""
    if not len(clients):
        k = at.k
        return Sums(map_tensors(torch.zeros_like, at.models), torch.zeros(k), None, ()), None
    near = plan.near(clients, at.models)
    replies = near.sum(
        choose_and_work_privately, pack(at.models, shared), plan.client_privacy(key, at.models), work=work
    )
    return replies.value, (replies.clients, replies.value.label) if plan.release.labels is None else None


def _tied(own: Params, everybody: Params, shared: tuple[str, ...]) -> Params:
    """`own`, with shared parameters replaced by the sum of `everybody` over clusters."""
    return {
        name: everybody[name].sum(0, keepdim=True).expand_as(value) if is_shared(name, shared) else value
        for name, value in own.items()
    }


def _rate(participants: int | float | None, n: int) -> float:
    if participants is None:
        return 1.0
    check_participants(participants)
    return min(1.0, participants / n) if isinstance(participants, int) else float(participants)
