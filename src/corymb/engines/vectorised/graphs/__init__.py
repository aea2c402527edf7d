"""Training steps on a GPU as CUDA graphs: captured once for tensors of the same shapes, replayed without Python.

For small models, a GPU spends its time waiting for kernel launches. A step has several variants (`variants.py`): all
clients at once (vmap), or client by client on a few streams, which is faster if a product of one client fills the GPU.
All variants are captured and timed, and the fastest is used. A step of plain SGD is captured whole, with the clients'
step sizes as an input; for other optimisers only the gradient is, so that their settings may change from round to
round. Random draws depend on keys and on the number of the step, both of which are inputs. Each captured step is
compared with the same step without a graph: a variant that gives a different result, or cannot be captured, is not
used. The first step of clients that all start from one model (`shared_start.py`) is captured on its own, and used if
that is faster.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from corymb.core.objective import Draws, Examples
from corymb.engines.placement import exactly
from corymb.engines.vectorised.graphs.shared_start import SharedStep
from corymb.settings import first_line
from corymb.trees import Params

log = logging.getLogger(__name__)
MIN_STEPS = 20
"""Steps on tensors of the same shapes before a capture pays: a capture takes about as long as ten steps."""
WARM_UP = 3
"""Warm-up steps before a capture, in which libraries select algorithms and allocate memory."""
TIMED_REPLAYS = 5
"""Replays over which a captured step is timed."""
MAX_GRAPHS = 8
"""The most graphs to keep: each holds its inputs on the GPU."""
STALE_TURNS = 4 * MAX_GRAPHS
"""Turns of other graphs after which an unused graph is dropped for a new one. If more than `MAX_GRAPHS` steps
alternate, the first ones keep their graphs: capturing each again on its turn would cost more than it gains."""

MANY_ENTRIES = 2**25
"""Entries of a stack from which `_repeat` is faster than copying an expanded tensor. Measured on an H200: 0.6 instead
of 0.9 ms for 321 million entries; three times as slow for a million."""
COPY_BLOCK_ROWS = 64
"""Rows that `_repeat` copies one by one; the others are copies of this block."""

TOLERANCE = {torch.float64: 1e-8, torch.float32: 0.02}
"""The largest difference between two variants, relative to the step, that rounding can explain."""
MIXED_TOLERANCE = 0.25
"""The same in mixed precision; a variant that misses a layer, or steps twice, differs by more."""
TF32_TOLERANCE = MIXED_TOLERANCE / 4
"""The same in TF32, which has two bits more than bfloat16."""
NOISE_FACTOR = 4.0
"""A further tolerance: this many times the difference between a plain step and the same step at full precision."""

StepFunction = Callable[[Params, Examples, Draws, Tensor], Sequence[Tensor]]
"""Returns clients' losses and gradients, or takes the step in place, with their step sizes, and returns losses."""


class Replayable(Protocol):
    """A captured piece of work."""

    def replay(self) -> None: ...


class _Rerun:
    """Stands in for a graph without a GPU: runs the work itself, so that everything but the capture can be tested."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


@dataclass
class Player:
    """A captured step and the tensors that it reads and writes."""

    params: Params
    batch: Examples
    drawn: tuple[Tensor, ...]
    number: Tensor
    """The number of the step."""
    rates: Tensor
    """The step size of each client."""
    outputs: list[Tensor]
    """The clients' losses, then gradients if the step returns them."""
    graph: Replayable
    variant: str
    shared: _SharedStart | None = None
    """The captured first step of clients that all start from one model, if it is faster."""
    is_first: bool = False
    """Whether `shared` is the next step."""

    def begin(self, params: Params, rates: Tensor) -> None:
        """Load the models to start from, and the clients' step sizes."""
        self.is_first = self.shared is not None and start_from_one(params)
        if self.shared is not None and self.is_first:
            one = [rows[0] for rows in params.values()]
            torch._foreach_copy_([*self.shared.start.values(), self.rates], [*one, rates])
            return
        different = [(self.rates, rates)]
        for into, rows in zip(self.params.values(), params.values(), strict=True):
            if _is_one_row(rows) and rows.dtype == into.dtype:
                _repeat(rows[0], into)
            else:
                different.append((into, rows))
        torch._foreach_copy_([into for into, _ in different], [rows for _, rows in different])

    def step(self, batch: Examples, draws: Draws) -> tuple[Tensor, list[Tensor]]:
        """Replay one step; returns losses and gradients (none if it took the step), valid until the next replay."""
        torch._foreach_copy_([*self.batch, *self.drawn], [*batch, *draws.tensors])
        self.number.fill_(draws.step)
        captured = self.shared if self.shared is not None and self.is_first else self
        captured.graph.replay()
        self.is_first = False
        return captured.outputs[0], captured.outputs[1:]


