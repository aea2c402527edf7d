"""The server's side of clusters by evidence: pairs on trial, clients' reports, and the decisions that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.evidence.headline import SURE, Evidence
from corymb.algorithms.evidence.weighing import Compared, LossReport
from corymb.clustering.paired import NONE, Difference, difference
from corymb.core.federation import Replies, Sums
from corymb.core.snapshot import Snapshot
from corymb.trees import Params, concat, map_tensors, part_of, prefixed, take

CERTAIN = 1e-4
MATTERS = 0.05
"""A merger that is worse by less than this share of the loss does no harm."""
LASTS, LARGE = 0.2, 0.5
"""Under label skew, differences fade with training: what remains after more rounds must be this large."""
SKEWED = 0.05
"""Clients' labels are skewed if their own class biases improve one model's held-out loss by this share."""
TRIES = 3
FEW_CLIENTS, SMALL = 12, 3
"""With at least `FEW_CLIENTS` clients, groups of fewer than `SMALL` dissolve unless they are needed beyond doubt."""


class Pair(NamedTuple):
    """Two clusters on trial."""

    a: int
    b: int
    tried: int


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The state of the search between rounds."""

    one: Params = field(default_factory=dict)
    """The model for all clients; empty if clusters are not compared with one."""
    groups: int = 0
    """The initial number of groups."""
    looks: int = 0
    skewed: bool = True
    """Whether models are chosen and compared with class biases."""
    pairs: tuple[Pair, ...] = ()
    mergers: Params = field(default_factory=dict)
    """A row for each pair."""
    apart: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    """k k: pairs that are not proposed again."""
    splits: int = 0
    before_split: int = 0
    """The number of clusters before the last split."""
    nearest: Difference | None = None
    """The least certain pair of those kept apart."""
    doubtful: Difference | None = None
    """The pair closest to being kept apart, of those merged."""
    widest: Difference | None = None
    """The last pair with the most clients, of those merged."""

    def to_carry(self) -> dict[str, Tensor]:
        """The state as named tensors, for the carry of a snapshot."""
        numbers = {name: torch.tensor(getattr(self, name)) for name in NUMBERS}
        pairs = torch.tensor([list(pair) for pair in self.pairs], dtype=torch.int64).reshape(-1, 3)
        models = {**prefixed("one", self.one), **prefixed("mergers", self.mergers)}
        seen = {name: torch.tensor(found, dtype=torch.float64) for name in SEEN if (found := getattr(self, name))}
        return {**numbers, "pairs": pairs, "apart": self.apart, **models, **seen}

    @staticmethod
    def from_carry(carry: Mapping[str, Tensor]) -> Trials:
        """The state stored in a snapshot's carry."""
        numbers: dict[str, Any] = {name: carry[name].item() for name in NUMBERS}
        pairs = tuple(Pair(*row) for row in carry["pairs"].tolist())
        one, mergers = part_of(carry, "one"), part_of(carry, "mergers")
        numbers |= {name: Difference.of(carry[name].tolist()) for name in SEEN if name in carry}
        return Trials(**numbers, pairs=pairs, apart=carry["apart"].cpu().bool(), one=one, mergers=mergers)

    def remembering(self, verdict: str, found: Difference, both: Difference) -> Trials:
        """The state with a verdict stored, if it is the least certain of its kind or has the most clients."""
        if verdict == "apart" and (self.nearest is None or found.p > self.nearest.p):
            return replace(self, nearest=found)
        if verdict != "merge":
            return self
        most = self if self.widest and both.clients < self.widest.clients else replace(self, widest=both)
        return replace(most, doubtful=found) if self.doubtful is None or found.p < self.doubtful.p else most

    def of_clusters(self, k: int) -> Tensor:
        """The index of the pair that each cluster is in, -1 for none: k."""
        trial = torch.full((k,), -1)
        for place, pair in enumerate(self.pairs):
            trial[[pair.a, pair.b]] = place
        return trial

    def may_split(self, k: int, *, most: int) -> bool:
        """Whether to split clusters: at first, and after every split of which some part was kept."""
        return self.splits == 0 or (self.splits < most and k > self.before_split)

    def splitting(self, k: int, pairs: list[Pair], mergers: list[Params]) -> Trials:
        """The state after a split of k clusters; the new ones are numbered from k."""
        apart = torch.zeros(k + len(pairs), k + len(pairs), dtype=torch.bool)
        apart[:k, :k] = self.apart if len(self.apart) == k else False
        rows = concat(mergers) if pairs else {}
        return replace(self, pairs=tuple(pairs), mergers=rows, apart=apart, splits=self.splits + 1, before_split=k)

    def proposing(self, at: Snapshot, reported: LossReports, pairs: list[Pair]) -> Trials:
        """The state with new pairs, whose mergers start as the mean of both models."""
        if not pairs:
            return self
        sizes = reported.label.bincount(minlength=at.k).double()
        rows = [self.mergers] if self.pairs else []
        for pair in pairs:
            share = float(sizes[pair.a] / (sizes[pair.a] + sizes[pair.b]).clamp_min(1))
            rows.append({n: (share * v[pair.a] + (1 - share) * v[pair.b]).unsqueeze(0) for n, v in at.models.items()})
        return replace(self, pairs=(*self.pairs, *pairs), mergers=concat(rows))


