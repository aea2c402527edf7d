"""Every reply is checked before it counts: rows at a host, and parts at the door, by the same rules.

An `Intake` takes replies as they come and keeps them by signature, so that the signature of most clients wins and no
first reply can outlaw the others. Sums are added up at once: memory holds one partial sum a signature. Who is accepted,
who is rejected and which signature wins do not depend on the order of arrival. Offenders are dropped and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from corymb.core.client import Share, Shares, Slot
from corymb.core.engine import Part, Rejection, Verb
from corymb.core.sums import RowBuffer, RunningSum, Sums, add_up
from corymb.trees import Signature, Tree, flatten, leaves, map_tensors, nbytes, signature, unflatten

LARGEST = 1e15
"""What is added up may be so large for every unit of weight: no model is, and sums of more would drown the others."""
ROUNDING = 1 + 1e-6
REASON = 200
"""Characters of a reason that a host gives."""
Writes = tuple[Tensor, dict[str, Slot]]
"""Whose memory, and what they want to keep there."""


# ---- the rules


def row_faults(rows: Tree, sizes: Tensor) -> dict[int, str]:
    """Which rows of stacked replies cannot count, and why; `sizes` are the clients' numbers of examples."""
    found: dict[int, str] = {}
    for bad, reason in _share_faults(rows, sizes) if isinstance(rows, (Share, Shares)) else _not_finite(rows):
        for row in bad.nonzero().flatten().tolist():
            found.setdefault(row, reason)
    return found


def _share_faults(rows: Share[Tree] | Shares[Tree], sizes: Tensor) -> Iterator[tuple[Tensor, str]]:
    most = sizes.clamp_min(1).to(rows.weight)[:, None] * ROUNDING
    yield from _not_finite(rows[1:])
    yield from _not_finite(rows.value)
    for leaf in leaves(rows.value):
        if leaf.is_floating_point() and leaf.numel():
            yield ~(_largest(leaf) <= _bound(leaf)) & (rows.weight.amax(1) > 0), "value is too large to be added up"
    yield (rows.weight < 0).any(1), "weight is negative"
    yield (rows.weight > most).any(1), "weight is more than the client's size allows"
    if rows.label is not None:
        yield _outside(rows.label, rows.weight.shape[1]), _out_of_range(rows.weight.shape[1])


def sums_fault(sums: Sums[Tree], sizes: Tensor) -> str | None:
    """Why a partial sum over clients of these sizes cannot count: whatever would be refused from a row, and None."""
    if problem := next((reason for bad, reason in _not_finite((sums.label, sums.note)) if bad.any()), None):
        return problem
    k, weight = len(sums.weight), sums.weight.double()
    if not bool(torch.isfinite(weight).all()):
        return "value is not finite"
    if bool((weight < 0).any()):
        return "weight is negative"
    if bool((weight > float(sizes.clamp_min(1).sum()) * ROUNDING).any()):
        return "weight is more than its clients' sizes allow"
    for leaf in leaves(sums.total):
        if leaf.is_floating_point() and leaf.numel():
            largest = _largest(leaf).double()
            if not bool(torch.isfinite(largest).all()):
                return "value is not finite"
            if bool((largest > weight.to(largest.device) * LARGEST * ROUNDING).any()):
                return "total is larger than its weight allows"
    if sums.label is not None and bool(_outside(sums.label, k).any()):
        return _out_of_range(k)
    return None


def _not_finite(rows: Tree) -> Iterator[tuple[Tensor, str]]:
    for leaf in leaves(rows):
        if leaf.is_floating_point() and leaf.numel():
            yield ~torch.isfinite(_largest(leaf)), "value is not finite"


def _largest(rows: Tensor) -> Tensor:
    """The largest magnitude in every row; NaN goes through. `isfinite` of all entries takes far longer."""
    flat = rows.reshape(len(rows), -1)
    return torch.maximum(flat.amax(1), -flat.amin(1))


