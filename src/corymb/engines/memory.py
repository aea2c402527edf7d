"""Client memory at the clients' side of an engine: tables of slots, versioned by clock and call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from corymb.core.client import Slot, Split
from corymb.core.engine import START, Pages, Version
from corymb.trees import Signature, align_leading, leaves, map_tensors, signature, take, tree_map


class _Undo(NamedTuple):
    """The information needed to undo a write of some clients into a slot."""

    version: Version
    slot: str
    ids: Tensor
    had: Tensor
    """The clients among `ids` that had a value before."""
    values: Any
    """Their previous values."""


class _Table:
    """The rows of one slot; a client's row is allocated when it first writes."""

    def __init__(self, n: int, rows: Any, along: Split | None, made: Version) -> None:
        self.along, self.made = along, made
        self.row_of = torch.full((n,), -1)
        self.values = map_tensors(lambda leaf: leaf[:0].clone(), rows)
        self.present = torch.zeros(n, dtype=torch.bool)
        self.used = 0

    @property
    def signature(self) -> Signature:
        """The signature of a row."""
        return signature(self.values, rows=True)

    def read(self, ids: Tensor, m: int | None) -> Slot:
        """Some clients' values, cut to m examples; 0 for clients without a value."""
        present, rows = self.present[ids], self.row_of[ids].clamp_min(0)

        def at(leaf: Tensor) -> Tensor:
            values = leaf[rows.to(leaf.device)]
            values = values if m is None else values[:, :m]
            if bool(present.all()):
                return values
            mask = align_leading(present.to(leaf.device), values)
            return torch.where(mask, values, values.new_zeros(()))  # a Python 0 would turn booleans into integers

        values = map_tensors(at, self.values)
        return Slot(values, present.to(leaves(values)[0].device), self.along)

    def rows(self, ids: Tensor) -> Tensor:
        """The row of each client, allocating rows for new clients."""
        new = ids[self.row_of[ids] < 0]
        if len(new):
            self.row_of[new] = torch.arange(self.used, self.used + len(new))
            self.used += len(new)
            self._grow()
        return self.row_of[ids]

    def widen(self, longest: int) -> None:
        """Make room for `longest` examples per client."""

        def wide(leaf: Tensor) -> Tensor:
            more = longest - leaf.shape[1]
            return leaf if more <= 0 else torch.cat([leaf, leaf.new_zeros(len(leaf), more, *leaf.shape[2:])], dim=1)

        self.values = map_tensors(wide, self.values)

    def page(self, ids: Tensor) -> dict[str, Any]:
        """Some clients' rows as plain values, for a journal."""
        made = tuple(self.made)
        return {
            "ids": ids,
            "values": self.values_of(ids),
            "present": self.present[ids],
            "along": self.along,
            "made": made,
        }

    def values_of(self, ids: Tensor) -> Any:
        """A copy of some clients' rows, which must have been allocated."""
        rows = self.row_of[ids]
        return map_tensors(lambda leaf: leaf[rows.to(leaf.device)], self.values)

    def clear(self, ids: Tensor) -> None:
        """Remove the values of these clients."""
        rows = self.row_of[ids]
        map_tensors(lambda leaf: leaf.index_fill_(0, rows.to(leaf.device), 0), self.values)
        self.present[ids] = False

    def _grow(self) -> None:
        have = leaves(self.values)[0].shape[0]
        if self.used > have:
            wanted = max(self.used, min(2 * have, len(self.row_of)))
            self.values = map_tensors(lambda leaf: _longer(leaf, wanted), self.values)


def _longer(leaf: Tensor, length: int) -> Tensor:
    longer = leaf.new_zeros(length, *leaf.shape[1:])
    longer[: len(leaf)] = leaf
    return longer


class Sizes(Protocol):
    """The number of examples of each client: a tensor, or whatever tells it."""

    def __len__(self) -> int: ...
    def __getitem__(self, ids: Tensor, /) -> Tensor: ...
    def max(self) -> Tensor: ...


