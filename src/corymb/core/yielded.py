"""Checks an algorithm's `run` and the snapshots it yields, so that authors of algorithms see mistakes early."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor

from corymb.core.federation import Federation
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.settings import InvalidInput, require
from corymb.trees import Params

JSON_TYPES = (bool, int, float, str, list, tuple, Mapping)
"""Types that JSON can hold. Of a list only the first item is checked, since it may be long."""


class Yielded:
    """The snapshots of one algorithm on one federation, checked as they are yielded."""

    def __init__(self, algorithm: Algorithm, fed: Federation) -> None:
        self._algorithm, self._fed, self._run = algorithm, fed, f"{type(algorithm).__name__}.run"

    def of_run(self, start: Snapshot | None) -> Iterator[Snapshot]:
        """The checked snapshots of `run`, continued from `start`."""
        run, before = self._algorithm.run, start
        try:
            inspect.signature(run).bind(self._fed, start)
        except TypeError:
            raise InvalidInput(
                f"{self._run} cannot be called as run(fed, start): write `def run(self, fed, start=None)`; start is "
                "the snapshot to continue from, or None."
            ) from None
        snapshots: object = run(self._fed, start)
        if not isinstance(snapshots, Iterator):
            raise InvalidInput(
                f"{self._run} returned {_kind(snapshots)}: it must yield a snapshot after every round "
                "(`yield (at := at.next(models=...))`)."
            )
        for snapshot in snapshots:
            self._check(snapshot, before)
            before = snapshot  # now, or a third snapshot would be kept during the round
            yield snapshot

    def _check(self, snapshot: object, before: Snapshot | None) -> None:
        if not isinstance(snapshot, Snapshot):
            raise InvalidInput(
                f"{self._run} yielded {_kind(snapshot)}, wanted a Snapshot: `yield (at := at.next(models=...))`."
            )
        last = (before.stage, before.round) if before is not None else ("", 0)
        require(
            snapshot.stage != last[0] or snapshot.round > last[1],
            f"{self._run} yielded round {snapshot.round} after round {last[1]}: make each snapshot with at.next(...), "
            "and continue from the start that is given: `at = start or Snapshot.fresh(fed, k)`, then `for t in "
            "range(at.round, self.rounds)`.",
        )
        self._check_models(snapshot.models, {} if before is None else before.models)
        n = len(self._fed.names)
        self._check_rows("labels", snapshot.labels, n)
        kind = snapshot.labels.dtype
        require(kind == torch.int64, f"{self._run}: labels are {kind}: wanted int64.")
        least, most = snapshot.labels.aminmax()
        require(
            bool(least >= -1) and bool(most < snapshot.k),
            f"{self._run}: labels must be -1 (none) to {snapshot.k - 1} for {snapshot.k} models.",
        )
        if snapshot.shares is not None:
            self._check_rows("shares", snapshot.shares, n)
            shape, wanted = list(snapshot.shares.shape), [n, snapshot.k]
            require(shape == wanted, f"{self._run}: shares have shape {shape}: wanted {wanted}, a column per model.")
        carry: Mapping[str, object] = snapshot.carry
        for name, value in carry.items():
            hint = " Give each tensor a name of its own (corymb.trees.prefixed)." if isinstance(value, Mapping) else ""
            require(
                isinstance(value, Tensor), f"{self._run}: carry[{name!r}] is {_kind(value)}: wanted a tensor.{hint}"
            )
            dense = isinstance(value, Tensor) and value.layout == torch.strided
            require(dense, f"{self._run}: carry[{name!r}] is a sparse tensor: give it dense (value.to_dense()).")
        for place, wrong in _not_plain(snapshot.notes):
            raise InvalidInput(
                f"{self._run}: notes{place} {wrong}: notes are plain numbers, text and lists, by name, such as "
                "float(losses.mean()) or labels.tolist()."
            )

    def _check_rows(self, what: str, value: object, n: int) -> None:
        rows = isinstance(value, Tensor) and value.shape[:1] == (n,)
        got = f"have shape {list(value.shape)}" if isinstance(value, Tensor) else f"are {_kind(value)}"
        require(
            rows,
            f"{self._run}: {what} {got}: wanted a tensor with a row for each of {n} clients, asked or not; give "
            "labels=(replies.clients, rows), and for other values replies.clients.put(values, rows).",
        )

    def _check_models(self, models: object, last: Params) -> None:
        if not isinstance(models, Mapping) or not all(isinstance(value, Tensor) for value in models.values()):
            raise InvalidInput(f"{self._run}: models are {_kind(models)}: wanted a dict of tensors, each with k rows.")
        if models.keys() == self._like.keys():  # else they are not models of the objective: centres, for example
            self._check_like_the_objectives(models, last)
        rows = {name: len(value) if value.dim() else 0 for name, value in models.items()}
        require(
            min(rows.values(), default=0) > 0,
            f"{self._run}: models {'have no rows' if rows else 'are empty'}: wanted at least one model. If nothing is "
            "trained, keep those of Snapshot.fresh(fed, 1) and put values into carry.",
        )
        alike = len({*rows.values()}) == 1
        require(alike, f"{self._run}: models differ in their number of rows, {rows}: wanted k rows of each.")

    def _check_like_the_objectives(self, models: Mapping[str, Tensor], last: Params) -> None:
        for name, value in models.items():
            shape, kind = self._like[name].shape, last.get(name, self._like[name]).dtype
            if value.dim() != 1 + len(shape):  # sizes are not compared: an algorithm may change them
                raise InvalidInput(
                    f"{self._run}: models[{name!r}] has shape {list(value.shape)}: wanted [k, "
                    f"{', '.join(map(str, shape))}], a row for each of k models (a client function returns Share of "
                    "one model, or Shares of k)."
                )
            if value.dtype != kind:
                raise InvalidInput(
                    f"{self._run}: models[{name!r}] is {_short(value.dtype)}: wanted {_short(kind)}, the run's "
                    f"precision; a value in {_short(value.dtype)} was mixed in at the server "
                    "(value.to(at.models[name]) converts it)."
                )

    @cached_property
    def _like(self) -> Params:
        """A model of the objective, for its shapes and types."""
        return self._fed.objective.init(self._fed.key("models"))


def _not_plain(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Where a note holds what JSON cannot, and what that is."""
    if value is not None and not isinstance(value, JSON_TYPES):
        yield place, f"is {_kind(value)}"
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                yield place, f"has the key {name!r}"
            yield from _not_plain(inner, f"{place}[{name!r}]")
    elif isinstance(value, (list, tuple)) and value:
        yield from _not_plain(value[0], f"{place}[0]")


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
