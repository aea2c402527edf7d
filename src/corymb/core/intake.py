"""Checks every reply before it counts: rows at a host and parts at the door, by the same rules.

An `Intake` takes replies as they arrive and groups them by signature; the signature of most clients wins, so a bad
first reply cannot disqualify the others. Sums are added up immediately: memory holds one partial sum per signature,
and a few more where updates differ in length (`guard`). Which clients are accepted or rejected, and which signature
wins, do not depend on the order of arrival. Offending replies are dropped and their clients named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Share, Shares, Slot
from corymb.core.engine import Call, Part, Rejection, Verb
from corymb.core.guard import MAX_SIZE_ALLOWANCE, Bounds, clearly_near, largest_possible, levels, misfit, too_far
from corymb.core.lengths import (
    Deviations,
    Lengths,
    Near,
    lengths_of,
    measured,
    model_lengths,
    part_lengths,
    row_lengths,
)
from corymb.core.rules import (
    Flags,
    SumFlags,
    flag_rows,
    flag_sums,
    max_summable,
    part_bytes,
    part_problem,
    part_signature,
    row_faults,
    rows_problem,
    slot_form,
    sums_fault,
)
from corymb.core.sums import RowBuffer, RunningSum, Sums, add_up, all_of, sums_of
from corymb.trees import Signature, Tree, align_leading, leaves, map_tensors, on_cpu, signature, tree_map

MAX_REASON_LENGTH = 200
"""Characters kept of a rejection reason; hosts may send longer ones."""
SIGNATURE_OF_ALL = signature(None)
"""Placeholder signature of a part that holds all replies: there are no others to agree with."""
Writes = tuple[Tensor, dict[str, Slot]]
"""Client ids, and the memory slots they write."""


class _Added(NamedTuple):
    """A batch of clients whose replies were added to a pile together."""

    ids: Tensor
    lengths: Lengths | None
    """Update lengths still to be judged against everybody's; None if already judged or not compared."""
    writes: dict[str, Slot]
    host: str
    bytes_up: int


class _Checks(NamedTuple):
    """The checks of stacked replies, copied to the CPU together to synchronise only once."""

    of_rows: Flags
    deviations: Deviations | None
    of_sums: SumFlags | None = None


class _Pile:
    """Accepted replies of one signature.

    Sums are also kept separately by level of update length (`guard`), so that updates that turn out to be too long can
    be left out by adding up the other levels again. If none is too long, the sum in order of arrival is used.
    """

    def __init__(self) -> None:
        self.replies: RowBuffer | RunningSum | None = None
        self.added: list[_Added] = []
        self.by_level: dict[tuple[int, bool], RunningSum] = {}
        self.spread = False
        self.sound = False

    def add(self, value: Tree, added: _Added) -> None:
        self.added.append(added)
        self.sound = False  # checks of one sum do not carry over to a sum of several
        if self.replies is None:
            self.replies = RunningSum(value) if isinstance(value, Sums) else RowBuffer(value)
        else:
            self.replies.add(value)

    def add_to_level(self, level: int, several: bool, sums: Sums[Tree]) -> None:
        """Add to the sums of one level of length; `several`: whether its clients contribute to several sums each."""
        bare = sums._replace(label=None, note=())
        if (level, several) in self.by_level:
            self.by_level[level, several].add(bare)
        else:
            self.by_level[level, several] = RunningSum(bare)

    def merge(self, other: _Pile, device: torch.device) -> None:
        """Append another pile of the same signature."""
        assert other.replies is not None
        for added in other.added[:1]:  # add the value once, together with the first batch
            self.add(_moved(other.replies.result(), device), added)
        self.added += other.added[1:]
        for (level, several), sums in other.by_level.items():
            self.add_to_level(level, several, _moved(sums.result(), device))
        self.spread = other.spread

    @property
    def clients(self) -> Tensor:
        return self.added[0].ids if len(self.added) == 1 else torch.cat([added.ids for added in self.added])

    @property
    def compared(self) -> bool:
        """Whether any lengths are still to be judged."""
        return any(added.lengths is not None for added in self.added)

    @property
    def lengths(self) -> Lengths:
        known = (added.lengths or Lengths.none(len(added.ids)) for added in self.added)
        return Lengths(*(torch.cat(every) for every in zip(*known, strict=True)))

    @property
    def votes(self) -> tuple[int, int]:
        """The number of clients; ties go to the pile with the lowest client id."""
        return len(self.clients), -int(self.clients.min())

    def leave_out(self, far: Tensor) -> None:
        """Remove the masked clients' replies and memory writes."""
        assert self.replies is not None
        stay, value, lengths = (~far).nonzero().flatten(), self.replies.result(), self.lengths
        self.sound = False
        if isinstance(value, Sums):
            total, weight = self._sums_without(far, lengths)
            self.replies = RunningSum(Sums(total, weight, *_rows_at((value.label, value.note), stay)))
        else:
            self.replies = RowBuffer(_rows_at(value, stay))
        kept, start = [], 0
        for added in self.added:
            here = (~far[start : start + len(added.ids)]).nonzero().flatten()
            start += len(added.ids)
            if len(here):
                bytes_up = added.bytes_up * len(here) // len(added.ids)
                ids, _, writes = _select(added.ids, (), added.writes, here)
                kept.append(added._replace(ids=ids, writes=writes, bytes_up=bytes_up))
        self.added = kept

    def _sums_without(self, far: Tensor, lengths: Lengths) -> tuple[Tree, Tensor]:
        level, kept = levels(lengths.length), []
        for (one, several), sums in sorted(self.by_level.items()):
            removed = lengths.group[far & (level == one) & ((lengths.group < 0) == several)].unique()
            whole = sums.result()
            if several and len(removed):
                continue
            rest = torch.ones(len(whole.weight), dtype=torch.bool).index_fill(0, removed, False)
            kept.append(map_tensors(partial(_masked, rest=rest), (whole.total, whole.weight)))
        found: tuple[Tree, Tensor] = kept[0]
        for more in kept[1:]:
            found = tree_map(torch.add, found, more)
        return found


