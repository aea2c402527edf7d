"""How a stack of clients computes losses, gradients and descents at once.

There are three kernels, which implement `corymb.core.client.Kernel` and give the same results:

* fused: every layer is a batched product whose backward pass takes the SGD step in place, so that no gradient is ever
  stored; if all steps see the same few examples, the layer that reads them is stepped in their span (`span`);
* foreach: one backward pass through vmap gives the gradients of all clients; steps on the stacked parameters are in
  place;
* serial: client by client, without padding; supports every model. Unless it was requested by name, it steps wide linear
  layers in place (`single`).

`choice` picks the kernel for an operation. With the first two, all clients take each step at once (`together`; the step
itself is in `steps`), or a few clients take all steps before the next few begin (`groups`). The third is `one_by_one`.
Groups and single clients also train on several threads (`on_threads`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from corymb.choices import KernelName
from corymb.core.client import Examples, Measure, Objective, Pointwise
from corymb.core.objective import Draws
from corymb.engines.vectorised.batches import steps_of
from corymb.engines.vectorised.blocks import mean_of_blocks, passes, rows_in_cache, rows_of_blocks, used_rows
from corymb.engines.vectorised.fused import stacked_gradients
from corymb.engines.vectorised.graphs import Graphs
from corymb.engines.vectorised.kernels.choice import choose
from corymb.engines.vectorised.kernels.groups import clients_in_caches, descend_in_groups
from corymb.engines.vectorised.kernels.measures import (
    large_products,
    measure_own,
    measure_shared,
    padded,
    rows_one_by_one,
)
from corymb.engines.vectorised.kernels.one_by_one import descend_one_by_one, first_rows
from corymb.engines.vectorised.kernels.steps import Steps
from corymb.engines.vectorised.kernels.together import copied, descend_together
from corymb.engines.vectorised.kernels.watch import Watch
from corymb.engines.vectorised.stacked import stacked_layers
from corymb.engines.vectorised.tape import Tapes
from corymb.engines.vectorised.traits import Traits
from corymb.keys import Key
from corymb.local.descent import Descent
from corymb.local.reference import as_params, gradient_one, measure_one, pointwise
from corymb.trees import Params, take

OfBlock = Callable[[Examples, Tensor], Tensor]


@dataclass(frozen=True)
class Kernels:
    """The kernels of an engine: each operation runs with the kernel chosen for it."""

    traits: Traits
    device: str
    threads: int
    mixed: bool = False
    only: KernelName | None = None
    """Use this kernel wherever it is applicable."""
    together: bool = False
    """Whether the model can run for many clients at once if the work is little (`choice.is_little`)."""
    equal: bool = False
    """Whether clients with equally many examples can run together although an example's loss depends on the others."""
    replays: bool = False
    """Whether a step of this model can be replayed (`tape`)."""
    watch: Watch = field(default_factory=Watch)
    tapes: Tapes = field(default_factory=Tapes)
    graphs: Graphs = field(default_factory=Graphs)

    def pick(self, how: Descent | None, examples: int | None = None) -> KernelName:
        """The kernel for this descent (None: a measure or a gradient), with this many examples per client."""
        if self.only == "fused" and not (self.traits.fusable and not self.mixed and (how is None or how.plain)):
            return "foreach"
        if self.only is not None:
            return self.only
        some = examples if how is None or how.batch is None or examples is None else min(examples, how.batch)
        return choose(
            self.traits, how, self.device, self.threads, mixed=self.mixed, examples=some, together=self.together
        )

    @property
    def splits_by_size(self) -> bool:
        """Whether measures of clients of different sizes are divided into passes with little padding."""
        return self.device == "cuda" and self.traits.independent

    # ---- losses, scores, predictions

    def measure(self, what: Measure, objective: Objective, models: Params, on: Examples, *, shared: bool) -> Tensor:
        """The mean loss or score of k models for every client: n k."""

        def of(block: Examples, given: Params) -> Tensor:
            return self._measure(what, objective, given, block, shared=shared)

        return self._in_passes(of, mean_of_blocks, models, on, shared=shared)

    def of_each(self, what: Pointwise, objective: Objective, params: Params, on: Examples, *, shared: bool) -> Tensor:
        """A model's prediction or loss for each example of every client: n m ..."""

        def of(block: Examples, given: Params) -> Tensor:
            return self._of_each(what, objective, given, block, shared=shared)

        return self._in_passes(of, rows_of_blocks, params, on, shared=shared)

    def _in_passes(
        self,
        of: Callable[[Examples, Params], Tensor],
        combine: Callable[[OfBlock, Examples, list[slice]], Tensor],
        models: Params,
        on: Examples,
        *,
        shared: bool,
    ) -> Tensor:
        """A function of examples and their models, in several passes if activations take much memory."""
        parts = passes(self.traits, on, self.device)
        if parts is None:
            return of(on, models)
        return combine(lambda block, clients: of(block, models if shared else take(models, clients)), on, parts)

    def _measure(self, what: Measure, objective: Objective, models: Params, on: Examples, *, shared: bool) -> Tensor:
        self.watch.report(0.0)
        if self._evaluates_one_by_one(on, shared=shared):

            def of_client(own: Params, client: Examples) -> Tensor:
                return measure_one(what, objective, own, client)

            return torch.stack(rows_one_by_one(of_client, models, self._clients(on, least=1), shared=shared))
        if shared:
            at_once = rows_in_cache(self.traits, self.threads) if self.device == "cpu" else on.weight.numel()
            with large_products(self.device, mixed=self.mixed):
                return measure_shared(getattr(objective, what), models, on, at_once)
        with stacked_layers(self.traits):
            return measure_own(getattr(objective, what), models, on)

    def _of_each(self, what: Pointwise, objective: Objective, params: Params, on: Examples, *, shared: bool) -> Tensor:
        self.watch.report(0.0)
        values_of = pointwise(what, objective)
        if self._evaluates_one_by_one(on, shared=shared):
            rows = rows_one_by_one(values_of, params, self._clients(on, least=1), shared=shared)
            return padded(rows, on.weight.shape[1])
        if shared:
            with large_products(self.device, mixed=self.mixed):
                flat = values_of(params, Examples(*(t.flatten(0, 1) for t in on)))
            return flat.reshape(*on.weight.shape, *flat.shape[1:])
        with stacked_layers(self.traits):
            values: Tensor = vmap(values_of)(params, on)
        return values

    def _evaluates_one_by_one(self, on: Examples, *, shared: bool) -> bool:
        return self.pick(None, on.weight.shape[1]) == "serial" and not (shared and self.traits.independent)

    # ---- training

    def gradient(self, objective: Objective, params: Params, on: Examples, key: Key) -> Params:
        """Every client's gradient of its own model: n rows."""
        self.watch.note_stack(on)
        if self.pick(None, on.weight.shape[1]) == "serial":
            rows = [
                gradient_one(objective, take(params, i), client, Draws(key[i]))
                for i, client in enumerate(self._clients(on))
            ]
            return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        _, *slopes = stacked_gradients(objective, params, on, Draws(key), self.traits)
        return as_params(params, slopes)

    def descend(
        self, objective: Objective, params: Params, on: Examples, key: Key, how: Any, *, own: bool = False
    ) -> tuple[Params, Tensor]:
        """Every client's descent from its own model, and its loss at the first step: n rows."""
        self.watch.note_stack(on)
        how = self.watch.descent(how)
        # A single client's step has two thirds of the operations of a stack's; without batches a span may pay more.
        alone = len(on.weight) == 1 and how.batch is not None and self.device == "cpu" and self.only is None
        name = "serial" if alone else self.pick(how, on.weight.shape[1])
        if name == "serial":
            work = self._by_length if self.equal else self._one_by_one
            return work(objective, params, on, key, how, own=own)
        if name == "fused" and (few := self._clients_in_caches(how)) < len(on.weight):
            return descend_in_groups(
                self._steps, self.watch, objective, params, on, key, how, few=few, threads=self.threads, own=own
            )
        # On a GPU a step's time hardly depends on the number of clients, and a graph is for one number of them.
        batches = steps_of(on, key, how, padded=self.traits.independent, shrinks=self.device == "cpu")
        return descend_together(self._steps, self.watch, name, objective, params, on, key, how, batches, own=own)

    def _clients_in_caches(self, how: Descent) -> int:
        return clients_in_caches(self.traits, how, self.device, self.threads)

    @property
    def _steps(self) -> Steps:
        return Steps(self.traits, self.device, self.mixed, self.tapes, self.graphs)

    def _one_by_one(
        self, objective: Objective, params: Params, on: Examples, key: Key, how: Descent, *, own: bool
    ) -> tuple[Params, Tensor]:
        threads, in_place = self.threads if self.replays else 1, self.only is None
        return descend_one_by_one(
            self._steps, self.watch, objective, params, on, key, how, threads=threads, steps_layers=in_place, own=own
        )

    def _by_length(
        self, objective: Objective, params: Params, on: Examples, key: Key, how: Descent, *, own: bool
    ) -> tuple[Params, Tensor]:
        """Clients with equally many examples together: no padding, so that a batch holds only its own examples."""
        stacked = replace(self, only="foreach", equal=False)
        trained, losses, done = params if own else copied(params), torch.empty_like(on.weight[:, 0]), 0
        for m, members in _equal_lengths(on):
            which = torch.tensor(members, device=on.weight.device)
            given = take(params, which), Examples(*(t[which, : max(1, m)] for t in on)), key[which]
            together = len(members) > 1 and self._gains_from_stacks(how, m)
            descend = stacked.descend if together else self._one_by_one
            with self.watch.part(done, len(members), len(on.weight)):
                rows, loss = descend(objective, *given, how, own=True)
            for name, value in rows.items():
                trained[name].index_copy_(0, which, value)
            losses.index_copy_(0, which, loss)
            done += len(members)
        return trained, losses

    def _gains_from_stacks(self, how: Descent, examples: int) -> bool:
        some = examples if how.batch is None else min(examples, how.batch)
        traits = self.traits._replace(fusable=False)
        kernel = choose(traits, how, self.device, self.threads, mixed=self.mixed, examples=some, together=True)
        return examples > 0 and kernel == "foreach"

    def _clients(self, on: Examples, least: int = 0) -> Iterator[Examples]:
        """Each client's examples in turn, at least `least` rows: not every model takes an empty batch.

        After each client, `report` is called, so that time limits are checked.
        """
        for i, m in enumerate(used_rows(on).clamp_min(least).tolist()):
            yield first_rows(on, i, m)
            self.watch.report(0.0)


def _equal_lengths(on: Examples) -> list[tuple[int, list[int]]]:
    """Clients grouped by their number of examples; one that has examples of weight 0 is a group of its own."""
    ends, sizes = torch.stack([used_rows(on), (on.weight > 0).sum(1)]).tolist()
    groups: dict[tuple[int, int], list[int]] = {}
    for client, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        groups.setdefault((end, -1 if end == size else client), []).append(client)
    return [(m, members) for (m, _), members in groups.items()]
