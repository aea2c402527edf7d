"""The engines that laws are tested on, and engines that watch, spoil or script what another one does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from corymb.core.client import Client, ClientFn
from corymb.core.engine import Call, Engine, Part, Version
from corymb.core.federation import Federation
from corymb.core.objective import Objective
from corymb.engines import LoopEngine, Placement, VectorisedEngine
from corymb.keys import fold, permutation
from corymb.messages import OURS
from corymb.testing.small_data import SmallData
from corymb.testing.wired import Wired
from corymb.trees import as_tensors, leaves, map_tensors

MakeEngine = Callable[[Objective, SmallData, Placement], Engine]
"""An engine over small data; called as `make(objective, data, placement)`."""
AnyEngine = str | MakeEngine
"""One of `ENGINES` by name, or a way to make one."""

DOUBLE = Placement(dtype=torch.float64)
IN_PROCESS: dict[str, MakeEngine] = {"loop": LoopEngine, "vectorised": VectorisedEngine}
ENGINES: dict[str, MakeEngine] = {**IN_PROCESS, "wired": Wired}


def engine_maker(engine: AnyEngine) -> MakeEngine:
    """A way to make the engine."""
    return ENGINES[engine] if isinstance(engine, str) else engine


@functools.cache
def wired(*packages: str) -> MakeEngine:
    """A wired federation whose calls may also name what belongs to these packages."""
    return functools.partial(Wired, allow=tuple(dict.fromkeys((*OURS, *packages))))


def federation(
    engine: AnyEngine, objective: Objective, data: SmallData, placement: Placement = DOUBLE, **options: Any
) -> Federation:
    """A federation on an engine of its own."""
    return Federation(engine_maker(engine)(objective, data, placement), **options)


def engine_of(fed: Federation) -> Any:
    """The engine behind a federation, which algorithms never see."""
    return fed.__dict__["_engine"]


def in_one_process(engine: Engine) -> bool:
    """Whether one host answers for everybody, so that an error of everybody arrives as it was raised."""
    return len(set(engine.hosts)) == 1


class _Around:
    """An engine that hands everything on to another one."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


class Spy(_Around):
    """Writes down every call that goes in, every part that comes out, and what clients keep after each call."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.calls: list[Call] = []
        self.asked: list[list[str]] = []
        self.parts: list[list[Part]] = []
        self.kept: list[dict[str, Tensor]] = []

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients, and write it down."""
        self.calls.append(call)
        self.asked.append([self.engine.names[i] for i in ids.tolist()])
        self.parts.append([])
        for part in self.engine.run(call, ids):
            self.parts[-1].append(part)
            yield part
        self.kept.append(kept_by(self.engine))


def kept_by(engine: Any) -> dict[str, Tensor]:
    """Everything in the memory of an engine's clients, for the engines of `ENGINES`."""
    kept: dict[str, Tensor] = {}
    for number, node in enumerate(getattr(engine, "nodes", [engine])):
        for slot, table in node.host.memory._tables.items():
            kept |= {f"{number}/{slot}/{i}": leaf.clone() for i, leaf in enumerate(leaves(table.values))}
    return kept


class Sabotaged(_Around):
    """Some clients put a number of their own into every reply, whatever they are asked."""

    def __init__(self, engine: Any, bad: Callable[[Client], Tensor], number: float) -> None:
        super().__init__(engine)
        self.bad, self.number = bad, number

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients, of whom some spoil their replies."""

        def body(client: Client, *args: Any, **options: Any) -> Any:
            reply, bad = as_tensors(call.fn.body(client, *args, **options)), self.bad(client)
            wrong = torch.tensor(self.number)
            return map_tensors(lambda t: torch.where(bad, wrong, t) if t.is_floating_point() else t, reply)

        body.__module__, body.__qualname__ = call.fn.body.__module__, call.fn.body.__qualname__
        yield from self.engine.run(call._replace(fn=ClientFn(body)), ids)


def sabotaged(engine: Engine, bad: Callable[[Client], Tensor], number: float) -> Engine:
    """The engine with its bad clients; where clients are hosts of their own, they are bad on their side of the wire."""
    if isinstance(engine, Wired):
        return engine.with_nodes(lambda node: Sabotaged(node, bad, number))
    return cast(Engine, Sabotaged(engine, bad, number))


class NeverAsked(_Around):
    """Leaves some clients out of some calls, as if the server had not asked them."""

    def __init__(self, engine: Any, left_out: Collection[tuple[Version, str]]) -> None:
        super().__init__(engine)
        self.left_out = set(left_out)

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the others."""
        stay = [p for p, i in enumerate(ids.tolist()) if (call.version, self.engine.names[i]) not in self.left_out]
        places = torch.tensor(stay, dtype=torch.int64)
        yield from self.engine.run(call.of(places), ids[places])


class Repeating(_Around):
    """Sends every call twice, as after a time-out, and hands over the parts of the second time."""

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients twice."""
        list(self.engine.run(call, ids))
        yield from self.engine.run(call, ids)


class Reordered(_Around):
    """Hands over the parts of a call in another order."""

    def __init__(self, engine: Any, order: str) -> None:
        super().__init__(engine)
        self.order = order

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients, and wait for all of them."""
        parts = list(self.engine.run(call, ids))
        if self.order == "by chance":
            parts = [parts[i] for i in permutation(fold(call.key, "another arrival"), len(parts)).tolist()]
        else:
            first = [int(part.ids[0]) if len(part.ids) else -1 for part in parts]
            places = sorted(range(len(parts)), key=lambda i: first[i], reverse=self.order == "falling")
            parts = [parts[i] for i in places]
        yield from parts


class Scripted:
    """Says whatever it is told to, whoever is asked: for the checks at the door."""

    def __init__(self, objective: Objective, sizes: Tensor, *parts: Part) -> None:
        self.parts, self.objective, self.sizes = parts, objective, sizes
        self.names = [f"client-{i}" for i in range(len(sizes))]
        self.hosts = [""] * len(sizes)

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """The parts, whatever the call."""
        yield from self.parts