Form = tuple[Signature, Signature | None]
"""What must agree between replies: their own signature, and that of their memory writes."""


class IntakeResult(NamedTuple):
    """The outcome of a call."""

    part: Part
    """The replies of the winning signature, and the rejected clients."""
    writes: list[Writes]
    """Memory writes of accepted clients; always empty at the door."""
    hosts: list[str]
    """The hosts whose parts were accepted."""
    bytes_up: int


class Intake:
    """Replies to one call, checked as they arrive."""

    def __init__(
        self,
        verb: Verb,
        ids: Tensor,
        sizes: Tensor,
        hosts: Sequence[str] | None = None,
        near: Near | None = None,
        *,
        guard: bool = True,
        like: Signature | None = None,
    ) -> None:
        self.verb = verb
        self._like = like
        self._ids, self._sizes, self._hosts, self._near = ids, sizes, hosts, near  # of all clients asked; ids ascend
        self._compares = guard and (verb == "sum" or near is not None)
        self._models: Tensor | None = None  # lengths of the models in `near`, once known
        self._answered = torch.zeros(len(ids), dtype=torch.bool)
        self._piles: dict[Form, _Pile] = {}
        self._reasons: dict[int, str] = {}
        self.errors: set[str] = set()
        """Errors that hosts report for all of their clients."""
        self.cause: Exception | None = None
        """An exception from a host in this process at which every client asked raised."""

    @staticmethod
    def at_host(call: Call, ids: Tensor, sizes: Tensor) -> Intake:
        """An intake for a host's own clients; `sizes` has an entry for each client of the host."""
        return Intake(call.verb, ids, sizes[ids], near=call.near, guard=call.guard, like=call.like)

    def reject(self, client: int, reason: str) -> None:
        """Record why a client has no reply that counts. The first reason given stays."""
        self._reasons.setdefault(client, reason[:MAX_REASON_LENGTH])

    def add_rows(self, ids: Tensor, rows: Tree, writes: dict[str, Slot]) -> None:
        """Take in stacked replies and memory writes of clients of this host."""
        if problem := rows_problem(rows, self.verb) or self._misfit(rows):
            return self._reject_all(ids, problem)
        form = signature(rows, rows=True), signature({name: slot_form(slot) for name, slot in writes.items()})
        everybody, places = len(ids) == len(self._ids), self._places(ids)
        sums, checks = None, self._queue_checks(places, rows)
        if everybody and isinstance(rows, (Share, Shares)) and self.verb == "sum":
            sums = add_up(rows)  # queued before the checks are read back: nearly always every row counts
            checks = checks._replace(of_sums=flag_sums(sums, self._sizes))
            if self._all_clearly_valid(places, rows, checks):
                return self._keep(form, places, rows, _Added(ids, None, writes, "", 0), sums, sound=True)
        checks = on_cpu(checks)  # synchronises with the GPU
        lengths = self._lengths(places, rows, checks)
        if found := self._row_faults(places, rows, lengths, checks):
            for row, reason in found.items():
                self.reject(int(ids[row]), reason)
            good = torch.tensor([row for row in range(len(ids)) if row not in found], dtype=torch.int64)
            if not len(good):
                return None
            ids, rows, writes = _select(ids, rows, writes, good)
            places = places[good]
            lengths = self._lengths(places, rows, on_cpu(self._queue_checks(places, rows)))
        if everybody and lengths is not None:  # all lengths are known: judge them now
            if (beyond := too_far(lengths, self._near, self._models)) is not None:
                far, limit = beyond
                self._refuse(ids[far], lengths.length[far], limit)
                stay = (~far).nonzero().flatten()
                ids, rows, writes = _select(ids, rows, writes, stay)
                places = places[stay]
            lengths = None
        if not len(ids):
            return None
        known = sums if len(ids) == len(self._ids) else None
        sound = checks.of_sums is not None and checks.of_sums.fault is None
        return self._keep(form, places, rows, _Added(ids, lengths, writes, "", 0), known, sound=sound)

    def _keep(
        self, form: Form, places: Tensor, rows: Tree, added: _Added, sums: Sums[Tree] | None, *, sound: bool
    ) -> None:
        """Keep rows that count; `sums` are their sums, if known already, and `sound` says if those were checked."""
        pile = self._piles.setdefault(form, _Pile())
        if self.verb != "sum":
            pile.add(rows, added)
        elif added.lengths is None:
            pile.add(add_up(rows) if sums is None else sums, added)
            pile.sound = sums is not None and sound
        else:
            by_level = list(_by_level(added.lengths))
            parts = sums_of(rows, [which for _, _, which in by_level])
            pile.add(all_of(parts, rows), added)  # there are far fewer parts than rows
            for (level, several, _), level_sums in zip(by_level, parts, strict=True):
                pile.add_to_level(level, several, level_sums)
        pile.spread = isinstance(rows, Shares)
        self._answered[places] = True

    def _queue_checks(self, places: Tensor, rows: Tree) -> _Checks:
        """Queue the checks of rows on the device that holds them."""
        # Safe without waiting: an asynchronous copy from pageable memory has read its source when the call returns.
        sizes = self._sizes[places].to(_device(rows, places), non_blocking=True)
        known = self._models is not None
        deviations = measured(rows, self._near_to(places), len(places), known=known) if self._compares else None
        return _Checks(flag_rows(rows, sizes), deviations)

    def _all_clearly_valid(self, places: Tensor, rows: Tree, checks: _Checks) -> bool:
        """Whether the cheap checks already show that every reply counts. False negatives are possible.

        Synchronises with a GPU for a single bit; the expensive checks run only if this returns False.
        """
        if not isinstance(rows, Share) or checks.deviations is None or checks.of_sums is None or self._near is None:
            return False
        if not isinstance(rows.value, dict) or rows.value.keys() != self._near.models.keys():
            return False  # entries the models lack are not measured
        near = clearly_near(checks.deviations, self._near, self._larger[places], max_summable(rows.value))
        if near is None:
            return False
        bad = torch.cat([flag.reshape(-1) for flag in (*checks.of_rows.bad, *checks.of_sums.bad)])
        return bool(near & ~bad.any())

    def _row_faults(self, places: Tensor, rows: Tree, lengths: Lengths | None, checks: _Checks) -> dict[int, str]:
        at_most = None
        if lengths is not None and checks.deviations is not None:
            near, weight = self._near_to(places), checks.deviations.weight
            at_most = largest_possible(rows, near, lengths, self._models, weight, self._most_extra)
        return row_faults(rows, checks.of_rows, at_most)

    def _lengths(self, places: Tensor, rows: Tree, checks: _Checks) -> Lengths | None:
        """How far each reply is from where its client started; None if replies are not compared."""
        if checks.deviations is None:
            return None
        if self._models is None and self._near is not None:
            self._models = model_lengths(self._near.models, checks.deviations.models)
        lengths = lengths_of(checks.deviations, rows, self._near_to(places))
        return lengths.allowing(self._larger[places], self._most_extra)

    @cached_property
    def _larger(self) -> Tensor:
        """Each asked client's number of examples, as a multiple of the median."""
        sizes = self._sizes.double()
        return sizes / sizes.median().clamp_min(1) if len(sizes) else sizes

    @cached_property
    def _most_extra(self) -> float:
        """The most extra length for a client with many examples: statistics, near no model, are as long as it has."""
        return (
            MAX_SIZE_ALLOWANCE if self._near is not None else float(self._larger.amax().clamp_min(MAX_SIZE_ALLOWANCE))
        )

    def _misfit(self, value: Tree, *, summed: bool = False) -> str | None:
        return None if self._near is None else misfit(value, self._near, summed=summed)

    def _near_to(self, places: Tensor) -> Near | None:
        return None if self._near is None else self._near.at(places)

    def add_part(self, part: Part) -> None:
        """Take in a host's part for some of its clients: all of it, or nothing."""
        if len(part.ids):
            if problem := self._unasked(part) or self._part_problem(part):
                self._record_rejections(part, [(client, problem) for client in part.ids.flatten().tolist()])
            else:
                self._take(part)
        self._record_rejections(part, part.rejected)
        if part.error:
            self.errors.add(part.error[:MAX_REASON_LENGTH])
        self.cause = self.cause or part.cause

    def _part_problem(self, part: Part) -> str | None:
        if self._is_checked(part):
            return None
        summed = self.verb == "sum"
        return part_problem(part, self.verb) or self._misfit(part.value, summed=summed) or self._fault(part)

    def _is_checked(self, part: Part) -> bool:
        """Whether the part covers all clients asked and a host in this process has checked it by these rules."""
        return part.sound and len(part.ids) == len(self._ids)

    def _take(self, part: Part) -> None:
        ids, places, lengths = part.ids, self._places(part.ids), None
        if self._compares and len(ids) < len(self._ids):  # a host that has all clients has compared them itself
            measure = part_lengths if self.verb == "sum" else row_lengths
            lengths = measure(part.value, self._near_to(places), len(ids))
            if lengths is not None:
                larger = self._larger[places]  # for a sum over several clients, use the largest
                larger = larger.amax().expand(len(ids)) if self.verb == "sum" else larger
                lengths = lengths.allowing(larger, self._most_extra)
        form = SIGNATURE_OF_ALL if self._is_checked(part) else part_signature(part, self.verb)
        pile = self._piles.setdefault((form, None), _Pile())
        pile.add(part.value, _Added(ids, lengths, {}, part.host, part_bytes(part, self.verb)))
        pile.spread = part.spread
        self._answered[places] = True
        if self.verb == "sum" and lengths is not None:
            for level, several, _ in _by_level(lengths):  # one level: all clients of a part share one length
                pile.add_to_level(level, several, part.value)

    def _fault(self, part: Part) -> str | None:
        sizes = self._sizes[self._places(part.ids)]
        if self.verb == "sum":
            return sums_fault(part.value, sizes)
        return next(iter(row_faults(part.value, flag_rows(part.value, sizes)).values()), None)

    def _unasked(self, part: Part) -> str | None:
        """Why a part may not answer for its clients, or None.

        A host may answer only for its own clients, only for those asked, and only once.
        """
        ids = part.ids
        if ids.dtype != torch.int64 or ids.dim() != 1:
            return "reply was not asked for, or came twice"
        everybody = torch.equal(ids, self._ids)
        places = slice(None) if everybody else self._places(ids).clamp_max(len(self._ids) - 1)
        if not everybody and (not len(self._ids) or not bool((self._ids[places] == ids).all())):
            return "reply was not asked for, or came twice"
        if not self._has_all(part.host, ids, everybody=everybody):
            return "reply came from a host that does not answer for the client"
        twice = not everybody and len(ids.unique()) < len(ids)
        if twice or bool(self._answered[places].any()):
            return "reply was not asked for, or came twice"
        return None

    def _has_all(self, host: str, ids: Tensor, *, everybody: bool) -> bool:
        """Whether all these clients are this host's."""
        if self._hosts is None or (everybody and self._hosts.count(host) == len(self._hosts)):
            return True
        return all(self._hosts[client] == host for client in ids.tolist())

    def _record_rejections(self, part: Part, rejected: Sequence[Rejection]) -> None:
        """Keep a host's rejections of its own clients that were asked; those of other clients are ignored."""
        for client, reason in rejected:
            place = int(self._places(torch.tensor(client)))
            asked = place < len(self._ids) and int(self._ids[place]) == client
            if asked and (self._hosts is None or self._hosts[client] == part.host):
                self.reject(client, str(reason))

    def _places(self, ids: Tensor) -> Tensor:
        return torch.searchsorted(self._ids, ids)

    def _reject_all(self, ids: Tensor, reason: str) -> None:
        for client in ids.flatten().tolist():
            self.reject(client, reason)
            self._answered[self._places(torch.tensor(client))] = False

    def merge(self, other: Intake, device: torch.device) -> None:
        """Merge another intake of the same call, for other clients of this host; its values are moved to `device`."""
        for form, pile in other._piles.items():
            self._piles.setdefault(form, _Pile()).merge(pile, device)
        self._answered |= other._answered
        for client, reason in other._reasons.items():
            self.reject(client, reason)

    def result(self) -> IntakeResult:
        """The replies of the requested signature, or of the most frequent one, as one part; others are rejected."""
        piles = self._piles
        able = [form for form in piles if self._like is None or form[0] == self._like]
        winner = able[0] if len(able) == 1 else max(able, key=lambda form: piles[form].votes, default=None)
        usual = self._like if winner is None else winner[0]
        for form, pile in piles.items():
            if form != winner:
                self._reject_all(pile.clients, f"reply is {form[0]}, most clients sent {usual}")
        if winner is None:
            return IntakeResult(
                Part(torch.empty(0, dtype=torch.int64), None, self._rejected(), cause=self.cause), [], [], 0
            )
        best = piles[winner]
        self._leave_out_far(best)
        assert best.replies is not None
        part = Part(best.clients, best.replies.result(), self._rejected(), spread=best.spread, sound=best.sound)
        writes = [(added.ids, added.writes) for added in best.added]
        hosts, bytes_up = [added.host for added in best.added], sum(added.bytes_up for added in best.added)
        return IntakeResult(part, writes, hosts, bytes_up)

    def release(self) -> None:
        """Release all replies; the result keeps its own references."""
        self._piles.clear()

    def _leave_out_far(self, pile: _Pile) -> None:
        """Refuse updates that are too long, now that all lengths are known."""
        if not self._compares or not pile.compared or not bool((pile.lengths.length > 0).any()):
            return
        clients, lengths = pile.clients, pile.lengths
        if (beyond := too_far(lengths, self._near, self._models)) is not None:
            far, limit = beyond
            self._refuse(clients[far], lengths.length[far], limit)
            pile.leave_out(far)

    def _refuse(self, ids: Tensor, length: Tensor, limit: Bounds) -> None:
        for client, far in zip(ids.tolist(), length.tolist(), strict=True):
            self._reject_all(torch.tensor([client]), limit.reason(far))

    def _rejected(self) -> list[Rejection]:
        """The asked clients without an accepted reply whose reason is known, in order of id."""
        silent = self._ids[~self._answered].tolist()
        return [(client, self._reasons[client]) for client in silent if client in self._reasons]


