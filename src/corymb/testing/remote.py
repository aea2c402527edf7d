"""Federations of a few nodes in this process: a remote engine without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from corymb.core.objective import Objective
from corymb.engines import LoopEngine, Placement
from corymb.engines.node import Node
from corymb.engines.remote import Answer, RemoteEngine, Transport
from corymb.testing.small_data import SmallData

ALLOW = ("corymb.testing.learners",)
"""The module whose functions test objectives name; nodes allow no functions by default."""
NODES = 3
Answering = Callable[[bytes], bytes | None]


class InProcess:
    """Carries bytes by calling functions; a function that returns None stands for a node that does not answer."""

    name = "in process"

    def __init__(self, nodes: Mapping[str, Answering]) -> None:
        self.nodes = dict(nodes)
        self.messages: list[tuple[str, bytes]] = []

    def addresses(self) -> Sequence[str]:
        """The nodes."""
        return list(self.nodes)

    def exchange(self, messages: Mapping[str, bytes], give_up: Callable[[], bool]) -> Iterator[Answer]:
        """Call the functions, one after another."""
        for address, data in messages.items():
            self.messages.append((address, data))
            answer = self.nodes[address](data) if address in self.nodes else None
            yield Answer(address, answer, "" if answer is not None else "no answer")

    def close(self) -> None:
        """Do nothing: there are no connections."""


def nodes_of(
    objective: Objective, data: SmallData, placement: Placement, folder: Path | None = None
) -> dict[str, Node]:
    """A few nodes among which clients are dealt in turn."""
    shards = [list(range(first, len(data.names), NODES)) for first in range(min(NODES, len(data.names)))]
    return {
        f"node-{number}": Node(
            LoopEngine(objective, data.at(shard), placement),
            f"node-{number}",
            allow=ALLOW,
            folder=None if folder is None else folder / f"node-{number}",
        )
        for number, shard in enumerate(shards)
    }


def joined(transport: Transport, objective: Objective, session: str = "", **options: object) -> RemoteEngine:
    """The engine of a federation, with a session for an objective."""
    engine = RemoteEngine(transport, allow=ALLOW, **options)  # type: ignore[arg-type]
    return engine.open(objective, session=session)


def remote(objective: Objective, data: SmallData, placement: Placement) -> RemoteEngine:
    """A federation of nodes in this process."""
    nodes = nodes_of(objective, data, placement)
    return joined(InProcess({name: node.answer for name, node in nodes.items()}), objective)


def flower(objective: Objective, data: SmallData, placement: Placement) -> RemoteEngine:
    """A federation of nodes in this process, with real Flower messages between them and the server."""
    from corymb.engines.flower.direct import DirectGrid
    from corymb.engines.flower.grid import FlowerTransport

    nodes = nodes_of(objective, data, placement).values()
    first = 2**63  # Flower's node ids may exceed int64
    grid = DirectGrid({first + number: node.answer for number, node in enumerate(nodes)})
    return joined(FlowerTransport(grid), objective)
