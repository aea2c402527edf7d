"""How a stack of clients computes losses, gradients and descents at once.

Three kernels, one contract (`corymb.core.client.Kernel`), the same numbers:

* fused: every layer a batched product whose backward takes the SGD step in place, so that no gradient is ever stored;
  where all steps see the same few examples, the layer that reads them is stepped by way of them (`span`);
* foreach: gradients of all clients by one backward through vmap, and in-place steps on the stacked parameters;
* serial: client by client, without padding; takes every model. Chosen, not asked for, it steps linear layers in place
  (`single`).

Which one does a piece of work is a pure function of model, optimiser and device: `choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from corymb.engines.vectorised.blocks import mean_of_blocks, passes, reach, rows_in_cache, rows_of_blocks
from corymb.engines.vectorised.flat_weights import flattened
from corymb.engines.vectorised.fused import fused_step
from corymb.engines.vectorised.graphs import Graphs, Player, StepFunction
from corymb.engines.vectorised.products import Products, onednn_is_faster
from corymb.engines.vectorised.single import SingleClient, descend_single, grouped
from corymb.engines.vectorised.span import Span
from corymb.engines.vectorised.stacked import stacked_layers
from corymb.engines.vectorised.tape import Tapes
from corymb.engines.vectorised.threads import even_slices, one_thread, share
from corymb.engines.vectorised.traits import Traits
from corymb.engines.vectorised.ways import at_once, by_streams
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

Piece = TypeVar("Piece")
WIDE = 2**18
"""Layers with at least this many bytes of weights are stepped in their backward pass."""
FEW = 64
"""Stepping clients one by one on CUDA streams is tried for at most this many clients."""
LONG = 100
"""A step is captured in the middle of a descent only if at least this many steps are left."""
SMALL = 2**16
"""Up to this many parameters, Python overhead per client outweighs the arithmetic on a CPU: clients run together."""
ROOMY = 2**21
"""Above this many bytes of activations per batch, a single thread is faster client by client."""
CONVOLVED, RECURRED, BY_ONEDNN = 2**20, 2**20, 2**16
"""Up to this many bytes of activations per batch, clients run together on a CPU: limits for convolutional models, for
recurrent ones (half of it for GRUs), and for LSTMs, which oneDNN makes fast for a single client. Measured with 16 to
200 clients: at these limits, running together is 1.1 to 1.8 times as fast."""
CACHED = 2**23
"""Bytes of models for each thread that stay in a processor's caches from step to step."""
LARGE, BRIEF = 300_000, 20
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
    convolutional or recurrent model can be run for many clients at once, where that is little work (`is_little`).
    """
    if device == "cpu" and (traits.convolutional or traits.recurrent):
        little = together and examples is not None and not mixed and is_little(traits, examples)
        return "foreach" if little else "serial"
    if traits.fusable and not mixed and (how is None or how.plain):
        return "serial" if threads == 1 and device == "cpu" and how is not None and fits_cache(traits, how) else "fused"
    passing = 0 if how is None or examples is None else examples * traits.activation_bytes
    if device == "cpu" and threads == 1 and (traits.parameters > SMALL or passing > ROOMY):
        return "serial"  # one thread gains nothing from batching large products
    return "foreach"


def fits_cache(traits: Traits, how: Descent) -> bool:
    """Whether it pays to take all steps of one client before those of the next: small steps of a large model.

    A stack of large models does not fit a processor's caches, so each step of all clients reads and writes all of it in
    memory; one model stays in the caches from step to step. Products of more than a few examples hide that.
    """
    small = how.batch is not None and how.batch <= BRIEF and not how.safe
    return small and traits.parameters >= LARGE


def is_little(traits: Traits, examples: int) -> bool:
    """Whether a batch of this size is too little work to run a convolutional or recurrent model client by client."""
    gated = any(one.kind == "gru" for one in traits.recurrences)
    most = BY_ONEDNN if traits.lstm else RECURRED // 2 if gated else RECURRED if traits.recurrent else CONVOLVED
    return examples * traits.activation_bytes <= most and traits.parameters <= SMALL


class Watch:
    """Observes how much a kernel works on at once, and reports its progress.

    Before each step `tell` gets the part that is done of the descents of all clients of the stack, and 1 after them;
    during other work, which has no steps, it gets 0.
    """

    def __init__(self, tell: Callable[[float], None] = lambda part: None) -> None:
        self.rows, self.batch, self.brief = 1, 0, False
        self.how: Descent | None = None
        self.tell = tell

    @contextmanager
    def trial(self, *, brief: bool) -> Iterator[None]:
        """Observe anew; `brief` descents take one step, with one example instead of a batch."""
        self.rows, self.batch, self.brief = 1, 0, brief
        try:
            yield
        finally:
            self.brief = False

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Report no progress for work that is only repeated for a comparison."""
        tell, self.tell = self.tell, lambda part: None
        try:
            yield
        finally:
            self.tell = tell

    @contextmanager
    def part(self, done: int, clients: int, everybody: int) -> Iterator[None]:
        """Report progress as part of a larger stack, of which `done` clients are finished and `clients` descend now."""
        tell, self.tell = self.tell, lambda part: tell((done + clients * part) / everybody)
        try:
            yield
        finally:
            self.tell = tell

    def see(self, on: Examples) -> None:
        """Note the number of models in a stack."""
        self.rows = max(self.rows, len(on.weight))
        self.tell(0.0)

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
            lambda some, who: self._measure(
                what, objective, models if shared else take(models, who), some, shared=shared
            ),
            on,
            parts,
        )

    def _measure(self, what: Measure, objective: Objective, models: Params, on: Examples, *, shared: bool) -> Tensor:
        self.watch.tell(0.0)
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
            lambda some, who: self._of_each(
                what, objective, params if shared else take(params, who), some, shared=shared
            ),
            on,
            parts,
        )

    def _of_each(self, what: Pointwise, objective: Objective, params: Params, on: Examples, *, shared: bool) -> Tensor:
        self.watch.tell(0.0)
        say = pointwise(what, objective)
        if self.pick(None, on.weight.shape[1]) == "serial" and not (shared and self.traits.independent):
            rows = [
                say(params if shared else take(params, i), client)
                for i, client in enumerate(self._clients(on, least=1))
            ]
            longest = on.weight.shape[1]
            return torch.stack([torch.cat([row, row.new_zeros(longest - len(row), *row.shape[1:])]) for row in rows])
        if shared:
            with self._large_products():
                said = say(params, Examples(*(t.flatten(0, 1) for t in on)))
            return said.reshape(*on.weight.shape, *said.shape[1:])
        with stacked_layers(self.traits):
            each: Tensor = vmap(say)(params, on)
        return each

    def _large_products(self) -> AbstractContextManager[Any]:
        """The mode for a forward pass of one model on the examples of many clients."""
        return Products() if self.device == "cpu" and not self.mixed and onednn_is_faster() else nullcontext()

    def gradient(self, objective: Objective, params: Params, on: Examples, key: Key) -> Params:
        """Every client's gradient of its own model: n rows."""
        self.watch.see(on)
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
        self.watch.see(on)
        how = self.watch.descent(how)
        name, steps = self.pick(how, on.weight.shape[1]), _steps(how, on.weight.shape[1])
        if name == "serial":
            work = self._by_length if self.equal else self._one_by_one
            return work(objective, params, on, key, how, own=own)
        if name == "fused" and (few := self._clients_in_cache(how)) < len(on.weight):
            return self._few_by_few(objective, params, on, key, how, few, own=own)
        part = None
        if how.safe:
            places = Batches.sample(how, on.weight, key)
            some, same = on if places is None else _rows(on, places, None), Draws(key, 0, places)

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
        if name == "fused" and self._captures:  # the size of a step is an input of its graph: so it is before, too
            lr, part = 1.0, rates
        before, player, stepper, slopes = torch.empty(0), None, None, list[Tensor]()
        for taken, (batch, active, draws) in enumerate(_batches(on, key, how, padded=self.traits.independent)):
            self.watch.tell(taken / steps)
            first = not draws.step
            soon = first or (how.steps or 0) - draws.step >= LONG
            if player is None and soon and self._captures:
                player = self._player(of, params, batch, draws, rates, span)
                params = params if player is None else player.params
                if stepper is not None:
                    stepper.params = list(params.values())  # it goes on there, with its momentum
            if first and player is None and not own:
                params = {**params, **_copied({n: params[n] for n in start if n in params})}
            if first and name != "fused":
                stepper = Stepper(how, list(params.values()), part, stacked=True)
            if player is not None:
                loss, slopes = player.step(batch, draws)
                loss = loss.clone() if first else loss
            elif stepper is None:
                loss = self._fused(objective, params, batch, draws, lr, part, span, wanted=first)
            else:
                slopes, loss = self._slopes(objective, params, batch, draws)
            if player is None and self._captures:
                self.graphs.count(of, params, batch, draws)
            if stepper is not None and slopes:  # a client that is done has no weight: its fused steps are 0
                stepper.step(slopes, active)
            before = loss if first else before
        self.watch.tell(1.0)
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
        # On a CPU, torch takes a GRU or an RNN apart into small operations, in a loop that is faster than a replay.
        whole = all(one.kind == "lstm" for one in self.traits.recurrences)
        tapes, losses = self.tapes if self._plays and whole else None, dict[int, Tensor]()
        recurrences = self.traits.recurrences if self.device == "cuda" and not self.mixed else ()
        clients = _SingleClients(on, key, how)

        def train(i: int, begins: Callable[[], None]) -> None:
            model = take(params, i)
            flat = flattened(model, recurrences)
            losses[i] = descend_single(objective, {**model, **flat}, clients.get(i, begins), how, layers, tapes)
            if flat:
                torch._foreach_copy_([model[name] for name in flat], list(flat.values()))
            clients.finish(i)

        def train_here(i: int) -> None:
            train(i, clients.teller(i, self.watch.tell))

        everybody = range(len(on.weight))
        if tapes is not None and self.replays and 1 < self.threads <= len(everybody) and not how.safe:
            rate, like = how.lr if layers else 0.0, _form(params, on)  # of which the tape is

            def name_of(i: int) -> tuple[Any, ...]:
                return id(objective), rate, like, how.steps, how.epochs, how.batch, *clients.shapes(i)

            # The largest clients come last: with them first, all threads are busy to the end.
            self._on_threads(everybody[::-1], name_of, train_here, train)
        else:
            for i in everybody:
                train_here(i)
        self.watch.tell(1.0)
        return params, torch.stack([losses[i] for i in everybody])

    def _clients_in_cache(self, how: Descent) -> int:
        """How many clients' models stay in the caches of all threads from step to step."""
        if self.device != "cpu" or how.batch is None:
            return 2**62
        return self.threads * max(1, CACHED // self.traits.parameter_bytes)

    def _few_by_few(
        self, objective: Objective, params: Params, on: Examples, key: Key, how: Descent, few: int, *, own: bool
    ) -> tuple[Params, Tensor]:
        """All steps of a few clients before those of the next."""
        own = own and all(p.is_contiguous() for p in params.values())
        trained = params if own else {name: torch.empty(p.shape, dtype=p.dtype) for name, p in params.items()}
        losses: dict[int, Tensor] = {}

        def train(some: slice, watch: Watch) -> None:
            mine = {name: value[some] for name, value in trained.items()}
            if not own:  # now, so that they are in the caches
                for name, value in mine.items():
                    value.copy_(params[name][some])
            kernels, given = replace(self, watch=watch, only="fused"), Examples(*(t[some] for t in on))
            rows, losses[some.start] = kernels.descend(objective, mine, given, key[some], how, own=True)
            for name, value in rows.items():
                if value.data_ptr() != mine[name].data_ptr():
                    mine[name].copy_(value)

        def train_here(some: slice) -> None:
            done = sum(map(len, list(losses.values())))
            with self.watch.part(done, some.stop - some.start, len(on.weight)):
                train(some, self.watch)

        if self.threads == 1 or how.safe:  # the curvature, which safe steps measure, is not replayed
            for some in even_slices(len(on.weight), few):
                train_here(some)
        else:
            like = _form(trained, on)

            def name_of(some: slice) -> tuple[Any, ...]:
                return id(objective), how, like, some.stop - some.start, on.weight.shape[1]

            pieces = even_slices(len(on.weight), few // self.threads, self.threads)
            self._on_threads(pieces, name_of, train_here, lambda some, check: train(some, Watch(check)))
        return trained, torch.cat([losses[start] for start in sorted(losses)])

    def _on_threads(
        self,
        pieces: Sequence[Piece],
        name_of: Callable[[Piece], tuple[Any, ...]],
        train_here: Callable[[Piece], None],
        train_elsewhere: Callable[[Piece, Callable[..., None]], None],
    ) -> None:
        """Train all pieces, each thread pieces of its own; pieces of one name take the same tapes.

        No thread waits for the others after every product. Only steps that are replayed run on other threads, since
        modules and objectives need not be thread-safe. Every piece has a single thread wherever it runs, so that its
        bits do not depend on that.
        """
        left = []
        with one_thread():
            for piece in pieces:
                if name_of(piece) in self.tapes.replayed:
                    left.append(piece)
                else:
                    with self.tapes.watch(name_of(piece)):
                        train_here(piece)
            if all(name_of(piece) in self.tapes.replayed for piece in left):
                share(left, train_here, train_elsewhere, self.threads, lambda: self.watch.tell(0.0))
            else:  # tapes were dropped meanwhile
                for piece in left:
                    train_here(piece)
        self.watch.tell(1.0)

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
        """One client's examples after another; reports after each that time has passed."""
        for i, m in enumerate(_lengths(on, least)):
            yield _client(on, i, m)
            self.watch.tell(0.0)

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

        def ways() -> dict[str, StepFunction]:
            if name == "fused":
                return {"vmap": at_once(objective, None, span, steps=True)}
            found = {"vmap": at_once(objective, self.traits, steps=steps)}
            if len(batch.weight) <= FEW and not self.traits.recurrent:
                found["streams"] = by_streams(objective, batch.weight.device, self.traits, steps=steps)
            return found

        def plain(own: Params, on: Examples, drawn: Draws, rated: Tensor) -> Sequence[Tensor]:
            if name == "fused":
                return [fused_step(objective, own, on, drawn, 1.0, rated, span)]
            slopes, loss = _gradients(objective, own, on, drawn, traits=self.traits)
            if not steps:
                return [loss, *slopes.values()]
            torch._foreach_sub_(list(own.values()), [led(rated, slope) * slope for slope in slopes.values()])
            return [loss]

        player = self.graphs.find(of, ways, plain, params, batch, draws, rates)
        if player is not None:
            player.begin(params, rates)
        return player

    @property
    def cuts_unlike_sizes(self) -> bool:
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
        wanted: bool,
    ) -> Tensor:
        """A fused step; returns the losses before it if `wanted`."""

        def step(inputs: Sequence[Tensor]) -> tuple[Tensor]:
            own, on, drawn, portion = _grouped(inputs, params, draws, part)
            return (fused_step(objective, own, on, drawn, lr, portion, span),)

        if not self._plays:
            return fused_step(objective, params, batch, draws, lr, part, span)
        draws = self.tapes.prepare(objective, draws)
        inputs = [*params.values(), *batch, *draws.tensors, *(() if part is None else (part,))]
        threads = str(torch.get_num_threads())  # which products depend on (`products`)
        of = ("fused", objective, lr, threads, part is None, draws.rows is None, draws.step_key is None)
        found = self.tapes.run(of, step, inputs, draws.step, outputs=wanted)
        self.tapes.note(objective, draws)
        return next(iter(found), torch.empty(0))

    def _slopes(
        self, objective: Objective, params: Params, batch: Examples, draws: Draws
    ) -> tuple[list[Tensor], Tensor]:
        """Every client's gradients, and the losses before the step."""

        def slopes(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            own, on, drawn, _ = _grouped(inputs, params, draws, None)
            found, loss = _gradients(objective, own, on, drawn, traits=self.traits)
            return *found.values(), loss

        if not self._plays:
            *found, loss = slopes([*params.values(), *batch, *draws.tensors])
            return found, loss
        draws = self.tapes.prepare(objective, draws)
        of = ("slopes", objective, draws.rows is None, draws.step_key is None)
        *found, loss = self.tapes.run(of, slopes, [*params.values(), *batch, *draws.tensors], draws.step)
        self.tapes.note(objective, draws)
        return found, loss

    @property
    def _plays(self) -> bool:
        """Whether steps are replayed: not on a GPU, where bits vary, nor with autocast, which caches its casts."""
        return self.device == "cpu" and not self.mixed


def _grouped(
    inputs: Sequence[Tensor], like: Params, draws: Draws, part: Tensor | None
) -> tuple[Params, Examples, Draws, Tensor | None]:
    """Flat inputs regrouped: a stack of models, their examples, their draws, their parts of a step."""
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
    said = [torch.stack([per_example(model, Examples(*block)) for model in each]) for block in flat]
    values = torch.cat(said, dim=1).reshape(len(each), n, m)
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

    # The gradient of everybody's sum: a vmap of `torch.func.grad` gives the same, and imports torch's compiler.
    with torch.enable_grad():
        stacked = {name: value.detach().requires_grad_() for name, value in params.items()}
        losses = vmap(mean_loss)(stacked, on, draws.tensors)
        ends = list(stacked.values())
        slopes = torch.autograd.grad(losses.sum(), ends, allow_unused=True, materialize_grads=True)
    return as_params(params, slopes), losses.detach()


class _SingleClients:
    """The clients of a stack one by one, without padding, and how many of their steps have been taken."""

    def __init__(self, on: Examples, key: Key, how: Descent) -> None:
        counts = [reach(on), (on.weight > 0).sum(1), (on.weight == 1).sum(1)]
        self._lengths, self._sizes, self._ones = torch.stack(counts).tolist()  # at once: each would wait for a GPU
        self._on, self._key, self._orders = on, key, Batches.orders_of_all(how, on.weight, key)
        self._batch, self._steps = how.batch, [_steps(how, m) for m in self._lengths]
        self._taken, self._all, self._lock = 0, sum(self._steps), Lock()

    def get(self, i: int, begins: Callable[[], None]) -> SingleClient:
        """One client; `begins` is called before every step."""
        alike = self._ones[i] == self._lengths[i]
        examples = _client(self._on, i, self._lengths[i])
        return SingleClient(examples, self._key[i], self._orders[i], self._sizes[i], alike, begins)

    def shapes(self, i: int) -> tuple[int | bool, ...]:
        """Equal for clients whose steps have the same numbers of examples, and weights of the same kind."""
        size, alike = self._sizes[i], self._ones[i] == self._lengths[i]
        if self._batch is None or not self._lengths[i]:
            return alike, self._lengths[i]
        return alike, min(size, self._batch), size % self._batch, size <= self._batch

    def teller(self, i: int, tell: Callable[[float], None]) -> Callable[[], None]:
        """Reports the progress of the stack when a client's next step begins.

        Curvature is no step of the descent, but looks like some: a client is never said to have more than it has.
        """
        own = count()
        return lambda: tell((self._taken + min(next(own), self._steps[i] - 1)) / self._all)

    def finish(self, i: int) -> None:
        """Count a client's steps as taken; clients may descend on several threads."""
        with self._lock:
            self._taken += self._steps[i]


def _form(params: Params, on: Examples) -> tuple[Any, ...]:
    """What the tapes of stacked clients depend on, beside their numbers of examples."""
    models = tuple((name, p.shape[1:], p.stride()[1:], p.dtype) for name, p in params.items())
    return models, *((t.shape[2:], t.stride()[1:], t.dtype) for t in on)


def _steps(how: Descent, examples: int) -> int:
    """The number of steps in the descent of a client with this many examples."""
    if how.batch is None or how.epochs is None or not examples:
        return how.steps or how.epochs or 1
    return how.epochs * -(-examples // how.batch)


def _batches(
    on: Examples, key: Key, how: Descent, *, padded: bool = True
) -> Iterator[tuple[Examples, Tensor | None, Draws]]:
    """The batches of all clients. Without `padded`, for clients of equal size, a short last batch is not filled up."""
    m = on.weight.shape[1]
    for step, (rows, active) in enumerate(Batches(how, on.weight, key)):
        if rows is not None and how.batch is not None and not padded:
            rows = rows[:, : m - step % -(-m // how.batch) * how.batch]
        yield (on if rows is None else _rows(on, rows, active)), active, Draws(key, step, rows)


def _rows(on: Examples, rows: Tensor, active: Tensor | None) -> Examples:
    """Some rows of every client's examples; row -1 gets weight 0."""
    count = rows >= 0 if active is None else (rows >= 0) & active[:, None]
    n, m = on.weight.shape
    flat = (rows.clamp_min(0) + m * torch.arange(n, device=rows.device)[:, None]).flatten()
    # Rows of one flat tensor: twice as fast as x[i, j].
    flat_rows = (t.reshape(n * m, *t.shape[2:]).index_select(0, flat) for t in on)
    x, y, weight = (t.unflatten(0, rows.shape) for t in flat_rows)
    return Examples(x, y, torch.where(count, weight, 0))


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
