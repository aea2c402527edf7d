"""The engines that laws are tested on, and wrappers that record, corrupt or script another engine's replies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from corymb.core.client import Client, ClientFn
from corymb.core.engine import Call, Engine, OneHost, Part, Version
from corymb.core.federation import Federation
from corymb.core.objective import Objective
from corymb.engines import LoopEngine, Placement, VectorisedEngine
from corymb.keys import fold, permutation
from corymb.messages import OURS
from corymb.testing.small_data import SmallData
from corymb.testing.wired import Wired
from corymb.trees import as_tensors, leaves, map_tensors

MakeEngine = Callable[[Objective, SmallData, Placement], Engine]
"""A factory of engines over small data, called as `make(objective, data, placement)`."""
AnyEngine = str | MakeEngine
"""The name of one of `ENGINES`, or a factory."""

DOUBLE = Placement(dtype=torch.float64)
IN_PROCESS: dict[str, MakeEngine] = {"loop": LoopEngine, "vectorised": VectorisedEngine}
ENGINES: dict[str, MakeEngine] = {**IN_PROCESS, "wired": Wired}


def engine_maker(engine: AnyEngine) -> MakeEngine:
    """The factory of an engine."""
    return ENGINES[engine] if isinstance(engine, str) else engine


@functools.cache
def wired(*packages: str) -> MakeEngine:
    """A factory of wired engines whose messages may also name functions and classes of these packages."""
    return functools.partial(Wired, allow=tuple(dict.fromkeys((*OURS, *packages))))


def federation(
    engine: AnyEngine, objective: Objective, data: SmallData, placement: Placement = DOUBLE, **options: Any
) -> Federation:
    """A federation on a new engine."""
    return Federation(engine_maker(engine)(objective, data, placement), **options)


def engine_of(fed: Federation) -> Any:
    """The engine behind a federation, which algorithms never see."""
    return fed.__dict__["_engine"]


def in_one_process(engine: Engine) -> bool:
    """Whether one host has all clients, so that an error of all clients is raised unchanged."""
    return len(set(engine.hosts)) == 1


class _Around:
    """An engine that forwards everything to another one."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


class Spy(_Around):
    """Records every call, every part, and the client memory after each call."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.calls: list[Call] = []
        self.asked: list[list[str]] = []
        self.parts: list[list[Part]] = []
        self.kept: list[dict[str, Tensor]] = []

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call and record it."""
        self.calls.append(call)
        self.asked.append([self.engine.names[i] for i in ids.tolist()])
        self.parts.append([])
        for part in self.engine.run(call, ids):
            self.parts[-1].append(part)
            yield part
        self.kept.append(kept_by(self.engine))


def kept_by(engine: Any) -> dict[str, Tensor]:
    """All client memory of an engine, for the engines of `ENGINES`."""
    kept: dict[str, Tensor] = {}
    for number, node in enumerate(getattr(engine, "nodes", [engine])):
        for slot, table in node.host.memory._tables.items():
            kept |= {f"{number}/{slot}/{i}": leaf.clone() for i, leaf in enumerate(leaves(table.values))}
    return kept


class Sabotaged(_Around):
    """Some clients replace every float in every reply by a number."""

    def __init__(self, engine: Any, bad: Callable[[Client], Tensor], number: float) -> None:
        super().__init__(engine)
        self.bad, self.number = bad, number

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call in which bad clients corrupt their replies."""

        def body(client: Client, *args: Any, **options: Any) -> Any:
            reply, bad = as_tensors(call.fn.body(client, *args, **options)), self.bad(client)
            wrong = torch.tensor(self.number)
            return map_tensors(lambda t: torch.where(bad, wrong, t) if t.is_floating_point() else t, reply)

        body.__module__, body.__qualname__ = call.fn.body.__module__, call.fn.body.__qualname__
        yield from self.engine.run(call._replace(fn=ClientFn(body)), ids)


def sabotaged(engine: Engine, bad: Callable[[Client], Tensor], number: float) -> Engine:
    """The engine with bad clients; if clients are separate hosts, replies are corrupted on their side of the wire."""
    if isinstance(engine, Wired):
        return engine.with_nodes(lambda node: Sabotaged(node, bad, number))
    return cast(Engine, Sabotaged(engine, bad, number))


class NeverAsked(_Around):
    """Leaves some clients out of some calls, as if the server had not asked them."""

    def __init__(self, engine: Any, left_out: Collection[tuple[Version, str]]) -> None:
        super().__init__(engine)
        self.left_out = set(left_out)

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call at the other clients."""
        stay = [p for p, i in enumerate(ids.tolist()) if (call.version, self.engine.names[i]) not in self.left_out]
        places = torch.tensor(stay, dtype=torch.int64)
        yield from self.engine.run(call.of(places), ids[places])


class Repeating(_Around):
    """Sends every call twice, as after a timeout, and returns the parts of the second time."""

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call twice."""
        list(self.engine.run(call, ids))
        yield from self.engine.run(call, ids)


class Reordered(_Around):
    """Returns the parts of a call in another order."""

    def __init__(self, engine: Any, order: str) -> None:
        super().__init__(engine)
        self.order = order

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call, wait for all parts, and reorder them."""
        parts = list(self.engine.run(call, ids))
        if self.order == "by chance":
            parts = [parts[i] for i in permutation(fold(call.key, "another arrival"), len(parts)).tolist()]
        else:
            first = [int(part.ids[0]) if len(part.ids) else -1 for part in parts]
            places = sorted(range(len(parts)), key=lambda i: first[i], reverse=self.order == "falling")
            parts = [parts[i] for i in places]
        yield from parts


class Scripted:
    """Returns given parts, whatever the call: for the checks at the door."""

    def __init__(self, objective: Objective, sizes: Tensor, *parts: Part) -> None:
        self.parts, self.objective, self.sizes = parts, objective, sizes
        self.names = [f"client-{i}" for i in range(len(sizes))]
        self.hosts = OneHost(len(sizes))

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """The parts, whatever the call."""
        yield from self.parts
