"""Gradients on a GPU as CUDA graphs: captured once for tensors of the same shapes, replayed without Python.

For small models a GPU waits for launches, not for arithmetic. A step can be captured in several ways (`ways`): all
clients at once (vmap), or client by client on a few streams, which is faster where a product of one client fills the
GPU. All are captured and timed, and the fastest one is used. A plain step is captured whole, with the rates of clients
as an input; of others only the gradient is, so that an optimiser's settings may change from round to round. What is
random is drawn from keys and from the number of the step, both of which are inputs. The first step that a graph takes
is compared with the same step without one: a way that gives something else, or cannot be captured, is not used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from corymb.core.objective import Draws, Examples
from corymb.engines.placement import exactly
from corymb.settings import first_line
from corymb.trees import Params

log = logging.getLogger(__name__)
WORTH = 20
"""Steps on tensors of the same shapes before a capture pays: it takes about as long as ten."""
WARM = 3
"""Steps before a capture, in which libraries choose their ways and take their memory."""
TIMED = 5
"""Replays by which two ways of one step are compared."""
MOST = 8
"""Graphs that are kept: each holds its inputs on the GPU."""
STALE = 4 * MOST
"""Turns of other graphs after which one that was not played makes room for a new one. Where more than `MOST` take
turns, those that came first stay: to capture each again whenever its turn comes would cost more than it gains."""

TOLERATED = {torch.float64: 1e-8, torch.float32: 0.02}
"""The difference of two ways, as a part of the step, that rounding can explain."""
LOW = 0.25
"""The same in a mixed precision: whoever forgets a layer, or steps twice, is farther away."""
NOISE = 4.0
"""In a lower precision, besides, so many times what a plain step in it differs from an exact one."""

StepFunction = Callable[[Params, Examples, Draws, Tensor], Sequence[Tensor]]
"""Every client's loss, then its gradients; or it takes the step in place, by clients' rates, and gives losses only."""


class Replayable(Protocol):
    """A captured piece of work."""

    def replay(self) -> None: ...


class _Again:
    """Where there is no GPU: the work itself, so that all but the capture can be tested."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.replay = work


@dataclass
class Player:
    """A captured step with its own tensors."""

    params: Params
    batch: Examples
    drawn: tuple[Tensor, ...]
    number: Tensor
    """Of the step."""
    rates: Tensor
    """The step size of each client."""
    found: list[Tensor]
    """Losses, then gradients."""
    graph: Replayable
    way: str

    def begin(self, params: Params, rates: Tensor) -> None:
        """Start from these models."""
        torch._foreach_copy_([*self.params.values(), self.rates], [*params.values(), rates])

    def step(self, batch: Examples, draws: Draws) -> tuple[Tensor, list[Tensor]]:
        """The losses and gradients of one step, good until the next; no gradients where it has taken the step."""
        torch._foreach_copy_([*self.batch, *self.drawn], [*batch, *draws.tensors])
        self.number.fill_(draws.step)
        self.graph.replay()
        return self.found[0], self.found[1:]


@dataclass
class _Seen:
    """How often a step of one signature was taken."""

    steps: int = 0
    refused: bool = False
    player: Player | None = None
    turn: int = 0
    """When it was last wanted."""


@dataclass
class Graphs:
    """The captured steps of an engine."""

    seen: dict[Any, _Seen] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)  # an id is only good while its object lives
    turns: int = 0
    latest: _Seen | None = None

    def find(
        self,
        of: Sequence[Any],
        ways: Callable[[], Mapping[str, StepFunction]],
        plain: StepFunction,
        params: Params,
        batch: Examples,
        draws: Draws,
        rates: Tensor,
    ) -> Player | None:
        """The captured step for tensors like these, once they were seen often enough; `plain` has no graph."""
        seen = self.seen.setdefault(self._name(of, params, batch, draws), _Seen())
        self.turns += seen is not self.latest
        self.latest, seen.turn = seen, self.turns
        if seen.player is None and seen.steps >= WORTH and not seen.refused and self._make_room():
            seen.player = _fastest(ways(), plain, params, batch, draws, rates)
            seen.refused = seen.player is None
        return seen.player

    def _make_room(self) -> bool:
        """Whether one more graph can be kept: in the place of one that has not been played for long, if need be."""
        kept = [other for other in self.seen.values() if other.player is not None]
        oldest = min(kept, key=lambda other: other.turn, default=None)
        if oldest is None or len(kept) < MOST:
            return True
        if self.turns - oldest.turn < STALE:
            return False
        oldest.player, oldest.steps = None, 0
        return True

    def count(self, of: Sequence[Any], params: Params, batch: Examples, draws: Draws) -> None:
        """A step was taken without a graph."""
        self.seen.setdefault(self._name(of, params, batch, draws), _Seen()).steps += 1

    def _name(self, of: Sequence[Any], params: Params, batch: Examples, draws: Draws) -> tuple[Any, ...]:
        if not any(one is of[0] for one in self.held):
            self.held.append(of[0])
        tensors = (*params.values(), *batch, *draws.tensors)
        return (id(of[0]), *of[1:], *((tuple(t.shape), t.dtype) for t in tensors))