@dataclass
class _SharedStart:
    """A captured first step from one model; it reads and writes the tensors of a `Player` as well."""

    start: Params
    """The model that all clients start from."""
    outputs: list[Tensor]
    graph: Replayable


def start_from_one(params: Params) -> bool:
    """Whether the models of several clients are the same model in memory, as those of expanded tensors are."""
    return all(len(rows) > 1 and rows.stride(0) == 0 for rows in params.values())


def _is_one_row(rows: Tensor) -> bool:
    """Whether all rows of a large stack are the same row in memory, as those of an expanded tensor are."""
    return len(rows) > 1 and rows.stride(0) == 0 and rows.numel() >= MANY_ENTRIES and rows[0].is_contiguous()


def _repeat(row: Tensor, into: Tensor) -> None:
    """Copy one row into all rows of a contiguous tensor.

    A copy from an expanded tensor goes entry by entry; `cat` copies at the speed of the memory.
    """
    row, into = row.reshape(1, -1), into.flatten(1)
    block, rest = into[:COPY_BLOCK_ROWS], into[COPY_BLOCK_ROWS:]
    torch.cat([row] * len(block), out=block)
    if len(rest):
        whole, more = divmod(len(rest), COPY_BLOCK_ROWS)
        torch.cat([block] * whole + [block[:more]], out=rest)


@dataclass
class _Seen:
    """The history of steps with one signature."""

    steps: int = 0
    """Steps taken without a graph."""
    failed: bool = False
    """Whether no variant could be captured correctly."""
    player: Player | None = None
    turn: int = 0
    """The turn in which it was last asked for."""
    tried_shared: bool = False
    """Whether a first step from one model was captured, or could not be."""


@dataclass
class Graphs:
    """The captured steps of an engine."""

    seen: dict[Any, _Seen] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    """Objectives kept alive, since signatures contain their ids."""
    turns: int = 0
    """How often the signature changed from one request to the next."""
    latest: _Seen | None = None

    def find(
        self,
        kind: Sequence[Any],
        variants: Callable[[], Mapping[str, StepFunction]],
        plain: StepFunction,
        params: Params,
        batch: Examples,
        draws: Draws,
        rates: Tensor,
        shared: SharedStep | None = None,
    ) -> Player | None:
        """The captured step for tensors of these shapes, or None; captured once there were `MIN_STEPS` such steps.

        `kind` has everything else that distinguishes steps, the objective first. `variants` returns the functions to
        capture, and `plain` is the step that they are checked against; `shared` is that step from one model, if it may
        be captured too.
        """
        seen = self.seen.setdefault(self._signature(kind, params, batch, draws), _Seen())
        self.turns += seen is not self.latest
        self.latest, seen.turn = seen, self.turns
        if seen.player is None and seen.steps >= MIN_STEPS and not seen.failed and self._make_room():
            seen.player = _fastest(variants(), plain, params, batch, draws, rates)
            seen.failed = seen.player is None
        if seen.player is not None and shared is not None and not seen.tried_shared and start_from_one(params):
            seen.tried_shared = True
            _add_shared_start(seen.player, shared, plain, params, batch, draws, rates)
        return seen.player

    def _make_room(self) -> bool:
        """Whether another graph can be kept; drops the least recently used one if it is stale."""
        kept = [other for other in self.seen.values() if other.player is not None]
        oldest = min(kept, key=lambda other: other.turn, default=None)
        if oldest is None or len(kept) < MAX_GRAPHS:
            return True
        if self.turns - oldest.turn < STALE_TURNS:
            return False
        oldest.player, oldest.steps, oldest.tried_shared = None, 0, False
        return True

    def count(self, kind: Sequence[Any], params: Params, batch: Examples, draws: Draws) -> None:
        """Count a step that was taken without a graph."""
        self.seen.setdefault(self._signature(kind, params, batch, draws), _Seen()).steps += 1

    def _signature(self, kind: Sequence[Any], params: Params, batch: Examples, draws: Draws) -> tuple[Any, ...]:
        if not any(one is kind[0] for one in self.held):
            self.held.append(kind[0])
        tensors = (*params.values(), *batch, *draws.tensors)
        return (id(kind[0]), *kind[1:], *((tuple(t.shape), t.dtype) for t in tensors))