def _bound(leaf: Tensor) -> float:
    return min(LARGEST, torch.finfo(leaf.dtype).max)


def _out_of_range(k: int) -> str:
    return f"label is out of range for {k} cluster{'s' * (k != 1)}"


def _outside(label: Tensor, k: int) -> Tensor:
    flat = label.flatten(1) if label.dim() > 1 else label[:, None]
    return ((flat < 0) | (flat >= k)).any(1)


# ---- form: what a reply must look like before numbers in it can be looked at


def _rows_problem(rows: Tree, verb: Verb) -> str | None:
    if not isinstance(rows, (Share, Shares)):
        return f"reply is a {type(rows).__name__}, `sum` wants a Share or Shares" if verb == "sum" else None
    weight, label = cast(Tree, rows.weight), cast(Tree, rows.label)  # whatever the client sent
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return f"weight is {signature(weight, rows=True)}, wanted [k]"
    if not isinstance(label, Tensor | None):
        return f"label is a {type(label).__name__}, wanted a tensor"
    k = weight.shape[1]
    if isinstance(rows, Shares) and any(leaf.dim() < 2 or leaf.shape[1] != k for leaf in leaves(rows.value)):
        return "value does not have one row for each weight"
    return None


def _part_problem(part: Part, verb: Verb) -> str | None:
    """What is wrong with the form of a part, whatever the others are like."""
    n = len(part.ids)
    if verb == "sum":
        sums = part.value
        if not isinstance(sums, Sums) or not isinstance(cast(Tree, sums.weight), Tensor):
            return f"part is a {type(sums).__name__}, wanted Sums"
        if not isinstance(cast(Tree, sums.label), Tensor | None):
            return f"label is a {type(sums.label).__name__}, wanted a tensor"
        if sums.weight.dim() != 1 or any(leaf.shape[:1] != sums.weight.shape for leaf in leaves(sums.total)):
            return "part has another number of sums than of weights"
    if any(rows.shape[:1] != (n,) for rows in _rows_of(part, verb)):
        return "part has another number of rows than of clients"
    return None


def _rows_of(part: Part, verb: Verb) -> list[Tensor]:
    return leaves((part.value.label, part.value.note) if verb == "sum" else part.value)


def _part_signature(part: Part, verb: Verb) -> Signature:
    if verb == "map":
        return signature(part.value, rows=True)
    flat, structure = flatten(part.value)
    rows = {id(leaf) for leaf in _rows_of(part, verb)}
    return signature(unflatten(structure, [leaf[:0] if id(leaf) in rows else leaf for leaf in flat]))


def _slot_form(slot: Slot) -> Tree:
    """What must agree between the clients that write a slot; along examples, their number may differ."""
    skip = 1 if slot.along is None else 2
    return {f"along {slot.along}": map_tensors(lambda leaf: leaf.new_empty(leaf.shape[skip:]), slot.value)}


def part_bytes(part: Part, verb: Verb) -> int:
    """What the clients of a part sent: the sizes of their own messages, whoever added them up on the way."""
    if verb == "map":
        return nbytes(part.value)
    sums, n = part.value, len(part.ids)
    k = len(sums.weight)
    value = nbytes(sums.total) if part.spread else nbytes(sums.total) // max(k, 1)
    return n * (value + nbytes(sums.weight)) + nbytes((sums.label, sums.note))


# ---- keeping


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
        if problem := _rows_problem(rows, self.verb):
            return self._reject_all(ids, problem)
        sign = signature(rows, rows=True), signature({name: _slot_form(slot) for name, slot in writes.items()})
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
            if problem := self._unasked(part) or _part_problem(part, self.verb) or self._fault(part):
                self._turn_down(part, [(client, problem) for client in part.ids.flatten().tolist()])
            else:
                pile = self._piles.setdefault((_part_signature(part, self.verb), None), _Pile())
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
