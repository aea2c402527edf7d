"""The server's side of clusters by evidence: pairs on trial, what clients said of models, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.algorithms.evidence.headline import SURE, Evidence
from corymb.algorithms.evidence.weighing import Compared, Weighed
from corymb.clustering.paired import NONE, Difference, difference
from corymb.core.federation import Replies, Sums
from corymb.core.snapshot import Snapshot
from corymb.trees import Params, concat, map_tensors, part_of, prefixed, take

CERTAIN = 1e-4
MATTERS = 0.05
"""A merger that is worse by less than this share of the loss does no harm."""
LASTS, LARGE = 0.2, 0.5
"""Under label skew differences fade with training: what is left after more rounds must be this large."""
SKEWED = 0.05
"""Clients' labels are skewed if class biases of their own improve one model's held-out loss by this share."""
TRIES = 3
FEW_CLIENTS, SMALL = 12, 3
"""Groups of fewer than `SMALL` clients dissolve unless they are needed beyond doubt, where there are clients enough."""


class Pair(NamedTuple):
    """Two clusters on trial."""

    a: int
    b: int
    tried: int


@dataclass(frozen=True, kw_only=True)
class Trials:
    """What is carried from round to round."""

    one: Params = field(default_factory=dict)
    """The model for everybody; empty where clusters are not compared with one."""
    groups: int = 0
    """How many groups there were at first."""
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
    """How many clusters there were before the last split."""
    nearest: Difference | None = None
    """Of the pairs kept apart, the one least surely so."""
    doubtful: Difference | None = None
    """Of the pairs merged, the one that came nearest to being kept apart."""
    widest: Difference | None = None
    """Of the pairs merged, the last one of the most clients."""

    def to_carry(self) -> dict[str, Tensor]:
        """As tensors."""
        numbers = {name: torch.tensor(getattr(self, name)) for name in NUMBERS}
        pairs = torch.tensor([list(pair) for pair in self.pairs], dtype=torch.int64).reshape(-1, 3)
        models = {**prefixed("one", self.one), **prefixed("mergers", self.mergers)}
        seen = {name: torch.tensor(found, dtype=torch.float64) for name in SEEN if (found := getattr(self, name))}
        return {**numbers, "pairs": pairs, "apart": self.apart, **models, **seen}

    @staticmethod
    def from_carry(carry: Mapping[str, Tensor]) -> Trials:
        """Back from tensors."""
        numbers: dict[str, Any] = {name: carry[name].item() for name in NUMBERS}
        pairs = tuple(Pair(*row) for row in carry["pairs"].tolist())
        one, mergers = part_of(carry, "one"), part_of(carry, "mergers")
        numbers |= {name: Difference.of(carry[name].tolist()) for name in SEEN if name in carry}
        return Trials(**numbers, pairs=pairs, apart=carry["apart"].cpu().bool(), one=one, mergers=mergers)

    def seeing(self, verdict: str, found: Difference, both: Difference) -> Trials:
        """With a verdict remembered, if it is the least sure of its kind, or of the most clients."""
        if verdict == "apart" and (self.nearest is None or found.p > self.nearest.p):
            return replace(self, nearest=found)
        if verdict != "merge":
            return self
        most = self if self.widest and both.clients < self.widest.clients else replace(self, widest=both)
        return replace(most, doubtful=found) if self.doubtful is None or found.p < self.doubtful.p else most

    def of_clusters(self, k: int) -> Tensor:
        """k: the place of the pair that each cluster is in, -1 for none."""
        trial = torch.full((k,), -1)
        for place, pair in enumerate(self.pairs):
            trial[[pair.a, pair.b]] = place
        return trial

    def may_split(self, k: int, *, most: int) -> bool:
        """Whether to split clusters: at first, and after every split of which something was kept."""
        return self.splits == 0 or (self.splits < most and k > self.before_split)

    def splitting(self, k: int, pairs: list[Pair], mergers: list[Params]) -> Trials:
        """After a split of k clusters; the new ones have the numbers from k on."""
        apart = torch.zeros(k + len(pairs), k + len(pairs), dtype=torch.bool)
        apart[:k, :k] = self.apart if len(self.apart) == k else False
        rows = concat(mergers) if pairs else {}
        return replace(self, pairs=tuple(pairs), mergers=rows, apart=apart, splits=self.splits + 1, before_split=k)

    def proposing(self, at: Snapshot, said: Said, pairs: list[Pair]) -> Trials:
        """With new pairs, each with the mean of its models as the merger to begin with."""
        if not pairs:
            return self
        sizes = said.label.bincount(minlength=at.k).double()
        rows = [self.mergers] if self.pairs else []
        for pair in pairs:
            share = float(sizes[pair.a] / (sizes[pair.a] + sizes[pair.b]).clamp_min(1))
            rows.append({n: (share * v[pair.a] + (1 - share) * v[pair.b]).unsqueeze(0) for n, v in at.models.items()})
        return replace(self, pairs=(*self.pairs, *pairs), mergers=concat(rows))


NUMBERS = ("groups", "looks", "skewed", "splits", "before_split")
SEEN = ("nearest", "doubtful", "widest")


class Said(NamedTuple):
    """What clients said of k clusters' models, mergers, and, last of all, the one for all."""

    label: Tensor  # n: the cluster that each client chose
    held: Compared  # n rows
    plain: Compared
    number: Tensor  # n
    k: int

    @staticmethod
    def of(replies: Replies[Sums[Weighed]], k: int) -> Said:
        """From a round's replies."""
        label = replies.value.label
        assert label is not None
        return Said.by(replies.value.note, label, k)

    @staticmethod
    def by(weighed: Weighed, label: Tensor, k: int) -> Said:
        """From what clients in given clusters told."""
        told = map_tensors(lambda t: t.detach().cpu().double(), weighed)
        return Said(label.cpu(), told.held, told.plain, told.number, k)

    @property
    def skew(self) -> float:
        """By what share of its held-out loss class biases of clients' own improve the one model."""
        return 1 - self._one(self.held) / max(self._one(self.plain), 1e-12)

    @property
    def skewed(self) -> bool:
        """Whether they improve it enough to be needed: otherwise they are noise."""
        return self.skew > SKEWED

    def members(self, cluster: int) -> Tensor:
        """n: who chose it."""
        return self.label == cluster

    def compare(self, who: Tensor, model: int | Tensor, than: int | Tensor, *, plain: bool | None = None) -> Difference:
        """How much worse `model` does than `than` at some clients; either may be a number for each client."""
        if not bool(who.any()):
            return NONE
        said = self.plain if (not self.skewed if plain is None else plain) else self.held
        rows = torch.arange(len(self.label))
        m, t = (torch.as_tensor(which).expand(len(rows)) for which in (model, than))
        variance = said.spread[rows, m, m] + said.spread[rows, t, t] - 2 * said.spread[rows, m, t]
        base = said.mean[rows, t]
        return difference((said.mean[rows, m] - base)[who], variance[who].clamp_min(0), self.number[who], base[who])

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
        """Below how many clients a cluster needs certainty."""
        return SMALL if len(self.label) >= FEW_CLIENTS else 1

    def evidence(self, trials: Trials) -> Evidence:
        """How much worse the best single model is than the clusters': the one for all, or one of the clusters'.

        Of a cluster of large clients and one of small ones, the first may have the better model for everybody.
        """
        there, everybody = self.number > 0, torch.ones(len(self.label), dtype=torch.bool)
        one = int(self.plain.mean[there].mean(0).argmin())
        plain, biased = ((self._own(said), float(said.mean[there, one].mean())) for said in (self.plain, self.held))
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

    def _own(self, said: Compared) -> float:
        there = self.number > 0
        return float(said.mean[there].gather(1, self.label[there, None]).mean())

    def _one(self, said: Compared) -> float:
        return float(said.mean[self.number > 0, -1].mean())