def _fastest(
    ways: Mapping[str, StepFunction],
    plain: StepFunction,
    params: Params,
    batch: Examples,
    draws: Draws,
    rates: Tensor,
) -> Player | None:
    best, least, times = None, float("inf"), []
    try:
        check = _Check(plain, params, batch, draws, rates)
    except torch.OutOfMemoryError:  # steps fit, but nothing beside them
        log.info("steps are not captured: there is not enough memory for it")
        return None
    for way, function in ways.items():
        try:
            player = capture(way, function, params, batch, draws, rates)
            problem = check.problem(player)
        except (RuntimeError, NotImplementedError) as error:
            log.info("a step by %s cannot be captured: %s", way, first_line(error))
            torch.cuda.synchronize() if batch.x.is_cuda else None
            continue
        took = _seconds(player)
        times.append(f"{way} {1e3 * took:.2f} ms")
        if problem is not None:
            log.warning("a captured step by %s (%.2f ms) is not used: %s", way, 1e3 * took, problem)
        elif took < least:
            best, least = player, took
    if best is not None:
        log.info("steps are captured by %s: %s", best.way, ", ".join(times))
    return best


def capture(way: str, function: StepFunction, params: Params, batch: Examples, draws: Draws, rates: Tensor) -> Player:
    """A step captured on tensors of its own, with the values of these to begin with."""
    own = {name: value.clone(memory_format=torch.contiguous_format) for name, value in params.items()}
    here, drawn = Examples(*(t.clone() for t in batch)), tuple(t.clone() for t in draws.tensors)
    number = torch.full((), int(draws.step), dtype=torch.int64, device=batch.weight.device)
    found: list[Tensor] = []
    rates = rates.clone()

    def work() -> None:
        found[:] = function(own, here, draws._replace(step=number).of(drawn), rates)

    if not batch.x.is_cuda:
        return Player(own, here, drawn, number, rates, found, _Again(work), way)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()  # what it gives lies in the graph's own memory, and every replay writes it there again
    return Player(own, here, drawn, number, rates, found, graph, way)


class _Check:
    """A step without a graph, to compare captured ones with; in a lower precision, beside one that is exact."""

    def __init__(self, plain: StepFunction, params: Params, batch: Examples, draws: Draws, rates: Tensor) -> None:
        self.given = params, batch, draws, rates
        self.want = self._after(plain)
        self.finite = torch.stack([end.flatten(1).isfinite().all(1) for end in self.want]).all(0)
        with exactly(rates.device.type):
            exact = self._after(plain)
        self.noise = [self._norm(one - other) for one, other in zip(self.want, exact, strict=True)]

    def _after(self, plain: StepFunction) -> list[Tensor]:
        """The losses, then slopes and models: n 1, n ..."""
        params, batch, draws, rates = self.given
        ends = {name: value.clone() for name, value in params.items()}
        loss, *slopes = plain(ends, batch, draws, rates)
        return [loss.unsqueeze(1), *slopes, *ends.values()]

    def problem(self, player: Player) -> str | None:
        """What a captured step gives that is more than a rounding away, or None."""
        params, batch, draws, rates = self.given
        player.begin(params, rates)
        loss, slopes = player.step(batch, draws)
        got = [loss.unsqueeze(1), *slopes, *player.params.values()]
        before = [torch.zeros((), device=loss.device)] * (1 + len(slopes)) + list(params.values())
        names = ["the losses", *(f"the slopes of {name}" for name, _ in zip(params, slopes, strict=False)), *params]
        if not self.finite.any():  # a client that diverged tells nothing
            return "no model is finite"
        moved = [self._norm(end - start) for end, start in zip(self.want, before, strict=True)]
        whole = sum(size**2 for size in moved[1:]) ** 0.5
        tolerated = LOW if torch.is_autocast_enabled(rates.device.type) else TOLERATED.get(loss.dtype, LOW)
        epsilon = 4 * torch.finfo(loss.dtype).eps
        for one, other, size, noise, name in zip(got, self.want, moved, self.noise, names, strict=True):
            far = self._norm(one - other)
            step = size + 1e-3 * whole  # that of a parameter without influence is rounding and nothing else
            if not far <= tolerated * step + NOISE * noise + epsilon * self._norm(other):
                return (
                    f"{name}: {far:.1e} from a plain step, which is {size:.1e} long and {noise:.1e} from an exact one"
                )
        return None

    def _norm(self, rows: Tensor) -> float:
        """Of the clients that have not diverged."""
        return float(torch.linalg.vector_norm(rows[self.finite], dtype=torch.float64))


def _seconds(player: Player) -> float:
    player.graph.replay()
    began = _now(player.number)
    for _ in range(TIMED):
        player.graph.replay()
    return (_now(player.number) - began) / TIMED


def _now(where: Tensor) -> float:
    if where.is_cuda:
        torch.cuda.synchronize(where.device)
    return time.perf_counter()


class OnStreams:
    """Work for one client after another, a few of them at the same time on streams of their own."""

    def __init__(self, device: torch.device, number: int = 8) -> None:
        self.streams = [torch.cuda.Stream(device) for _ in range(number)] if device.type == "cuda" else []

    def each(self, clients: int, work: Callable[[int], None]) -> None:
        """Do the work of every client; afterwards all of it is done, or will have been for what is launched next."""
        if not self.streams:
            for i in range(clients):
                work(i)
            return
        here = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(here)
        for i in range(clients):
            with torch.cuda.stream(self.streams[i % len(self.streams)]):
                work(i)
        for stream in self.streams:
            here.wait_stream(stream)
