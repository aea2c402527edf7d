"""Client code: what a client function may see, and what it may return.

A client function is a module-level function marked `@on_client` whose first parameter is `client`. It is written for
one client; engines run it for many at once. The returned value goes to the server; `client.memory` stays.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, overload

import torch
from torch import Tensor

from corymb.core.objective import Examples as Examples
from corymb.core.objective import Objective as Objective
from corymb.keys import Key, fold
from corymb.trees import Params, Tree, as_tensors, leaves, map_tensors, signature, tree_map

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
N = TypeVar("N")
Split = Literal["train", "test"]


class Share(NamedTuple, Generic[N]):
    """One value that is added, weighted, to k sums. The server gets `note` as one row per client."""

    value: Params
    weight: Tensor  # k
    label: Tensor | None = None
    note: N = ()  # type: ignore[assignment]


class Shares(NamedTuple, Generic[N]):
    """A separate value for each of k sums."""

    value: Params  # k rows
    weight: Tensor  # k
    label: Tensor | None = None
    note: N = ()  # type: ignore[assignment]


class Served(NamedTuple):
    """Several models served to one client, which uses the weighted mean of their predictions."""

    models: Params  # c rows
    weights: Tensor  # c, with sum 1


class Slot(NamedTuple):
    """A value in client memory; `along` names the split whose examples its leading axis follows, if any."""

    value: Tree
    present: Tensor
    along: Split | None = None


class Memory:
    """Named slots that stay with a client between calls and are never sent.

    Whole slots are read and written. A slot whose rows follow the client's examples is set with `along="train"`, so
    that engines that pad clients know which rows are real.
    """

    def __init__(self, stored: Mapping[str, Slot], *, lengths: Mapping[Split, int], readonly: bool = False) -> None:
        self._stored = stored
        self._lengths = lengths  # of the client's examples, padding included
        self._readonly = readonly
        self.writes: dict[str, Slot] = {}

    @overload
    def get(self, slot: str) -> Any: ...
    @overload
    def get(self, slot: str, default: T) -> T: ...
    def get(self, slot: str, default: Any = None) -> Any:
        """The value last set under `slot`, or `default` for a client that has none.

        Omit `default` only if every client asked is known to have set the slot: one that has not gets NaN, and its
        reply is rejected. Give a default the dtype of what is set: if any client of the host has the slot, the default
        is cast to the slot's dtype; otherwise it is not changed.
        """
        kept = self.writes.get(slot) or self._stored.get(slot)
        if kept is None:
            if default is None:
                raise KeyError(f"memory slot {slot!r} is empty: set it first, or give `get` a default")
            return default
        other = map_tensors(_missing, kept.value) if default is None else as_tensors(default)
        return tree_map(lambda new, old: _where(kept.present, old, new), other, kept.value)

    def set(self, slot: str, value: Tree, *, along: Split | None = None) -> None:
        """Keep `value` under `slot` until it is set again or cleared."""
        try:
            value = as_tensors(value)
        except TypeError as error:
            raise TypeError(f"memory slot {slot!r}: {error}") from None
        if along is not None and any(leaf.shape[:1] != (self._lengths[along],) for leaf in leaves(value)):
            wanted = f"one row for each of {self._lengths[along]} {along} examples"
            raise ValueError(f"memory slot {slot!r}: wanted {wanted}, got {signature(value)}")
        self._write(slot, Slot(value, torch.tensor(True), along))

    def clear(self, slot: str) -> None:
        """Remove the value stored under `slot`."""
        kept = self.writes.get(slot) or self._stored.get(slot)
        if kept is not None:
            self._write(slot, Slot(map_tensors(torch.zeros_like, kept.value), torch.tensor(False), kept.along))

    def names(self) -> list[str]:
        """The slots that any client has, even if this one does not."""
        return sorted({**self._stored, **self.writes})

    def copy(self, slot: str, to: str) -> None:
        """Copy the value and presence of `slot` to the slot `to`."""
        self._write(to, self.writes.get(slot) or self._stored[slot])

    def _write(self, slot: str, kept: Slot) -> None:
        if self._readonly:
            raise PermissionError(f"memory slot {slot!r}: evaluation is read-only and cannot write client memory")
        self.writes[slot] = kept


def _where(present: Tensor, value: Tensor, other: Tensor) -> Tensor:
    return torch.where(present.to(value.device), value, other.to(device=value.device, dtype=value.dtype))


def _missing(like: Tensor) -> Tensor:
    return torch.full_like(like, torch.nan if like.is_floating_point() else 0)


class Kernel(Protocol):
    """An engine's implementation of `losses`, `gradient` and `descend` for a stack of clients at once.

    Every tensor has a leading axis of clients, except models that are `shared` by all.
    """

    def measure(self, what: Measure, objective: Objective, models: Params, on: Examples, *, shared: bool) -> Tensor:
        """The mean loss (or score) of each of k models: n k."""
        ...

    def of_each(self, what: Pointwise, objective: Objective, params: Params, on: Examples, *, shared: bool) -> Tensor:
        """A model's prediction or loss for each example: n m ...; rows of weight 0 may hold anything."""
        ...

    def gradient(self, objective: Objective, params: Params, on: Examples, key: Key) -> Params:
        """The gradient of the mean training loss of each client's model: n rows."""
        ...

    def descend(
        self, objective: Objective, params: Params, on: Examples, key: Key, how: Any, *, own: bool = False
    ) -> tuple[Params, Tensor]:
        """Each client's model after descent on its own examples, and the loss at its first step: n rows.

        `own`: whether the kernel may write into `params`.
        """
        ...