class Decided(NamedTuple):
    """After the pairs on trial were judged: models, labels and what was said of them have new numbers."""

    at: Snapshot
    trials: Trials
    said: Said
    merged: int


def judge(at: Snapshot, trials: Trials, said: Said, *, last: bool, only: Tensor | None = None) -> Decided:
    """Merge, keep apart or try again each pair; dissolve clusters that hardly anybody needs.

    With `only`, clients of other clusters were not asked, and those clusters stay as they are.
    """
    verdicts = []
    for place, pair in enumerate(trials.pairs):
        verdict, found, both = _verdict(said, said.k + place, pair, last=last)
        verdicts.append(verdict)
        trials = trials.seeing(verdict, found, both)
    alive = _alive(said, [pair for pair, verdict in zip(trials.pairs, verdicts, strict=True) if verdict == "merge"])
    if only is not None:
        alive[~torch.isin(torch.arange(said.k), only)] = True
    became = torch.full((said.k,), -1)
    columns: list[int] = []
    for cluster in range(said.k):
        if not alive[cluster]:
            continue
        place, other = _partner(trials.pairs, cluster)
        merging = place >= 0 and verdicts[place] == "merge" and bool(alive[other])
        if merging and other < cluster:
            became[cluster] = became[other]
            continue
        became[cluster] = len(columns)
        columns.append(said.k + place if merging else cluster)
    models = concat([at.models, trials.mergers]) if trials.pairs else at.models
    tried = [
        (place, Pair(int(became[pair.a]), int(became[pair.b]), pair.tried + 1))
        for place, pair in enumerate(trials.pairs)
        if verdicts[place] == "again" and alive[pair.a] and alive[pair.b]
    ]
    apart = _apart_now(trials, verdicts, became, columns, said.k)
    mergers = take(trials.mergers, torch.tensor([place for place, _ in tried], dtype=torch.int64)) if tried else {}
    trials = replace(trials, pairs=tuple(pair for _, pair in tried), mergers=mergers, apart=apart)
    at = replace(
        at,
        models=take(models, torch.tensor(columns)),
        labels=torch.where(at.labels < 0, -1, became[at.labels]),
        notes={**at.notes, "clusters": len(columns)},
    )
    merged = sum(verdict == "merge" for verdict in verdicts)
    return Decided(at, trials, _renumbered(said, became, columns), merged)


