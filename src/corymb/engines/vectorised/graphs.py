"""Gradients on a GPU as CUDA graphs: captured once for tensors of the same shapes, replayed without Python.

For small models a GPU waits for launches, not for arithmetic. A gradient can be captured in two ways: all clients at
once (vmap), or client by client on a few streams, which is faster where a product of one client fills the GPU. Both are
captured and timed, and the faster one is used. The optimiser's step stays outside, so that its settings may change from
round to round; only a fused step is captured whole. What is random is drawn from keys and from the number of the step,
both of which are inputs. What cannot be captured runs as before.
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

StepFunction = Callable[[Params, Examples, Draws], Sequence[Tensor]]
"""Every client's loss, then its gradients; a fused step is taken in place and gives losses only."""


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
    found: list[Tensor]
    """Losses, then gradients."""
    graph: Replayable
    way: str

    def begin(self, params: Params) -> None:
        """Start from these models."""
        torch._foreach_copy_(list(self.params.values()), list(params.values()))

    def step(self, batch: Examples, draws: Draws) -> tuple[Tensor, list[Tensor]]:
        """The losses and gradients of one step, good until the next."""
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


@dataclass
class Graphs:
    """The captured steps of an engine."""

    seen: dict[Any, _Seen] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)  # an id is only good while its object lives

    def find(
        self, of: Sequence[Any], ways: Mapping[str, StepFunction], params: Params, batch: Examples, draws: Draws
    ) -> Player | None:
        """The captured step for tensors like these, once they have been seen often enough."""
        seen = self.seen.setdefault(self._name(of, params, batch, draws), _Seen())
        if seen.player is None and seen.steps >= WORTH and not seen.refused:
            if sum(other.player is not None for other in self.seen.values()) >= MOST:
                self.seen.clear()
                return None
            seen.player = _fastest(ways, params, batch, draws)
            seen.refused = seen.player is None
        return seen.player

    def count(self, of: Sequence[Any], params: Params, batch: Examples, draws: Draws) -> None:
        """A step was taken without a graph."""
        self.seen.setdefault(self._name(of, params, batch, draws), _Seen()).steps += 1

    def _name(self, of: Sequence[Any], params: Params, batch: Examples, draws: Draws) -> tuple[Any, ...]:
        if not any(one is of[0] for one in self.held):
            self.held.append(of[0])
        tensors = (*params.values(), *batch, *draws.tensors)
        return (id(of[0]), *of[1:], *((tuple(t.shape), t.dtype) for t in tensors))


def _fastest(ways: Mapping[str, StepFunction], params: Params, batch: Examples, draws: Draws) -> Player | None:
    found: list[tuple[float, Player]] = []
    for way, function in ways.items():
        try:
            player = capture(way, function, params, batch, draws)
        except (RuntimeError, NotImplementedError) as error:
            log.info("a step by %s cannot be captured: %s", way, first_line(error))
            torch.cuda.synchronize() if batch.x.is_cuda else None
            continue
        found.append((_seconds(player), player))
    if not found:
        return None
    _, best = min(found, key=lambda one: one[0])
    log.info("steps are captured by %s: %s", best.way, ", ".join(f"{p.way} {1e3 * s:.2f} ms" for s, p in found))
    return best


def capture(way: str, function: StepFunction, params: Params, batch: Examples, draws: Draws) -> Player:
    """A step captured on tensors of its own, with the values of these to begin with."""
    own = {name: value.clone(memory_format=torch.contiguous_format) for name, value in params.items()}
    here, drawn = Examples(*(t.clone() for t in batch)), tuple(t.clone() for t in draws.tensors)
    number = torch.full((), int(draws.step), dtype=torch.int64, device=batch.weight.device)
    found: list[Tensor] = []

    def work() -> None:
        found[:] = function(own, here, draws._replace(step=number).of(drawn))

    if not batch.x.is_cuda:
        return Player(own, here, drawn, number, found, _Again(work), way)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()  # what it gives lies in the graph's own memory, and every replay writes it there again
    return Player(own, here, drawn, number, found, graph, way)


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

    def __init__(self, device: torch.device, number: int = 4) -> None:
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