Measure = Literal["losses", "scores"]
Pointwise = Literal["predict", "losses"]


class TestExamplesWanted(Exception):
    """Raised if a client function reads test examples that are not stacked yet; the engine stacks them and retries."""


class Client:
    """One client, as client functions see it."""

    def __init__(
        self,
        *,
        train: Examples,
        test: Examples | None,
        objective: Objective,
        memory: Memory,
        key: Key,
        keys: Mapping[str, Key] = MappingProxyType({}),
        kernel: Kernel | None = None,
    ) -> None:
        self.train = train
        self._test = test  # None if the engine has not stacked them yet
        self.objective = objective
        self.memory = memory
        self._key, self._made = key, keys  # `keys`: those the engine computed in advance, by purpose
        self._keys: dict[str, Key] = {}
        self._kernel = kernel  # None: compute one client at a time, with the reference definition

    @property
    def test(self) -> Examples:
        """The client's test examples, which are never trained on."""
        if self._test is None:
            raise TestExamplesWanted
        return self._test

    def key(self, purpose: str) -> Key:
        """A random key for one purpose within one call, different for every client."""
        if purpose not in self._keys:
            made = self._made.get(purpose)
            self._keys[purpose] = fold(self._key, purpose) if made is None else made
        return self._keys[purpose]

    @property
    def purposes(self) -> tuple[str, ...]:
        """The purposes for which keys were requested so far."""
        return tuple(self._keys)


class ClientFn(Generic[P, T_co]):
    """A function that runs at clients. It is called through a cohort; only engines call its `body`."""

    def __init__(self, body: Callable[Concatenate[Client, P], T_co]) -> None:
        self.body = body
        functools.update_wrapper(self, body)

    @property
    def name(self) -> str:
        """Its importable name: `module:function`."""
        return f"{self.body.__module__}:{self.body.__qualname__}"

    def __call__(self, client: Client, *args: P.args, **options: P.kwargs) -> T_co:
        """Call it from another client function, for the same client."""
        return self.body(client, *args, **options)

    def __repr__(self) -> str:
        return f"ClientFn({self.name})"


def on_client(body: Callable[Concatenate[Client, P], T]) -> ClientFn[P, T]:
    """Mark a module-level function as one that runs at a client.

    It is written for one client: it takes a `Client` first, then what the server sends, and returns tensors (or a tree
    of them). Under an engine it runs for many clients at once, so it must not branch on a tensor's value.

    >>> @on_client
    ... def count_examples(client: Client) -> Tensor:
    ...     return client.train.weight.sum()

    The server calls it through a cohort: `fed.clients.map(count_examples)` returns every client's reply.
    """
    first = next(iter(inspect.signature(body).parameters), None)
    if first != "client":
        got = "it has none" if first is None else f"it is {first!r}"
        raise TypeError(f"{body.__qualname__}: the first parameter of a client function must be `client`, {got}")
    if "<locals>" in body.__qualname__:
        raise TypeError(f"{body.__qualname__}: define client functions at module level, so that nodes can import them")
    return ClientFn(body)