NUMBERS = ("groups", "looks", "skewed", "splits", "before_split")
SEEN = ("nearest", "doubtful", "widest")


class LossReports(NamedTuple):
    """The losses that clients reported for k clusters' models, then the mergers, and last the one model for all."""

    label: Tensor  # n: the cluster that each client chose
    held: Compared  # n rows
    plain: Compared
    number: Tensor  # n
    k: int
    columns: Tensor | None = None
    """The rows and columns of `spread` that belong to the models, if those were renumbered: with hundreds of clusters,
    n k² covariances take most of a search's memory, so they are kept as reported."""

    @staticmethod
    def of(replies: Replies[Sums[LossReport]], k: int) -> LossReports:
        """The reports in a round's replies."""
        label = replies.value.label
        assert label is not None
        return LossReports.by(replies.value.note, label, k)

    @staticmethod
    def by(weighed: LossReport, label: Tensor, k: int) -> LossReports:
        """The reports of clients in given clusters."""
        rows = map_tensors(lambda t: t.detach().cpu(), weighed)
        held, plain = (Compared(c.mean.double(), c.spread) for c in (rows.held, rows.plain))
        return LossReports(label.cpu(), held, plain, rows.number.double(), k)

    @property
    def skew(self) -> float:
        """The share of its held-out loss by which clients' own class biases improve the one model."""
        return 1 - self._one(self.held) / max(self._one(self.plain), 1e-12)

    @property
    def skewed(self) -> bool:
        """Whether class biases improve it enough to be used; otherwise they are noise."""
        return self.skew > SKEWED

    def members(self, cluster: int) -> Tensor:
        """A mask of the clients that chose a cluster: n."""
        return self.label == cluster

    def compare(
        self, mask: Tensor, model: int | Tensor, than: int | Tensor, *, plain: bool | None = None
    ) -> Difference:
        """How much worse `model` is than `than` at clients in `mask`; either may be one index, or one per client."""
        if not bool(mask.any()):
            return NONE
        losses = self.plain if (not self.skewed if plain is None else plain) else self.held
        rows = torch.arange(len(self.label))
        m, t = (torch.as_tensor(which).expand(len(rows)) for which in (model, than))
        base = losses.mean[rows, t]
        worse = losses.mean[rows, m] - base
        m, t = (m, t) if self.columns is None else (self.columns[m], self.columns[t])
        of_m, of_t, of_both = (losses.spread[rows, i, j].double() for i, j in ((m, m), (t, t), (m, t)))
        variance = of_m + of_t - 2 * of_both
        return difference(worse[mask], variance[mask].clamp_min(0), self.number[mask], base[mask])

    def next_best(self, cluster: int) -> tuple[int, Difference]:
        """The model that serves a cluster's clients best besides their own, and how much worse it is."""
        members = self.members(cluster)
        others = [(self.compare(members, other, cluster), other) for other in range(self.k) if other != cluster]
        found = min(others, key=lambda pair: pair[0].mean, default=(NONE, -1))
        return found[1], found[0]

    def all_needed(self) -> bool:
        """Whether nearly every group is needed beyond doubt, so that there may be more clusters than groups."""
        used = self.label.unique().tolist()
        needed = [self.next_best(cluster)[1] for cluster in used]
        return len(used) > 1 and sum(d.p < CERTAIN and d.size > LARGE for d in needed) > 0.75 * len(used)

    @property
    def small(self) -> int:
        """Clusters with fewer clients than this stay only if needed beyond doubt."""
        return SMALL if len(self.label) >= FEW_CLIENTS else 1

    def evidence(self, trials: Trials) -> Evidence:
        """Compare the clusters' models with the best single model: the one for all, or that of a cluster.

        If one cluster has large clients and the other small ones, the first may have the better model for all.
        """
        tested, everybody = self.number > 0, torch.ones(len(self.label), dtype=torch.bool)
        one = int(self.plain.mean[tested].mean(0).argmin())
        plain, biased = ((self._own(c), float(c.mean[tested, one].mean())) for c in (self.plain, self.held))
        return Evidence(
            loss_of_one=plain[1],
            loss_of_clusters=plain[0],
            overall=self.compare(everybody, one, self.label, plain=True),
            clusters=[self.compare(self.members(c), one, c, plain=True) for c in range(self.k)],
            biased_share=1 - biased[0] / max(biased[1], 1e-12),
            skewed=self.skewed,
            nearest=trials.nearest,
            doubtful=trials.doubtful,
            widest=trials.widest,
            single=one if one < self.k else -1,
        )

    def _own(self, losses: Compared) -> float:
        tested = self.number > 0
        return float(losses.mean[tested].gather(1, self.label[tested, None]).mean())

    def _one(self, losses: Compared) -> float:
        return float(losses.mean[self.number > 0, -1].mean())


