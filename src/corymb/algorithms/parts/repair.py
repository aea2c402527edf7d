"""Detects and repairs IFCA's known failure: two groups of clients share a model for good while other models go unused.

Clients that need different models have different vectors of losses over the k models, even while they choose the same
one. The clients' centred log-loss vectors are therefore grouped by k-means; if labels have settled and these groups are
still far tighter than the labels, the clusters have collapsed. The repair gives every group the model that fits it
best, trains one round within the groups, and lets IFCA continue. CLoVE (2026) starts from such groups; here they repair
a run in progress.

Replies carry the loss vectors anyway, so that this needs no further messages. If only some clients take part in a
round, the vectors of the preceding rounds count as well.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.parts.alternate import Answers
from corymb.algorithms.parts.loss_vectors import DISTINCT, regroup, silhouette_of, spread, vectors
from corymb.core.federation import Cohort, Federation
from corymb.core.snapshot import Snapshot
from corymb.keys import Key
from corymb.trees import take

log = logging.getLogger(__name__)
PREFIX = "repair/"
SETTLED = 0.05
"""Labels have settled when at most this share of clients changed theirs; before that, IFCA may still correct itself."""
TIGHTER = 0.8
"""The spread of groups must be below this fraction of that of labels: measured 0.11 to 0.73 after a collapse (rotated
MNIST and digits), 0.84 and more if k is one too many."""
FIRST = 2
"""Rounds before the first check."""
PAUSE = 3
"""Rounds without a check after a repair, doubled after every further repair."""
HEALTHY, RARELY = 3, 10
"""After `HEALTHY` checks without a finding, only every `RARELY`-th round is checked."""
ENOUGH = 5
"""Loss vectors needed per model."""
RECENT = 10
"""Rounds after which a loss vector is too old: the models have changed."""
LEFT = 2
"""Rounds that must remain to train after a repair: one within the groups and one of free choice. Measured on rotated
digits: 3 to 7 points of accuracy gained with two rounds left, none at all with none left."""
SAME = 0.9
"""Two groupings count as the same if they agree on this share of clients."""


def unwatched(settings: Mapping[str, Any], clients: int) -> str:
    """A message if a run of IFCA from random models has too few clients to be watched; else empty.

    >>> unwatched({"k": 2, "repair": True, "init": "random", "restarts": 1}, 10)
    ''
    >>> unwatched({"k": 2, "repair": True, "init": "random", "restarts": 1}, 4)
    'whether two groups share a model cannot be told with 4 clients, only with 5 for each of the 2 models: --init \
one-shot starts from groups of local models, --restarts 5 keeps the best of five starts'
    """
    k = settings.get("k")
    watched = settings.get("repair") is True and settings.get("soft") is None and settings.get("privacy") is None
    random = settings.get("init") == "random" and settings.get("restarts") == 1
    if not (watched and random and isinstance(k, int) and k > 1 and clients < ENOUGH * k):
        return ""
    return (
        f"whether two groups share a model cannot be told with {clients} clients, only with {ENOUGH} for each of the "
        f"{k} models: --init one-shot starts from groups of local models, --restarts 5 keeps the best of five starts"
    )


class Watched(NamedTuple):
    """The state of the repair between rounds, for n clients and k models."""

    repairs: Tensor
    """The number of repairs so far."""
    repaired_at: Tensor
    """The round of the last repair."""
    healthy: Tensor
    """Checks since then without a finding."""
    training: Tensor
    """n: the clients regrouped in the last round, which train within their groups in the next."""
    groups: Tensor
    """n: the groups of the last repair, -1 for other clients."""
    fit: Tensor
    """n k: each client's losses when it last reported all of them."""
    seen: Tensor
    """n: the round of that report, 0 for never."""
    moved: Tensor
    """n: whether its label changed in that round (1, 0), -1 if it had no label before."""

    @staticmethod
    def from_carry(carry: Mapping[str, Tensor], n: int, k: int) -> Watched:
        """The state stored in a snapshot's carry, or the initial state."""
        if PREFIX + "seen" in carry:
            return Watched(**{name: carry[PREFIX + name] for name in Watched._fields})
        none = torch.full((n,), -1)
        zero = torch.zeros((), dtype=torch.int64)
        fit = torch.zeros(n, k, dtype=torch.float64)
        return Watched(zero, zero, zero, none >= 0, none, fit, torch.zeros_like(none), none)

    def to_carry(self) -> dict[str, Tensor]:
        """The state as named tensors, for the carry of a snapshot."""
        return {PREFIX + name: value for name, value in self._asdict().items()}

    def after(self, before: Snapshot, at: Snapshot, replies: Answers) -> Watched:
        """The state with this round's loss vectors added, if all models were sent."""
        clients, fit = replies.clients, replies.value.note
        this = self._replace(training=torch.zeros_like(self.training))
        if fit.shape[1] < at.k:
            return this
        old, new = clients.pick(before.labels), clients.pick(at.labels)
        return this._replace(
            fit=clients.put(self.fit, fit),
            seen=clients.put(self.seen, torch.full_like(new, at.round)),
            moved=clients.put(self.moved, torch.where(old < 0, -1, (old != new).long())),
        )

    def known(self, round: int, k: int) -> Tensor | None:
        """A mask of the clients whose vectors count (those of as few recent rounds as suffice): n, or None."""
        for age in range(RECENT):
            known = self.seen > max(0, round - 1 - age)
            if int(known.sum()) >= ENOUGH * k:
                return known
        return None

    def may_check(self, round: int, left: int) -> bool:
        """Whether to check in this round: not too early or late, not soon after a repair, and rarely once healthy."""
        pause = PAUSE * 2 ** max(0, int(self.repairs) - 1)
        if round <= FIRST or left < LEFT or (self.repairs and round - int(self.repaired_at) <= pause):
            return False
        return int(self.healthy) < HEALTHY or round % RARELY == 0

    def settled(self, known: Tensor) -> bool:
        """Whether the clients in `known` have (nearly all) kept their labels."""
        moved = self.moved[known & (self.moved >= 0)]
        return len(moved) > 0 and float(moved.double().mean()) <= SETTLED