def _fastest(
    variants: Mapping[str, StepFunction],
    plain: StepFunction,
    params: Params,
    batch: Examples,
    draws: Draws,
    rates: Tensor,
) -> Player | None:
    best, least, times = None, float("inf"), []
    try:
        check = _Check(plain, params, batch, draws, rates)
    except torch.OutOfMemoryError:  # a step fits into memory, but not a second copy of its tensors
        log.info("steps are not captured: not enough memory")
        return None
    for variant, function in variants.items():
        try:
            player = capture(variant, function, params, batch, draws, rates)
            problem = check.problem(player)
        except (RuntimeError, NotImplementedError) as error:
            log.info("the step by %s cannot be captured: %s", variant, first_line(error))
            torch.cuda.synchronize() if batch.x.is_cuda else None
            continue
        took = _seconds(player.graph.replay, player.number)
        times.append(f"{variant} {1e3 * took:.2f} ms")
        if problem is not None:
            log.warning("the captured step by %s (%.2f ms) is not used: %s", variant, 1e3 * took, problem)
        elif took < least:
            best, least = player, took
    if best is not None:
        log.info("steps are captured by %s: %s", best.variant, ", ".join(times))
    return best


def capture(
    variant: str, function: StepFunction, params: Params, batch: Examples, draws: Draws, rates: Tensor
) -> Player:
    """Capture a step on copies of these tensors."""
    params = {name: value.clone(memory_format=torch.contiguous_format) for name, value in params.items()}
    batch, drawn = Examples(*(t.clone() for t in batch)), tuple(t.clone() for t in draws.tensors)
    number = torch.full((), int(draws.step), dtype=torch.int64, device=batch.weight.device)
    outputs: list[Tensor] = []
    rates = rates.clone()

    def work() -> None:
        outputs[:] = function(params, batch, draws._replace(step=number).of(drawn), rates)

    return Player(params, batch, drawn, number, rates, outputs, _recorded(work, on_gpu=batch.x.is_cuda), variant)