class Decision(NamedTuple):
    """The outcome of judging the pairs on trial, with clusters renumbered."""

    at: Snapshot
    trials: Trials
    reported: LossReports
    merged: int


def judge(at: Snapshot, trials: Trials, reported: LossReports, *, last: bool, only: Tensor | None = None) -> Decision:
    """Decide for each pair whether to merge it, keep it apart or try again; dissolve clusters that are not needed.

    With `only`, clients of other clusters were not asked, and those clusters stay unchanged.
    """
    verdicts = []
    for place, pair in enumerate(trials.pairs):
        verdict, found, both = _verdict(reported, reported.k + place, pair, last=last)
        verdicts.append(verdict)
        trials = trials.remembering(verdict, found, both)
    alive = _alive(reported, [pair for pair, verdict in zip(trials.pairs, verdicts, strict=True) if verdict == "merge"])
    if only is not None:
        alive[~torch.isin(torch.arange(reported.k), only)] = True
    new_number = torch.full((reported.k,), -1)
    columns: list[int] = []
    for cluster in range(reported.k):
        if not alive[cluster]:
            continue
        place, other = _partner(trials.pairs, cluster)
        merging = place >= 0 and verdicts[place] == "merge" and bool(alive[other])
        if merging and other < cluster:
            new_number[cluster] = new_number[other]
            continue
        new_number[cluster] = len(columns)
        columns.append(reported.k + place if merging else cluster)
    models = concat([at.models, trials.mergers]) if trials.pairs else at.models
    tried = [
        (place, Pair(int(new_number[pair.a]), int(new_number[pair.b]), pair.tried + 1))
        for place, pair in enumerate(trials.pairs)
        if verdicts[place] == "again" and alive[pair.a] and alive[pair.b]
    ]
    apart = _known_apart(trials, verdicts, new_number, columns, reported.k)
    mergers = take(trials.mergers, torch.tensor([place for place, _ in tried], dtype=torch.int64)) if tried else {}
    trials = replace(trials, pairs=tuple(pair for _, pair in tried), mergers=mergers, apart=apart)
    at = replace(
        at,
        models=take(models, torch.tensor(columns)),
        labels=torch.where(at.labels < 0, -1, new_number[at.labels]),
        notes={**at.notes, "clusters": len(columns)},
    )
    merged = sum(verdict == "merge" for verdict in verdicts)
    return Decision(at, trials, _renumbered(reported, new_number, columns), merged)