def _verdict(said: Said, merger: int, pair: Pair, *, last: bool) -> tuple[str, Difference, Difference]:
    """Whether to merge a pair, keep it apart or try again; the difference that says so, and that of both together."""
    a, b = said.members(pair.a), said.members(pair.b)
    sides = [said.compare(side, merger, said.label) for side in (a, b)]
    both = said.compare(a | b, merger, said.label)
    worse = [d.p < (SURE if d.clients >= said.small else CERTAIN) and d.size > MATTERS for d in sides]
    apart = (both.p < SURE and both.size > MATTERS) or (any(worse) and not any(d.mean < 0 for d in sides))
    if apart and pair.tried and said.skewed:
        apart = both.size > LASTS or any(w and d.size > LARGE for w, d in zip(worse, sides, strict=True))
    found = min((both, *sides), key=lambda d: d.p)
    if not apart:
        return "merge", found, both
    evident = [d.p < CERTAIN and d.size > (LARGE if said.skewed else 2 * MATTERS) for d in (both, *sides)]
    plain = evident[0] or (not said.skewed and any(evident))
    return "apart" if plain or pair.tried + 1 >= TRIES or last else "again", found, both


def _partner(pairs: tuple[Pair, ...], cluster: int) -> tuple[int, int]:
    for place, pair in enumerate(pairs):
        if cluster in (pair.a, pair.b):
            return place, pair.b if cluster == pair.a else pair.a
    return -1, -1


def _alive(said: Said, merging: list[Pair]) -> Tensor:
    """Which clusters stay: those with clients enough, and small ones whose model is needed beyond doubt.

    A client with a single example holds none out: of a cluster of such clients alone nothing is known.
    """
    sizes, known = said.label.bincount(minlength=said.k), said.label[said.number > 0].bincount(minlength=said.k)
    for pair in merging:
        sizes[[pair.a, pair.b]] = sizes[pair.a] + sizes[pair.b]
        known[[pair.a, pair.b]] = known[pair.a] + known[pair.b]
    alive = (sizes >= said.small) & (known > 0)
    for cluster in ((sizes > 0) & ~alive).nonzero().flatten().tolist():
        _, other = said.next_best(cluster)
        alive[cluster] = other.p < CERTAIN and other.size > MATTERS
    return alive if alive.any() else sizes == sizes.max()


def _apart_now(trials: Trials, verdicts: list[str], became: Tensor, columns: list[int], k: int) -> Tensor:
    """Which pairs have been found to be apart, for those clusters that stay as they were."""
    known = trials.apart.clone() if trials.apart.shape == (k, k) else torch.zeros(k, k, dtype=torch.bool)
    for verdict, pair in zip(verdicts, trials.pairs, strict=True):
        if verdict == "apart":
            known[pair.a, pair.b] = known[pair.b, pair.a] = True
    new = torch.zeros(len(columns), len(columns), dtype=torch.bool)
    same = [cluster for cluster in range(k) if became[cluster] >= 0 and columns[int(became[cluster])] == cluster]
    for a in same:
        new[became[a], became[same]] = known[a, same]
    return new


def _renumbered(said: Said, became: Tensor, columns: list[int]) -> Said:
    keep = torch.tensor([*columns, said.held.mean.shape[1] - 1])
    held, plain = (Compared(c.mean[:, keep], c.spread[:, keep][:, :, keep]) for c in (said.held, said.plain))
    label = became[said.label]
    nearest = held.mean[:, : len(columns)].argmin(1)  # clients whose cluster is gone
    return Said(torch.where(label < 0, nearest, label), held, plain, said.number, len(columns))


def proposals(trials: Trials, said: Said) -> list[Pair]:
    """Disjoint pairs of clusters whose clients would lose least by sharing a model."""
    busy = {cluster for pair in trials.pairs for cluster in (pair.a, pair.b)}
    wanted = []
    for a in (cluster for cluster in range(said.k) if cluster not in busy):
        nearest, _ = said.next_best(a)
        for b in (c for c in range(said.k) if c != a and c not in busy and not trials.apart[a, c]):
            d = said.compare(said.members(a), b, a)
            if b == nearest or d.p >= SURE:
                wanted.append((d.mean, min(a, b), max(a, b)))
    chosen: list[Pair] = []
    for _, a, b in sorted(wanted):
        if a not in busy and b not in busy:
            chosen.append(Pair(a, b, 0))
            busy |= {a, b}
    return chosen