class MemoryStore:
    """Every slot of every client, with an undo log to return to earlier versions."""

    def __init__(self, sizes: Mapping[Split, Sizes]) -> None:
        self._sizes = dict(sizes)
        self._longest = {split: int(m.max()) if len(m) else 0 for split, m in sizes.items()}  # never shrinks
        self._tables: dict[str, _Table] = {}
        self._undo: list[_Undo] = []
        self._kept_from = START  # the earliest version that can be restored, besides START itself
        self._written: dict[str, Tensor] = {}  # clients whose rows changed since the last export (a superset)
        self._rows_exported = 0  # since the last export of everything

    @property
    def empty(self) -> bool:
        """Whether no client has written anything."""
        return not self._tables

    def read(self, ids: Tensor, padded: Mapping[Split, int]) -> dict[str, Slot]:
        """The slots of some clients, stacked; slots along examples have `padded` rows.

        A slot that any client has is included for all, present or not: otherwise the dtype of a default would depend on
        which other clients are asked.
        """
        stored = {}
        for name, table in self._tables.items():
            stored[name] = table.read(ids, None if table.along is None else padded[table.along])
        return stored

    def write(self, version: Version, ids: Tensor, writes: Mapping[str, Slot]) -> None:
        """Write stacked slots of some clients, recording the previous values in the undo log."""
        for name, slot in writes.items():
            values = self._aligned(slot, ids)
            table = self._table(name, values, slot.along, version)
            had = ids[table.present[ids]]
            self._undo.append(_Undo(version, name, ids, had, table.values_of(had)))
            table.rows(ids)
            self._put(table, ids, values, slot.present.cpu().expand(len(ids)))
            self._mark_written(name, table, ids)

    def _table(self, name: str, values: Any, along: Split | None, made: Version) -> _Table:
        like = signature(values, rows=True)
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = _Table(len(self._sizes["train"]), values, along, made)
        if (table.signature, table.along) != (like, along):
            had, got = (f"{form} along {follows}" for form, follows in ((table.signature, table.along), (like, along)))
            raise ValueError(f"memory slot {name!r} holds {had}, got {got}: use another slot")
        return table

    def _aligned(self, slot: Slot, ids: Tensor) -> Any:
        if slot.along is None:
            return slot.value
        sizes, longest = self._sizes[slot.along], self._longest[slot.along]

        def fit(leaf: Tensor) -> Tensor:
            out = leaf.new_zeros(len(ids), longest, *leaf.shape[2:])
            out[:, : leaf.shape[1]] = leaf
            real = torch.arange(longest) < sizes[ids][:, None]
            return torch.where(align_leading(real.to(leaf.device), leaf), out, 0)

        return map_tensors(fit, slot.value)

    def _put(self, table: _Table, ids: Tensor, values: Any, present: Tensor) -> None:
        rows = table.row_of[ids]
        tree_map(lambda table_leaf, leaf: table_leaf.index_copy_(0, rows.to(leaf.device), leaf), table.values, values)
        table.present[ids] = present

    def _mark_written(self, name: str, table: _Table, ids: Tensor) -> None:
        self._written.setdefault(name, torch.zeros(len(table.row_of), dtype=torch.bool))[ids] = True

    def forget_after(self, version: Version) -> None:
        """Undo what calls later than `version` wrote."""
        if version <= START:
            self._tables, self._undo, self._kept_from = {}, [], START
        if not self.reaches(version):
            raise ValueError(
                f"client memory cannot return to clock {version.clock}: kept from clock {self._kept_from.clock} on"
            )
        while self._undo and self._undo[-1].version > version:
            undo = self._undo.pop()
            table = self._tables[undo.slot]
            table.clear(undo.ids)
            self._put(table, undo.had, undo.values, torch.ones(len(undo.had), dtype=torch.bool))
        self._tables = {name: table for name, table in self._tables.items() if table.made <= version}

    def forget_before(self, clock: int) -> None:
        """Drop what is only needed to go back to before `clock`."""
        # The last call before `clock` stays reachable: an uninterrupted run always returns to its last call.
        dropped = [undo.version for undo in self._undo if undo.version.clock < clock]
        self._undo = [undo for undo in self._undo if undo.version.clock >= clock]
        self._kept_from = max(self._kept_from, *dropped) if dropped else self._kept_from

    def reaches(self, version: Version) -> bool:
        """Whether `forget_after(version)` is possible."""
        return version <= START or version >= self._kept_from

    def resize(self, sizes: Mapping[Split, Sizes], ids: Tensor) -> list[str]:
        """Adapt to new examples of some clients: clears their slots along examples, and returns the slots' names."""
        self._sizes = dict(sizes)
        self._longest = {split: max(longest, int(sizes[split].max())) for split, longest in self._longest.items()}
        self._undo, cleared = [], []
        for name, table in self._tables.items():
            if table.along is None:
                continue
            table.widen(self._longest[table.along])
            if bool(table.present[ids].any()):
                cleared.append(name)
                table.present[ids] = False
            self._mark_written(name, table, (table.row_of >= 0).nonzero().flatten())
        return cleared

    def export(self) -> tuple[Pages, bool]:
        """The changes since the last export, or everything (True) once the changes exported add up to as many rows."""
        changed = {name: ids.nonzero().flatten() for name, ids in self._written.items() if name in self._tables}
        self._written = {}
        every = {name: (table.row_of >= 0).nonzero().flatten() for name, table in self._tables.items()}
        self._rows_exported += sum(map(len, changed.values()))
        whole = bool(changed) and self._rows_exported >= sum(map(len, every.values()))
        if whole:
            self._rows_exported = 0
        wanted = every if whole else changed
        return {name: self._tables[name].page(ids) for name, ids in wanted.items()}, whole

    def restore(self, version: Version, pages: Sequence[Pages], device: torch.device) -> None:
        """Replace all memory by the exported pages up to `version`."""
        self._tables, self._undo, self._kept_from, self._written = {}, [], version, {}
        for name, page in ((name, page) for export in pages for name, page in export.items()):
            values = map_tensors(lambda leaf: leaf.to(device), page["values"])
            table = self._table(name, values, page["along"], _version(page["made"]))
            table.rows(page["ids"])
            self._put(table, page["ids"], values, page["present"])
        self._rows_exported = sum(table.used for table in self._tables.values())  # so that the next export is whole


def _version(made: int | tuple[int, int]) -> Version:
    """The version at which a slot was first written; old journals stored only the clock."""
    return Version(made, 1) if isinstance(made, int) else Version(*made)


def one_client(stored: Mapping[str, Slot]) -> dict[str, Slot]:
    """Slots read for a single client, without the leading axis."""
    return {name: Slot(take(slot.value, 0), slot.present[0], slot.along) for name, slot in stored.items()}