def _verdict(reported: LossReports, merger: int, pair: Pair, *, last: bool) -> tuple[str, Difference, Difference]:
    """`merge`, `apart` or `again` for a pair, the most significant difference, and that over both clusters."""
    a, b = reported.members(pair.a), reported.members(pair.b)
    sides = [reported.compare(side, merger, reported.label) for side in (a, b)]
    both = reported.compare(a | b, merger, reported.label)
    worse = [d.p < (SURE if d.clients >= reported.small else CERTAIN) and d.size > MATTERS for d in sides]
    apart = (both.p < SURE and both.size > MATTERS) or (any(worse) and not any(d.mean < 0 for d in sides))
    if apart and pair.tried and reported.skewed:
        apart = both.size > LASTS or any(w and d.size > LARGE for w, d in zip(worse, sides, strict=True))
    found = min((both, *sides), key=lambda d: d.p)
    if not apart:
        return "merge", found, both
    evident = [d.p < CERTAIN and d.size > (LARGE if reported.skewed else 2 * MATTERS) for d in (both, *sides)]
    plain = evident[0] or (not reported.skewed and any(evident))
    return "apart" if plain or pair.tried + 1 >= TRIES or last else "again", found, both


def _partner(pairs: tuple[Pair, ...], cluster: int) -> tuple[int, int]:
    for place, pair in enumerate(pairs):
        if cluster in (pair.a, pair.b):
            return place, pair.b if cluster == pair.a else pair.a
    return -1, -1


def _alive(reported: LossReports, merging: list[Pair]) -> Tensor:
    """A mask of the clusters that stay: those with enough clients, and small ones that are needed beyond doubt.

    A client with a single example holds none out: nothing is known about a cluster of only such clients.
    """
    sizes, known = (
        reported.label.bincount(minlength=reported.k),
        reported.label[reported.number > 0].bincount(minlength=reported.k),
    )
    for pair in merging:
        sizes[[pair.a, pair.b]] = sizes[pair.a] + sizes[pair.b]
        known[[pair.a, pair.b]] = known[pair.a] + known[pair.b]
    alive = (sizes >= reported.small) & (known > 0)
    for cluster in ((sizes > 0) & ~alive).nonzero().flatten().tolist():
        _, other = reported.next_best(cluster)
        alive[cluster] = other.p < CERTAIN and other.size > MATTERS
    return alive if alive.any() else sizes == sizes.max()


def _known_apart(trials: Trials, verdicts: list[str], new_number: Tensor, columns: list[int], k: int) -> Tensor:
    """Which pairs are known to be apart, among clusters that stay unchanged; in the new numbering."""
    known = trials.apart.clone() if trials.apart.shape == (k, k) else torch.zeros(k, k, dtype=torch.bool)
    for verdict, pair in zip(verdicts, trials.pairs, strict=True):
        if verdict == "apart":
            known[pair.a, pair.b] = known[pair.b, pair.a] = True
    new = torch.zeros(len(columns), len(columns), dtype=torch.bool)
    same = [
        cluster for cluster in range(k) if new_number[cluster] >= 0 and columns[int(new_number[cluster])] == cluster
    ]
    for a in same:
        new[new_number[a], new_number[same]] = known[a, same]
    return new


def _renumbered(reported: LossReports, new_number: Tensor, columns: list[int]) -> LossReports:
    keep = torch.tensor([*columns, reported.held.mean.shape[1] - 1])
    held, plain = (c._replace(mean=c.mean[:, keep]) for c in (reported.held, reported.plain))
    label = new_number[reported.label]
    nearest = held.mean[:, : len(columns)].argmin(1)  # for clients whose cluster was dissolved
    kept = keep if reported.columns is None else reported.columns[keep]
    return LossReports(torch.where(label < 0, nearest, label), held, plain, reported.number, len(columns), kept)


def proposals(trials: Trials, reported: LossReports) -> list[Pair]:
    """Disjoint pairs of clusters whose clients would lose least by sharing a model."""
    busy = {cluster for pair in trials.pairs for cluster in (pair.a, pair.b)}
    wanted = []
    for a in (cluster for cluster in range(reported.k) if cluster not in busy):
        nearest, _ = reported.next_best(a)
        for b in (c for c in range(reported.k) if c != a and c not in busy and not trials.apart[a, c]):
            d = reported.compare(reported.members(a), b, a)
            if b == nearest or d.p >= SURE:
                wanted.append((d.mean, min(a, b), max(a, b)))
    chosen: list[Pair] = []
    for _, a, b in sorted(wanted):
        if a not in busy and b not in busy:
            chosen.append(Pair(a, b, 0))
            busy |= {a, b}
    return chosen
