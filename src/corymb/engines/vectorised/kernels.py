"""How a stack of clients computes losses, gradients and descents at once.

There are three kernels, which implement `corymb.core.client.Kernel` and give the same results:

* fused: every layer is a batched product whose backward pass takes the SGD step in place, so that no gradient is ever
  stored; if all steps see the same few examples, the layer that reads them is stepped in their span (`span`);
* foreach: one backward pass through vmap gives the gradients of all clients; steps on the stacked parameters are in
  place;
* serial: client by client, without padding; supports every model. Unless it was requested by name, it steps wide linear
  layers in place (`single`).

`choose` picks the kernel for an operation: a pure function of model, optimiser and device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from corymb.choices import KernelName
from corymb.core.client import Examples, Measure, Objective, Pointwise
from corymb.core.objective import Draws
from corymb.engines.vectorised.batches import DrawnSteps, Step, some_rows, steps_of
from corymb.engines.vectorised.blocks import mean_of_blocks, passes, reach, rows_in_cache, rows_of_blocks
from corymb.engines.vectorised.flat_weights import flattened
from corymb.engines.vectorised.fused import fused_step
from corymb.engines.vectorised.graphs import Graphs, Player, StepFunction
from corymb.engines.vectorised.products import Products, onednn_is_faster
from corymb.engines.vectorised.single import SingleClient, descend_single, grouped
from corymb.engines.vectorised.span import Span
from corymb.engines.vectorised.stacked import stacked_layers
from corymb.engines.vectorised.tape import Tapes
from corymb.engines.vectorised.threads import even_slices, one_thread, run_jobs, worthwhile_threads
from corymb.engines.vectorised.traits import Traits
from corymb.engines.vectorised.variants import at_once, by_streams
from corymb.keys import Key
from corymb.local.curvature import step_part
from corymb.local.descent import MEASURED, Batches, Descent, Stepper, led
from corymb.local.reference import (
    as_params,
    gradient_one,
    measure_one,
    pointwise,
    training_losses,
    weighted_mean,
)
from corymb.trees import Params, take

Job = TypeVar("Job")
WIDE = 2**18
"""Layers with at least this many bytes of weights are stepped in their backward pass."""
MOST_ON_STREAMS = 64
"""Stepping clients one by one on CUDA streams is tried for at most this many clients."""
LONG_DESCENT = 100
"""A step is captured in the middle of a descent only if at least this many steps are left."""
SMALL_MODEL = 2**16
"""Up to this many parameters, Python overhead per client outweighs the arithmetic on a CPU: clients run together."""
BATCH_BYTES = 2**21
"""Above this many bytes of activations per batch, a single thread is faster client by client."""
CNN_BYTES, RNN_BYTES, LSTM_BYTES = 2**20, 2**20, 2**16
"""Up to this many bytes of activations per batch, clients run together on a CPU: limits for convolutional models, for
recurrent ones (half of it for GRUs), and for LSTMs, which oneDNN makes fast for a single client. Measured with 16 to
200 clients: at these limits, running together is 1.1 to 1.8 times as fast."""
CACHE_BYTES, THREADED_CACHE_BYTES = 2**22, 2**23
"""Bytes of models, for each thread, that stay in a processor's caches from step to step: with one thread, and with
several, which share work better if operations take longer. Measured: 4 MiB is 6 to 10 % faster than 8 with one thread,
and 3 % slower with two."""
LARGE_MODEL, SMALL_BATCH = 300_000, 20
"""With at least this many parameters and at most this many examples per step, one thread is faster client by client
than with stacked linear layers. Measured: 1.08 to 1.3 times as fast; slower with 25 examples or 250,000 parameters."""


def choose(
    traits: Traits,
    how: Descent | None,
    device: str,
    threads: int,
    *,
    mixed: bool = False,
    examples: int | None = None,
    together: bool = False,
) -> KernelName:
    """The kernel for a model, an optimiser (`None`: a measure or a gradient) and a device.

    `examples` is how many examples of a client pass through its model at once, if known. `together` says whether a
    convolutional or recurrent model can run for many clients at once; that is done if the work is little (`is_little`).
    """
    if device == "cpu" and (traits.convolutional or traits.recurrent):
        little = together and examples is not None and not mixed and is_little(traits, examples)
        return "foreach" if little else "serial"
    if traits.fusable and not mixed and (how is None or how.plain):
        return "serial" if threads == 1 and device == "cpu" and how is not None and fits_cache(traits, how) else "fused"
    passing = 0 if how is None or examples is None else examples * traits.activation_bytes
    if device == "cpu" and threads == 1 and (traits.parameters > SMALL_MODEL or passing > BATCH_BYTES):
        return "serial"  # one thread gains nothing from batching large products
    return "foreach"


def fits_cache(traits: Traits, how: Descent) -> bool:
    """Whether it pays to take all steps of one client before those of the next: small steps of a large model.

    A stack of large models does not fit a processor's caches, so each step of all clients reads and writes all of it in
    memory; one model stays in the caches from step to step. Products of more than a few examples hide that.
    """
    small = how.batch is not None and how.batch <= SMALL_BATCH and not how.safe
    return small and traits.parameters >= LARGE_MODEL


def is_little(traits: Traits, examples: int) -> bool:
    """Whether a batch of this size is too little work to run a convolutional or recurrent model client by client."""
    gated = any(one.kind == "gru" for one in traits.recurrences)
    most = LSTM_BYTES if traits.lstm else RNN_BYTES // 2 if gated else RNN_BYTES if traits.recurrent else CNN_BYTES
    return examples * traits.activation_bytes <= most and traits.parameters <= SMALL_MODEL


class Watch:
    """Observes how much a kernel works on at once, and reports its progress.

    During descents, `report` is called before each step with the fraction done, over all clients of the stack, and at
    the end with 1; during other work, which has no steps, it is called with 0.
    """

    def __init__(self, report: Callable[[float], None] = lambda part: None) -> None:
        self.rows, self.batch, self.brief = 1, 0, False
        self.how: Descent | None = None
        self.report = report

    @contextmanager
    def trial(self, *, brief: bool) -> Iterator[None]:
        """Start observing afresh; `brief` descents take one step, with one example instead of a batch."""
        self.rows, self.batch, self.brief = 1, 0, brief
        try:
            yield
        finally:
            self.brief = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Report no progress for work that is only repeated for a comparison."""
        report, self.report = self.report, lambda part: None
        try:
            yield
        finally:
            self.report = report

    @contextmanager
    def part(self, done: int, clients: int, total: int) -> Iterator[None]:
        """Report progress as part of `total` clients, of which `done` are finished and `clients` descend now."""
        report, self.report = self.report, lambda part: report((done + clients * part) / total)
        try:
            yield
        finally:
            self.report = report

    @contextmanager
    def repeating(self) -> Iterator[Callable[[], None]]:
        """A function that reports the last progress again, to call while waiting for other threads."""
        report, last = self.report, 0.0

        def noted(part: float) -> None:
            nonlocal last
            last = part
            report(part)

        self.report = noted
        try:
            yield lambda: report(last)
        finally:
            self.report = report

    def note_stack(self, on: Examples) -> None:
        """Note the number of models in a stack."""
        self.rows = max(self.rows, len(on.weight))
        self.report(0.0)

    def descent(self, how: Descent) -> Descent:
        """Note a descent and its batch size; returns the descent to run, shortened during a brief trial."""
        self.how = how
        if how.batch is not None:
            self.batch = max(self.batch, how.batch * (MEASURED if how.safe else 1))
        if not self.brief:
            return how
        return replace(how, steps=1, epochs=None, batch=None if how.batch is None else 1, safe=False)

    def work(self, sizes: Tensor) -> Tensor:
        """The relative cost of the last descent for clients of these sizes: the number of examples per step."""
        batch = None if self.how is None or self.how.epochs is not None else self.how.batch
        return sizes if batch is None else sizes.clamp(max=batch)


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
    """Whether the model can run for many clients at once if the work is little (`is_little`)."""
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

    def measure(self, what: Measure, objective: Objective, models: Params, on: Examples, *, shared: bool) -> Tensor:
        """The mean loss or score of k models for every client: n k."""
        parts = passes(self.traits, on, self.device)
        if parts is None:
            return self._measure(what, objective, models, on, shared=shared)
        return mean_of_blocks(
            lambda block, clients: self._measure(
                what, objective, models if shared else take(models, clients), block, shared=shared
            ),
            on,
            parts,
        )

    def _measure(self, what: Measure, objective: Objective, models: Params, on: Examples, *, shared: bool) -> Tensor:
        self.watch.report(0.0)
        if self.pick(None, on.weight.shape[1]) == "serial" and not (shared and self.traits.independent):
            rows = [
                measure_one(what, objective, models if shared else take(models, i), client)
                for i, client in enumerate(self._clients(on, least=1))
            ]
            return torch.stack(rows)
        if shared:
            at_once = rows_in_cache(self.traits, self.threads) if self.device == "cpu" else on.weight.numel()
            with self._large_products():
                return _measure_shared(getattr(objective, what), models, on, at_once)
        with stacked_layers(self.traits):
            return _measure_own(getattr(objective, what), models, on)

    def of_each(self, what: Pointwise, objective: Objective, params: Params, on: Examples, *, shared: bool) -> Tensor:
        """A model's prediction or loss for each example of every client: n m ..."""
        parts = passes(self.traits, on, self.device)
        if parts is None:
            return self._of_each(what, objective, params, on, shared=shared)
        return rows_of_blocks(
            lambda block, clients: self._of_each(
                what, objective, params if shared else take(params, clients), block, shared=shared
            ),
            on,
            parts,
        )

    def _of_each(self, what: Pointwise, objective: Objective, params: Params, on: Examples, *, shared: bool) -> Tensor:
        self.watch.report(0.0)
        values_of = pointwise(what, objective)
        if self.pick(None, on.weight.shape[1]) == "serial" and not (shared and self.traits.independent):
            rows = [
                values_of(params if shared else take(params, i), client)
                for i, client in enumerate(self._clients(on, least=1))
            ]
            longest = on.weight.shape[1]
            return torch.stack([torch.cat([row, row.new_zeros(longest - len(row), *row.shape[1:])]) for row in rows])
        if shared:
            with self._large_products():
                flat = values_of(params, Examples(*(t.flatten(0, 1) for t in on)))
            return flat.reshape(*on.weight.shape, *flat.shape[1:])
        with stacked_layers(self.traits):
            values: Tensor = vmap(values_of)(params, on)
        return values

    def _large_products(self) -> AbstractContextManager[Any]:
        """The mode for a forward pass of one model on the examples of many clients."""
        return Products() if self.device == "cpu" and not self.mixed and onednn_is_faster() else nullcontext()

    def gradient(self, objective: Objective, params: Params, on: Examples, key: Key) -> Params:
        """Every client's gradient of its own model: n rows."""
        self.watch.note_stack(on)
        if self.pick(None, on.weight.shape[1]) == "serial":
            rows = [
                gradient_one(objective, take(params, i), client, Draws(key[i]))
                for i, client in enumerate(self._clients(on))
            ]
            return _stacked(rows)
        return _gradients(objective, params, on, Draws(key), traits=self.traits)[0]

    def descend(
        self, objective: Objective, params: Params, on: Examples, key: Key, how: Any, *, own: bool = False
    ) -> tuple[Params, Tensor]:
        """Every client's descent from its own model, and its loss at the first step: n rows."""
        self.watch.note_stack(on)
        how = self.watch.descent(how)
        name = self.pick(how, on.weight.shape[1])
        if name == "serial":
            work = self._by_length if self.equal else self._one_by_one
            return work(objective, params, on, key, how, own=own)
        if name == "fused" and (few := self._clients_in_cache(how)) < len(on.weight):
            return self._in_groups(objective, params, on, key, how, few, own=own)
        batches = steps_of(on, key, how, padded=self.traits.independent)
        return self._together(name, objective, params, on, key, how, batches, own=own)

    def _together(
        self,
        name: KernelName,
        objective: Objective,
        params: Params,
        on: Examples,
        key: Key,
        how: Descent,
        batches: Iterable[Step],
        *,
        own: bool,
    ) -> tuple[Params, Tensor]:
        """Each step of all clients at once."""
        steps, part = _steps(how, on.weight.shape[1]), None
        if how.safe:
            rows = Batches.sample(how, on.weight, key)
            some, same = on if rows is None else some_rows(on, rows), Draws(key, 0, rows)

            def slopes_at(at: Params) -> Params:
                return _gradients(objective, at, some, same, traits=self.traits)[0]

            part = step_part(how, slopes_at, params, clients=len(on.weight))
        span = Span.of(self.traits.entry, params, on, how) if name == "fused" else None
        start, own = params, own and all(p.is_contiguous() for p in params.values())
        params = {n: p for n, p in params.items() if span is None or n not in span.entry}
        if span is not None:
            params |= span.begin(start, on)
        lr, of = how.lr, (objective, name, how.plain)
        rates = torch.full_like(on.weight[:, 0], lr) if part is None else lr * part
        if name == "fused" and self._captures:  # a graph takes step sizes as an input; the steps before it do so too
            lr, part = 1.0, rates
        before, player, stepper, slopes = torch.empty(0), None, None, list[Tensor]()
        for taken, (batch, active, draws) in enumerate(batches):
            self.watch.report(taken / steps)
            first = not draws.step
            soon = first or (how.steps or 0) - draws.step >= LONG_DESCENT
            if player is None and soon and self._captures:
                player = self._player(of, params, batch, draws, rates, span)
                params = params if player is None else player.params
                if stepper is not None:
                    stepper.params = list(params.values())  # from here on it steps these, with its momentum so far
            if first and player is None and not own:
                params = {**params, **_copied({n: params[n] for n in start if n in params})}
            if first and name != "fused":
                stepper = Stepper(how, list(params.values()), part, stacked=True)
            if player is not None:
                loss, slopes = player.step(batch, draws)
                loss = loss.clone() if first else loss
            elif stepper is None:
                loss = self._fused(objective, params, batch, draws, lr, part, span, losses_wanted=first)
            else:
                slopes, loss = self._slopes(objective, params, batch, draws)
            if player is None and self._captures:
                self.graphs.count(of, params, batch, draws)
            if stepper is not None and slopes:  # fused steps of finished clients are 0: their examples have weight 0
                stepper.step(slopes, active)
            before = loss if first else before
        self.watch.report(1.0)
        if player is not None:
            params = {n: p.clone() for n, p in params.items()}
        return (params if span is None else span.end(params, start, on, lr, own=own)), before

    def _one_by_one(
        self, objective: Objective, params: Params, on: Examples, key: Key, how: Descent, *, own: bool
    ) -> tuple[Params, Tensor]:
        """Client by client; wide linear layers are stepped in their backward pass if that is known to be correct."""
        wide = self.traits.largest_bytes >= WIDE and self.only is None and not self.mixed
        layers = self.traits.layers if wide and how.plain and not how.safe else ()
        if not (own and all(p.is_contiguous() for p in params.values())):
            params = _copied(params)
        # On a CPU, torch runs a GRU or an RNN as a loop of small operations, which is faster than replaying them.
        pays = all(one.kind == "lstm" for one in self.traits.recurrences)
        tapes, losses = self.tapes if self._replays_steps and pays else None, dict[int, Tensor]()
        recurrences = self.traits.recurrences if self.device == "cuda" and not self.mixed else ()
        clients = _SingleClients(on, key, how)

        def train(i: int, before_step: Callable[[], None]) -> None:
            model = take(params, i)
            flat = flattened(model, recurrences)
            losses[i] = descend_single(objective, {**model, **flat}, clients.get(i, before_step), how, layers, tapes)
            if flat:
                torch._foreach_copy_([model[name] for name in flat], list(flat.values()))
            clients.finish(i)

        def train_on_caller(i: int) -> None:
            train(i, clients.reporter(i, self.watch.report))

        indices = range(len(on.weight))
        if tapes is not None and self.replays and 1 < self.threads <= len(indices) and not how.safe:
            rate, form = how.lr if layers else 0.0, _form(params, on)  # with layers, the tape contains the step size

            def key_of(i: int) -> tuple[Any, ...]:
                return id(objective), rate, form, how.steps, how.epochs, how.batch, *clients.signature(i)

            # Clients ascend by size. Starting with the largest keeps all threads busy to the end.
            self._on_threads(indices[::-1], key_of, train_on_caller, train)
        else:
            for i in indices:
                train_on_caller(i)
        self.watch.report(1.0)
        return params, torch.stack([losses[i] for i in indices])

    def _clients_in_cache(self, how: Descent) -> int:
        """How many clients' models stay in the caches of all threads from step to step."""
        if self.device != "cpu" or how.batch is None:
            return 2**62
        held = CACHE_BYTES if self.threads == 1 else THREADED_CACHE_BYTES
        return self.threads * max(1, held // self.traits.parameter_bytes)

    def _in_groups(
        self, objective: Objective, params: Params, on: Examples, key: Key, how: Descent, few: int, *, own: bool
    ) -> tuple[Params, Tensor]:
        """All steps of a few clients, then all steps of the next few."""
        own = own and all(p.is_contiguous() for p in params.values())
        trained = params if own else {name: torch.empty(p.shape, dtype=p.dtype) for name, p in params.items()}
        losses: dict[int, Tensor] = {}
        drawn = DrawnSteps(on, key, how) if DrawnSteps.fit(on, how) else None

        def train(some: slice, watch: Watch) -> None:
            models = {name: value[some] for name, value in trained.items()}
            if not own:  # copied only now, so that they are in the caches
                for name, value in models.items():
                    value.copy_(params[name][some])
            kernels, examples = replace(self, watch=watch), Examples(*(t[some] for t in on))
            batches = steps_of(examples, key[some], how) if drawn is None else drawn.of(some)
            rows, losses[some.start] = kernels._together(
                "fused", objective, models, examples, key[some], how, batches, own=True
            )
            for name, value in rows.items():
                if value.data_ptr() != models[name].data_ptr():
                    models[name].copy_(value)

        def train_on_caller(some: slice) -> None:
            done = sum(map(len, list(losses.values())))
            with self.watch.part(done, some.stop - some.start, len(on.weight)):
                train(some, self.watch)

        if self.threads == 1 or how.safe:  # safe steps measure the curvature, which is not replayed
            for some in even_slices(len(on.weight), few):
                train_on_caller(some)
        else:
            form = _form(trained, on)

            def key_of(some: slice) -> tuple[Any, ...]:
                return id(objective), how, form, some.stop - some.start, on.weight.shape[1]

            jobs = even_slices(len(on.weight), few // self.threads, self.threads)
            self._on_threads(jobs, key_of, train_on_caller, lambda some, check: train(some, Watch(check)))
        return trained, torch.cat([losses[start] for start in sorted(losses)])

    def _on_threads(
        self,
        jobs: Sequence[Job],
        key_of: Callable[[Job], tuple[Any, ...]],
        train_on_caller: Callable[[Job], None],
        train_on_worker: Callable[[Job, Callable[..., None]], None],
    ) -> None:
        """Run all jobs (clients to train) on several threads; jobs with the same `key_of` replay the same tapes.

        Each thread works on its own clients, so that none waits for the others after every product. Only jobs whose
        steps are all replayed run on other threads, since modules and objectives need not be thread-safe, and only if
        their operations take long enough. A job is computed by a single thread wherever it runs, so that its bits do
        not depend on where.
        """
        left = []
        with one_thread():
            for job in jobs:
                if key_of(job) in self.tapes.replayed:
                    left.append(job)
                else:
                    with self.tapes.watch(key_of(job)):
                        train_on_caller(job)
            keys = {key_of(job) for job in left}
            threads = 1  # if tapes were dropped in the meantime
            if keys <= self.tapes.replayed.keys():
                threads = worthwhile_threads(self.tapes.seconds_per_operation(keys), self.threads)
            with self.watch.repeating() as repeat, self.tapes.recording_on_this_thread_only():
                run_jobs(left, train_on_caller, train_on_worker, threads, while_waiting=repeat)
        self.watch.report(1.0)

    def _by_length(
        self, objective: Objective, params: Params, on: Examples, key: Key, how: Descent, *, own: bool
    ) -> tuple[Params, Tensor]:
        """Clients with equally many examples together: no padding, so that a batch holds only its own examples."""
        stacked = replace(self, only="foreach", equal=False)
        trained, losses, done = params if own else _copied(params), torch.empty_like(on.weight[:, 0]), 0
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
        """Each client's examples in turn; after each client, calls `report` so that time limits are checked."""
        for i, m in enumerate(_lengths(on, least)):
            yield _client(on, i, m)
            self.watch.report(0.0)

    def _player(
        self,
        of: tuple[Objective, KernelName, bool],
        params: Params,
        batch: Examples,
        draws: Draws,
        rates: Tensor,
        span: Span | None,
    ) -> Player | None:
        """The captured step for tensors like these, loaded with these models; None if it is not worth capturing yet."""
        objective, name, steps = of

        def variants() -> dict[str, StepFunction]:
            if name == "fused":
                return {"vmap": at_once(objective, None, span, steps=True)}
            functions = {"vmap": at_once(objective, self.traits, steps=steps)}
            if len(batch.weight) <= MOST_ON_STREAMS and not self.traits.recurrent:
                functions["streams"] = by_streams(objective, batch.weight.device, self.traits, steps=steps)
            return functions

        def plain(own: Params, on: Examples, drawn: Draws, rated: Tensor) -> Sequence[Tensor]:
            if name == "fused":
                return [fused_step(objective, own, on, drawn, 1.0, rated, span)]
            slopes, loss = _gradients(objective, own, on, drawn, traits=self.traits)
            if not steps:
                return [loss, *slopes.values()]
            torch._foreach_sub_(list(own.values()), [led(rated, slope) * slope for slope in slopes.values()])
            return [loss]

        player = self.graphs.find(of, variants, plain, params, batch, draws, rates)
        if player is not None:
            player.begin(params, rates)
        return player

    @property
    def splits_by_size(self) -> bool:
        """Whether measures of clients of different sizes are divided into passes with little padding."""
        return self.device == "cuda" and self.traits.independent

    @property
    def _captures(self) -> bool:
        return self.device == "cuda"

    def _fused(
        self,
        objective: Objective,
        params: Params,
        batch: Examples,
        draws: Draws,
        lr: float,
        part: Tensor | None,
        span: Span | None,
        *,
        losses_wanted: bool,
    ) -> Tensor:
        """A fused step; returns the losses before it if `losses_wanted`."""

        def step(inputs: Sequence[Tensor]) -> tuple[Tensor]:
            own, on, drawn, portion = _grouped(inputs, params, draws, part)
            return (fused_step(objective, own, on, drawn, lr, portion, span),)

        if not self._replays_steps:
            return fused_step(objective, params, batch, draws, lr, part, span)
        draws = self.tapes.prepare(objective, draws)
        inputs = [*params.values(), *batch, *draws.tensors, *(() if part is None else (part,))]
        threads = str(torch.get_num_threads())  # which products depend on (`products`)
        of = ("fused", objective, lr, threads, part is None, draws.rows is None, draws.step_key is None)
        found = self.tapes.run(of, step, inputs, draws.step, outputs=losses_wanted)
        self.tapes.note(objective, draws)
        return next(iter(found), torch.empty(0))

    def _slopes(
        self, objective: Objective, params: Params, batch: Examples, draws: Draws
    ) -> tuple[list[Tensor], Tensor]:
        """Every client's gradient, and the losses before the step."""

        def slopes(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            own, on, drawn, _ = _grouped(inputs, params, draws, None)
            found, loss = _gradients(objective, own, on, drawn, traits=self.traits)
            return *found.values(), loss

        if not self._replays_steps:
            *found, loss = slopes([*params.values(), *batch, *draws.tensors])
            return found, loss
        draws = self.tapes.prepare(objective, draws)
        of = ("slopes", objective, draws.rows is None, draws.step_key is None)
        *found, loss = self.tapes.run(of, slopes, [*params.values(), *batch, *draws.tensors], draws.step)
        self.tapes.note(objective, draws)
        return found, loss

    @property
    def _replays_steps(self) -> bool:
        """Whether steps are replayed: not on a GPU, where bits vary, nor with autocast, which caches its casts."""
        return self.device == "cpu" and not self.mixed


def _grouped(
    inputs: Sequence[Tensor], like: Params, draws: Draws, part: Tensor | None
) -> tuple[Params, Examples, Draws, Tensor | None]:
    """Flat inputs regrouped: a stack of models, their examples, their draws, and factors of their step sizes."""
    if part is None:
        return *grouped(inputs, like, draws), None
    return *grouped(inputs[:-1], like, draws), inputs[-1]


def _measure_shared(
    per_example: Callable[[Params, Examples], Tensor], models: Params, on: Examples, rows: int
) -> Tensor:
    """All examples of all clients in blocks of `rows`, through one model after another; examples are independent."""
    n, m = on.weight.shape
    each = [take(models, j) for j in range(next(iter(models.values())).shape[0])]
    flat = zip(*(t.flatten(0, 1).split(rows) for t in on), strict=True)
    per_block = [torch.stack([per_example(model, Examples(*block)) for model in each]) for block in flat]
    values = torch.cat(per_block, dim=1).reshape(len(each), n, m)
    return torch.stack([weighted_mean(of_model, on.weight) for of_model in values], dim=1)


def _measure_own(per_example: Callable[[Params, Examples], Tensor], models: Params, on: Examples) -> Tensor:
    k = next(iter(models.values())).shape[1]
    run = vmap(lambda params, examples: weighted_mean(per_example(params, examples), examples.weight))
    return torch.stack([run({name: value[:, j] for name, value in models.items()}, on) for j in range(k)], dim=1)


def _gradients(
    objective: Objective, params: Params, on: Examples, draws: Draws, *, traits: Traits | None = None
) -> tuple[Params, Tensor]:
    """Every client's gradient and mean training loss; `traits` select the layers made for stacks of clients."""

    def mean_loss(one: Params, examples: Examples, drawn: tuple[Tensor, ...]) -> Tensor:
        with stacked_layers(traits):
            values = training_losses(objective, one, examples, draws.of(drawn))
        return weighted_mean(values, examples.weight)

    # The gradient of the sum over clients: a vmap of `torch.func.grad` gives the same, and imports torch's compiler.
    with torch.enable_grad():
        stacked = {name: value.detach().requires_grad_() for name, value in params.items()}
        losses = vmap(mean_loss)(stacked, on, draws.tensors)
        ends = list(stacked.values())
        slopes = torch.autograd.grad(losses.sum(), ends, allow_unused=True, materialize_grads=True)
    return as_params(params, slopes), losses.detach()


class _SingleClients:
    """The clients of a stack, to be trained one by one without padding; counts the steps taken so far."""

    def __init__(self, on: Examples, key: Key, how: Descent) -> None:
        counts = [reach(on), (on.weight > 0).sum(1), (on.weight == 1).sum(1)]
        self._lengths, self._sizes, self._ones = torch.stack(counts).tolist()  # one synchronisation with a GPU, not 3
        self._on, self._key, self._orders = on, key, Batches.orders_of_all(how, on.weight, key)
        self._batch, self._steps = how.batch, [_steps(how, m) for m in self._lengths]
        self._taken, self._total, self._lock = 0, sum(self._steps), Lock()

    def get(self, i: int, before_step: Callable[[], None]) -> SingleClient:
        """A client; `before_step` is called before each of its steps."""
        unweighted = self._ones[i] == self._lengths[i]
        examples = _client(self._on, i, self._lengths[i])
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


def _form(params: Params, on: Examples) -> tuple[Any, ...]:
    """What the tapes of stacked clients depend on, besides the number of examples."""
    models = tuple((name, p.shape[1:], p.stride()[1:], p.dtype) for name, p in params.items())
    return models, *((t.shape[2:], t.stride()[1:], t.dtype) for t in on)


def _steps(how: Descent, examples: int) -> int:
    """The number of steps in the descent of a client with this many examples."""
    if how.batch is None or how.epochs is None or not examples:
        return how.steps or how.epochs or 1
    return how.epochs * -(-examples // how.batch)


def _lengths(on: Examples, least: int = 0) -> list[int]:
    """The number of rows of each client, at least `least`: not every model takes an empty batch."""
    lengths: list[int] = reach(on).clamp_min(least).tolist()
    return lengths


def _equal_lengths(on: Examples) -> list[tuple[int, list[int]]]:
    """Clients grouped by their number of examples; one that has examples of weight 0 is a group of its own."""
    ends, sizes = torch.stack([reach(on), (on.weight > 0).sum(1)]).tolist()
    groups: dict[tuple[int, int], list[int]] = {}
    for client, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        groups.setdefault((end, -1 if end == size else client), []).append(client)
    return [(m, members) for (m, _), members in groups.items()]


def _client(on: Examples, i: int, m: int) -> Examples:
    return Examples(on.x[i, :m], on.y[i, :m], on.weight[i, :m])


def _copied(params: Params) -> Params:
    """A contiguous copy, which may be written into."""
    return {n: p.clone() if p.is_contiguous() else p.contiguous() for n, p in params.items()}


def _stacked(rows: list[Params]) -> Params:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