class Groups(NamedTuple):
    """A better grouping than the labels, and the model that fits each group best."""

    labels: Tensor  # n
    favourites: Tensor  # k
    tighter: float
    silhouette: float


def find(fit: Tensor, labels: Tensor, key: Key, names: Tensor) -> Groups | None:
    """A grouping that shows that the labels have collapsed, or None."""
    points, k = vectors(fit), fit.shape[1]
    groups, favourites = regroup(fit, k, key, names)
    tighter = spread(points, groups) / max(spread(points, labels), 1e-12)
    if tighter >= TIGHTER or len(groups.unique()) < 2:
        return None
    silhouette = silhouette_of(points, groups, key, names)
    return Groups(groups, favourites, tighter, silhouette) if silhouette >= DISTINCT else None


def regrouped(fed: Federation, at: Snapshot, participants: int | float | None) -> Cohort | None:
    """The clients that train within the groups in the round after a repair, sampled by group; None in other rounds."""
    training = at.carry.get(PREFIX + "training")
    if training is None or not training.any():
        return None
    if participants is None:
        return fed.clients.where(training)
    members = [fed.clients.where(training & (at.labels == group)) for group in range(at.k)]
    members = [cohort for cohort in members if len(cohort)]
    each = -(-len(fed.clients.sample(participants)) // len(members))
    chosen = torch.stack([cohort.sample(each).mask for cohort in members])
    return fed.clients.where(chosen.any(0))


def watch(fed: Federation, before: Snapshot, at: Snapshot, replies: Answers, left: int) -> Snapshot:
    """The snapshot after a round, regrouped if its clusters have collapsed; `left` rounds follow."""
    state = Watched.from_carry(before.carry, len(at.labels), at.k).after(before, at, replies)
    at = replace(at, notes={**at.notes, "unused_models": at.k - len(at.labels[at.labels >= 0].unique())})
    known = state.known(at.round, at.k) if state.may_check(at.round, left) else None
    if known is None or not state.settled(known):
        return replace(at, carry={**at.carry, **state.to_carry()})
    try:
        found = find(state.fit[known], at.labels[known], fed.key("collapse"), fed.name_hashes[known])
    except ImportError:  # without scikit-learn, IFCA runs as in the paper
        log.warning("scikit-learn is not installed: collapsed clusters are not repaired")
        found, state = None, state._replace(healthy=torch.tensor(HEALTHY))
    if found is None or agree(state.groups[known], found.labels):  # the last repair had these groups and did not hold
        state = state._replace(healthy=state.healthy + 1)
        return replace(at, carry={**at.carry, **state.to_carry()})
    return _repaired(fed, at, state, known, found)


def _repaired(fed: Federation, at: Snapshot, state: Watched, known: Tensor, found: Groups) -> Snapshot:
    names = [fed.names[i] for i in known.nonzero().flatten()[movers(at.labels[known], found.labels)].tolist()]
    log.warning(
        "round %d: clients that share a model need different ones: %s moved (%d of %d; groups by loss are %.0f %% as "
        "wide as the clusters)",
        at.round, _listed(names), len(names), int(known.sum()), 100 * found.tighter,
    )  # fmt: skip
    labels = followed(at.labels, found.favourites)
    labels[known] = found.labels
    state = Watched.from_carry({}, len(labels), at.k)._replace(
        repairs=state.repairs + 1,
        repaired_at=torch.tensor(at.round),
        training=known,
        groups=torch.where(known, labels, -1),
    )
    collapse = {"tighter": found.tighter, "silhouette": found.silhouette, "moved": len(names), "clients": names[:20]}
    return replace(
        at,
        models=take(at.models, found.favourites),
        labels=labels,
        carry={**at.carry, **state.to_carry()},
        notes={**at.notes, "collapse": collapse, "repairs": int(state.repairs)},
    )


def followed(labels: Tensor, favourites: Tensor) -> Tensor:
    """Labels after models are renumbered: a client follows its model, or loses its label if that is not one model now.

    >>> followed(torch.tensor([0, 1, 2, -1]), torch.tensor([2, 0, 0]))
    tensor([-1, -1,  0, -1])
    """
    copies = favourites[None] == torch.arange(len(favourites))[:, None]  # old new
    new_label = torch.where(copies.sum(1) == 1, copies.long().argmax(1), -1)
    return torch.where(labels < 0, -1, new_label[labels])


def movers(labels: Tensor, groups: Tensor) -> Tensor:
    """A mask of the clients outside the group that most clients with the same label are in: n.

    >>> movers(torch.tensor([0, 0, 0, 1]), torch.tensor([2, 2, 1, 1]))
    tensor([False, False,  True, False])
    """
    counts = torch.zeros(int(labels.max()) + 1, int(groups.max()) + 1, dtype=torch.int64)
    counts.index_put_((labels, groups), torch.ones_like(labels), accumulate=True)
    return groups != counts.argmax(1)[labels]


def agree(groups: Tensor, others: Tensor) -> bool:
    """Whether two groupings are (nearly) the same up to renumbering; clients without a group (-1) do not count."""
    both = (groups >= 0) & (others >= 0)
    if not both.any():
        return False
    groups, others = groups[both], others[both]
    strays = movers(groups, others).sum(), movers(others, groups).sum()
    return 1 - int(max(strays)) / len(groups) >= SAME


def _listed(names: Sequence[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
