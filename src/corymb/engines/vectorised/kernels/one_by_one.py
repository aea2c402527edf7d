"""Descents client by client, without padding: the serial kernel."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from corymb.core.client import Examples, Objective
from corymb.engines.vectorised.batches import number_of_steps
from corymb.engines.vectorised.blocks import used_rows
from corymb.engines.vectorised.flat_weights import flattened
from corymb.engines.vectorised.kernels.on_threads import run_on_threads, tape_form
from corymb.engines.vectorised.kernels.steps import Steps
from corymb.engines.vectorised.kernels.together import copied
from corymb.engines.vectorised.kernels.watch import Watch
from corymb.engines.vectorised.single import SingleClient, descend_single
from corymb.keys import Key
from corymb.local.descent import Batches, Descent
from corymb.trees import Params, take

WIDE_LAYER_BYTES = 2**18
"""Layers with at least this many bytes of weights are stepped in their backward pass."""


def descend_one_by_one(
    steps: Steps,
    watch: Watch,
    objective: Objective,
    params: Params,
    on: Examples,
    key: Key,
    how: Descent,
    *,
    threads: int,
    steps_layers: bool,
    own: bool,
) -> tuple[Params, Tensor]:
    """The trained models of all clients and their losses before the first step.

    With `steps_layers`, wide linear layers are stepped in their backward pass, if the descent permits it. `threads` is
    how many threads may train clients at the same time: 1, unless the steps of this model can be replayed.
    """
    traits = steps.traits
    wide = steps_layers and traits.largest_bytes >= WIDE_LAYER_BYTES and not steps.mixed
    layers = traits.layers if wide and how.plain and not how.safe else ()
    if not (own and all(p.is_contiguous() for p in params.values())):
        params = copied(params)
    # On a CPU, torch runs a GRU or an RNN as a loop of small operations, which is faster than replaying them.
    pays = all(one.kind == "lstm" for one in traits.recurrences)
    tapes, losses = steps.tapes if steps.uses_tapes and pays else None, dict[int, Tensor]()
    recurrences = traits.recurrences if steps.device == "cuda" and not steps.mixed else ()
    clients = _SingleClients(on, key, how)

    def train(i: int, before_step: Callable[[], None]) -> None:
        model = take(params, i)
        flat = flattened(model, recurrences)
        losses[i] = descend_single(objective, {**model, **flat}, clients.get(i, before_step), how, layers, tapes)
        if flat:
            torch._foreach_copy_([model[name] for name in flat], list(flat.values()))
        clients.finish(i)

    def train_on_caller(i: int) -> None:
        train(i, clients.reporter(i, watch.report))

    indices = range(len(on.weight))
    if tapes is not None and 1 < threads <= len(indices) and not how.safe:
        rate, form = how.lr if layers else 0.0, tape_form(params, on)  # with layers, the tape contains the step size

        def key_of(i: int) -> tuple[Any, ...]:
            return id(objective), rate, form, how.steps, how.epochs, how.batch, *clients.signature(i)

        # Clients ascend by size. Starting with the largest keeps all threads busy to the end.
        run_on_threads(indices[::-1], key_of, train_on_caller, train, threads, tapes, watch)
    else:
        for i in indices:
            train_on_caller(i)
    watch.report(1.0)
    return params, torch.stack([losses[i] for i in indices])


class _SingleClients:
    """The clients of a stack, to be trained one by one without padding; counts the steps taken so far."""

    def __init__(self, on: Examples, key: Key, how: Descent) -> None:
        counts = [used_rows(on), (on.weight > 0).sum(1), (on.weight == 1).sum(1)]
        self._lengths, self._sizes, self._ones = torch.stack(counts).tolist()  # one synchronisation with a GPU, not 3
        self._on, self._key, self._orders = on, key, Batches.orders_of_all(how, on.weight, key)
        self._batch, self._steps = how.batch, [number_of_steps(how, m) for m in self._lengths]
        self._taken, self._total, self._lock = 0, sum(self._steps), Lock()

    def get(self, i: int, before_step: Callable[[], None]) -> SingleClient:
        """A client; `before_step` is called before each of its steps."""
        unweighted = self._ones[i] == self._lengths[i]
        examples = first_rows(self._on, i, self._lengths[i])
        return SingleClient(examples, self._key[i], self._orders[i], self._sizes[i], unweighted, before_step)

    def signature(self, i: int) -> tuple[int | bool, ...]:
        """Equal for clients that can replay the same tapes: same batch sizes, and both with or both without weights."""
        unweighted = self._ones[i] == self._lengths[i]
        if self._batch is None or not self._lengths[i]:
            return unweighted, self._lengths[i]
        whole, rest = divmod(self._sizes[i], self._batch)
        # A descent with fewer steps than a pass does not reach the rest of the examples.
        return unweighted, min(whole, 1), rest if self._steps[i] > whole else 0

    def reporter(self, i: int, report: Callable[[float], None]) -> Callable[[], None]:
        """A function to call before each step of a client; it reports the progress of the whole stack.

        Extra calls do not count: a client never reports more steps than its descent has.
        """
        calls = count()
        return lambda: report((self._taken + min(next(calls), self._steps[i] - 1)) / self._total)

    def finish(self, i: int) -> None:
        """Count a client's steps as taken. May be called from several threads."""
        with self._lock:
            self._taken += self._steps[i]


def first_rows(on: Examples, i: int, m: int) -> Examples:
    """The first m examples of client i."""
    return Examples(on.x[i, :m], on.y[i, :m], on.weight[i, :m])