def _recorded(work: Callable[[], None], *, on_gpu: bool, beside: Replayable | None = None) -> Replayable:
    """Capture work; `beside` is a graph never replayed at the same time, whose memory may be used."""
    if not on_gpu:
        return _Rerun(work)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph, pool = torch.cuda.CUDAGraph(), beside.pool() if isinstance(beside, torch.cuda.CUDAGraph) else None
    with _uncollected(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        work()  # its outputs are in the graph's memory pool, and every replay overwrites them
    return graph


def _add_shared_start(
    player: Player,
    function: SharedStep,
    plain: StepFunction,
    params: Params,
    batch: Examples,
    draws: Draws,
    rates: Tensor,
) -> None:
    """Capture a first step from one model too, and keep it if it gives the plain step's result and is faster."""

    def begin_and_step() -> None:
        player.begin(params, rates)
        player.step(batch, draws)

    from_copies = _seconds(begin_and_step, player.number)
    try:
        check = _Check(plain, params, batch, draws, rates)
        player.shared = _capture_shared_start(player, function, params, draws)
        problem = check.problem(player)
    except Exception as error:  # whatever a model raises in this way of calling it, it trains from copies
        log.info("the first step from one model cannot be captured: %s", first_line(error))
        torch.cuda.synchronize() if batch.x.is_cuda else None
        player.shared = None
        return
    took = _seconds(begin_and_step, player.number)
    log.info("the first step from one model takes %.2f ms, from copies %.2f ms", 1e3 * took, 1e3 * from_copies)
    if problem is not None:
        log.warning("the captured first step from one model is not used: %s", problem)
    if problem is not None or took >= from_copies:
        player.shared = None


def _capture_shared_start(player: Player, function: SharedStep, params: Params, draws: Draws) -> _SharedStart:
    start, outputs = {name: rows[0].clone() for name, rows in params.items()}, list[Tensor]()

    def work() -> None:
        drawn = draws._replace(step=player.number).of(player.drawn)
        outputs[:] = function(player.params, start, player.batch, drawn, player.rates)

    return _SharedStart(start, outputs, _recorded(work, on_gpu=player.number.is_cuda, beside=player.graph))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Suspend garbage collection: a graph of an earlier engine that is destroyed during a capture makes it fail."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Check:
    """Compares captured steps with the same step without a graph.

    That step is also taken at full precision; the difference is the rounding error to expect (`noise`).
    """

    def __init__(self, plain: StepFunction, params: Params, batch: Examples, draws: Draws, rates: Tensor) -> None:
        self.given = params, batch, draws, rates
        self.want = self._after(plain)
        self.finite = torch.stack([end.flatten(1).isfinite().all(1) for end in self.want]).all(0)
        with exactly(rates.device.type):
            exact = self._after(plain)
        self.noise = [self._norm(one - other) for one, other in zip(self.want, exact, strict=True)]

    def _after(self, plain: StepFunction) -> list[Tensor]:
        """The losses (n 1), then gradients and the parameters after the step (n ...)."""
        params, batch, draws, rates = self.given
        ends = {name: value.clone() for name, value in params.items()}
        loss, *slopes = plain(ends, batch, draws, rates)
        return [loss.unsqueeze(1), *slopes, *ends.values()]

    def problem(self, player: Player) -> str | None:
        """The first output of a captured step that differs by more than rounding, described; None if none does."""
        params, batch, draws, rates = self.given
        player.begin(params, rates)
        loss, slopes = player.step(batch, draws)
        got = [loss.unsqueeze(1), *slopes, *player.params.values()]
        before = [torch.zeros((), device=loss.device)] * (1 + len(slopes)) + list(params.values())
        names = ["the losses", *(f"the gradient of {name}" for name, _ in zip(params, slopes, strict=False)), *params]
        if not self.finite.any():  # clients that diverged cannot be compared
            return "all clients diverged, so it cannot be checked"
        moved = [self._norm(end - start) for end, start in zip(self.want, before, strict=True)]
        whole = sum(size**2 for size in moved[1:]) ** 0.5
        tolerated = _tolerance(loss)
        epsilon = 4 * torch.finfo(loss.dtype).eps
        for one, other, size, noise, name in zip(got, self.want, moved, self.noise, names, strict=True):
            error = self._norm(one - other)
            step = size + 1e-3 * whole  # the step of a parameter without influence is pure rounding error
            if not error <= tolerated * step + NOISE_FACTOR * noise + epsilon * self._norm(other):
                return f"{name}: {error:.1e} from a plain step of length {size:.1e} with rounding error {noise:.1e}"
        return None

    def _norm(self, rows: Tensor) -> float:
        """The norm over the clients that have not diverged."""
        return float(torch.linalg.vector_norm(rows[self.finite], dtype=torch.float64))


def _tolerance(loss: Tensor) -> float:
    """The tolerance for losses of this dtype, and all that led to them, in the current precision."""
    if torch.is_autocast_enabled(loss.device.type):
        return MIXED_TOLERANCE
    if loss.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        return TF32_TOLERANCE
    return TOLERANCE.get(loss.dtype, MIXED_TOLERANCE)


def _seconds(replay: Callable[[], object], where: Tensor) -> float:
    replay()
    began = _now(where)
    for _ in range(TIMED_REPLAYS):
        replay()
    return (_now(where) - began) / TIMED_REPLAYS


def _now(where: Tensor) -> float:
    if where.is_cuda:
        torch.cuda.synchronize(where.device)
    return time.perf_counter()


class OnStreams:
    """Runs work client by client, on a few CUDA streams in parallel; without a GPU, in sequence."""

    def __init__(self, device: torch.device, number: int = 8) -> None:
        self.streams = [torch.cuda.Stream(device) for _ in range(number)] if device.type == "cuda" else []

    def each(self, clients: int, work: Callable[[int], None]) -> None:
        """Run `work(i)` for each client i; what is launched afterwards on the current stream waits for all of it."""
        if not self.streams:
            for i in range(clients):
                work(i)
            return
        current = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(current)
        for i in range(clients):
            with torch.cuda.stream(self.streams[i % len(self.streams)]):
                work(i)
        for stream in self.streams:
            current.wait_stream(stream)