def _moved(tree: Tree, device: torch.device) -> Tree:
    return map_tensors(lambda leaf: leaf.to(device), tree)


def _device(rows: Tree, ids: Tensor) -> torch.device:
    return next((leaf.device for leaf in leaves(rows)), ids.device)


def _slot_at(slot: Slot, which: Tensor) -> Slot:
    return Slot(_rows_at(slot.value, which), _rows_at(slot.present, which), slot.along)


def _rows_at(rows: Tree, which: Tensor) -> Tree:
    return map_tensors(lambda leaf: leaf[which.to(leaf.device)], rows)


def _select(ids: Tensor, rows: Tree, writes: dict[str, Slot], which: Tensor) -> tuple[Tensor, Tree, dict[str, Slot]]:
    return ids[which], _rows_at(rows, which), {name: _slot_at(slot, which) for name, slot in writes.items()}


def _by_level(lengths: Lengths) -> Iterator[tuple[int, bool, Tensor]]:
    """Yield (level, several, rows) for rows of about equal length.

    Rows that contribute to several sums (`several`) are separate: they cannot be removed from just one of them.
    """
    level, several = levels(lengths.length), lengths.group < 0
    for one in level.unique().tolist():
        for whether in several[level == one].unique().tolist():
            yield one, whether, ((level == one) & (several == whether)).nonzero().flatten()


def _masked(sums: Tensor, rest: Tensor) -> Tensor:
    return torch.where(align_leading(rest.to(sums.device), sums), sums, 0)
