"""Every reply is checked before it counts: rows at a host, and parts at the door, by the same rules.

An `Intake` takes replies as they come and keeps them by signature, so that the signature of most clients wins and no
first reply can outlaw the others. Sums are added up at once: memory holds one partial sum a signature. Who is accepted,
who is rejected and which signature wins do not depend on the order of arrival. Offenders are dropped and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Shares, Slot
from corymb.core.engine import Part, Rejection, Verb
from corymb.core.rules import part_bytes, part_problem, part_signature, row_faults, rows_problem, slot_form, sums_fault
from corymb.core.sums import RowBuffer, RunningSum, Sums, add_up
from corymb.trees import Signature, Tree, leaves, map_tensors, signature

REASON = 200
"""Characters of a reason that a host gives."""
Writes = tuple[Tensor, dict[str, Slot]]
"""Whose memory, and what they want to keep there."""


class _Pile:
    """Accepted replies of one signature."""

    def __init__(self) -> None:
        self.ids: RowBuffer | None = None
        self.replies: RowBuffer | RunningSum | None = None
        self.writes: list[Writes] = []
        self.hosts: list[str] = []
        self.spread = False
        self.bytes_up = 0

    def add(self, ids: Tensor, value: Tree) -> None:
        if self.ids is None or self.replies is None:
            self.ids = RowBuffer(ids)
            self.replies = RunningSum(value) if isinstance(value, Sums) else RowBuffer(value)
        else:
            self.ids.add(ids)
            self.replies.add(value)

    @property
    def clients(self) -> Tensor:
        return torch.empty(0, dtype=torch.int64) if self.ids is None else self.ids.result()

    @property
    def votes(self) -> tuple[int, int]:
        """How many clients, and, for ties, how early the first of them stands among all."""
        return len(self.clients), -int(self.clients.min())


class Taken(NamedTuple):
    """What came of a call."""

    part: Part
    """The replies of the signature that won, and who was rejected."""
    writes: list[Writes]
    """What accepted clients want to keep in memory; at the door there is nothing."""
    hosts: list[str]
    """Whose parts were accepted."""
    bytes_up: int


class Intake:
    """Replies to one call, checked as they come in."""

    def __init__(self, verb: Verb, ids: Tensor, sizes: Tensor, hosts: Sequence[str] | None = None) -> None:
        self.verb = verb
        self._ids, self._sizes, self._hosts = ids, sizes, hosts  # of all who are asked; ids rise
        self._answered = torch.zeros(len(ids), dtype=torch.bool)
        self._piles: dict[tuple[Signature, Signature | None], _Pile] = {}
        self._reasons: dict[int, str] = {}
        self.errors: set[str] = set()
        """What whole hosts said went wrong at every one of their clients."""

    def reject(self, client: int, reason: str) -> None:
        """Name a client whose reply never came to be, or does not count. The first reason given stays."""
        self._reasons.setdefault(client, reason[:REASON])

    def add_rows(self, ids: Tensor, rows: Tree, writes: dict[str, Slot]) -> None:
        """Take in stacked replies and memory writes of some clients of this host."""
        if problem := rows_problem(rows, self.verb):
            return self._reject_all(ids, problem)
        sign = signature(rows, rows=True), signature({name: slot_form(slot) for name, slot in writes.items()})
        if found := row_faults(rows, self._sizes[self._places(ids)].to(_device(rows, ids))):
            for row, reason in found.items():
                self.reject(int(ids[row]), reason)
            good = torch.tensor([row for row in range(len(ids)) if row not in found], dtype=torch.int64)
            ids, rows = ids[good], _rows_at(rows, good)
            writes = {name: _slot_at(slot, good) for name, slot in writes.items()}
        if len(ids):
            pile = self._piles.setdefault(sign, _Pile())
            pile.add(ids, add_up(rows) if self.verb == "sum" else rows)
            pile.writes.append((ids, writes))
            pile.spread = isinstance(rows, Shares)
            self._answered[self._places(ids)] = True
        return None

    def add_part(self, part: Part) -> None:
        """Take in what a host hands over for some of its clients: all of it, or nothing."""
        if len(part.ids):
            if problem := self._unasked(part) or part_problem(part, self.verb) or self._fault(part):
                self._turn_down(part, [(client, problem) for client in part.ids.flatten().tolist()])
            else:
                pile = self._piles.setdefault((part_signature(part, self.verb), None), _Pile())
                pile.add(part.ids, part.value)
                pile.hosts.append(part.host)
                pile.spread = part.spread
                pile.bytes_up += part_bytes(part, self.verb)
                self._answered[self._places(part.ids)] = True
        self._turn_down(part, part.rejected)
        if part.error:
            self.errors.add(part.error[:REASON])

    def _fault(self, part: Part) -> str | None:
        sizes = self._sizes[self._places(part.ids)]
        if self.verb == "sum":
            return sums_fault(part.value, sizes)
        return next(iter(row_faults(part.value, sizes).values()), None)

    def _unasked(self, part: Part) -> str | None:
        """A part may speak for its host's own clients that were asked, and once."""
        ids = part.ids
        if ids.dtype != torch.int64 or ids.dim() != 1:
            return "reply was not asked for, or came twice"
        places = self._places(ids).clamp_max(len(self._ids) - 1)
        if not len(self._ids) or not bool((self._ids[places] == ids).all()):
            return "reply was not asked for, or came twice"
        if self._hosts is not None and any(self._hosts[client] != part.host for client in ids.tolist()):
            return "reply came from a host that does not answer for the client"
        if len(ids.unique()) < len(ids) or bool(self._answered[places].any()):
            return "reply was not asked for, or came twice"
        return None

    def _turn_down(self, part: Part, rejected: Sequence[Rejection]) -> None:
        """Keep the reasons why a host's own clients that were asked do not count; what it says of others is nothing."""
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

    def result(self) -> Taken:
        """The replies of the signature that most clients sent, as one part; the others are rejected."""
        piles = self._piles
        if not piles:
            return Taken(Part(torch.empty(0, dtype=torch.int64), None, self._rejected()), [], [], 0)
        winner = max(piles, key=lambda sign: piles[sign].votes)
        for sign, pile in piles.items():
            if sign != winner:
                self._answered[self._places(pile.clients)] = False
                self._reject_all(pile.clients, f"reply is {sign[0]}, most clients sent {winner[0]}")
        best = piles[winner]
        assert best.replies is not None
        part = Part(best.clients, best.replies.result(), self._rejected(), spread=best.spread)
        return Taken(part, best.writes, best.hosts, best.bytes_up)

    def _rejected(self) -> list[Rejection]:
        """Those who were asked and did not answer well, in the order of all clients."""
        silent = self._ids[~self._answered].tolist()
        return [(client, self._reasons[client]) for client in silent if client in self._reasons]


def _device(rows: Tree, ids: Tensor) -> torch.device:
    return next((leaf.device for leaf in leaves(rows)), ids.device)


def _slot_at(slot: Slot, which: Tensor) -> Slot:
    return Slot(_rows_at(slot.value, which), _rows_at(slot.present, which), slot.along)


def _rows_at(rows: Tree, which: Tensor) -> Tree:
    return map_tensors(lambda leaf: leaf[which.to(leaf.device)], rows)
