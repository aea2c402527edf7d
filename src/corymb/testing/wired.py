"""A federation in miniature: every client a host of its own, and nothing between them and the server but bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from corymb.core.engine import START, Call, ClientData, Journal, Part, Version, in_order
from corymb.core.objective import Objective
from corymb.engines import LoopEngine, Placement
from corymb.engines.host import one_line
from corymb.keys import fold, permutation
from corymb.messages import OURS, call_from_bytes, call_to_bytes, part_from_bytes, part_to_bytes
from corymb.settings import fingerprint, require


class _OneClient(NamedTuple):
    """One client of a data set, as a data set."""

    data: ClientData
    client: int

    @property
    def names(self) -> Sequence[str]:
        return [self.data.names[self.client]]

    @property
    def train(self) -> _Rows:
        return _rows(self.data.train, self.client)

    @property
    def test(self) -> _Rows:
        return _rows(self.data.test, self.client)

    @property
    def schema(self) -> Mapping[str, Any]:
        return self.data.schema

    def fingerprint(self) -> str:
        return f"{self.data.fingerprint()}/{self.client}"


class _Rows(NamedTuple):
    x: Tensor
    y: Tensor
    offsets: Tensor


def _rows(rows: Any, client: int) -> _Rows:
    span = slice(int(rows.offsets[client]), int(rows.offsets[client + 1]))
    return _Rows(rows.x[span], rows.y[span], torch.tensor([0, span.stop - span.start]))


class Wired:
    """Packs and unpacks every call and every reply; one part a client, and the parts arrive in any order.

    What passes here can travel to another machine. `lost` are (version, client's name) whose reply never arrives,
    though the client has run the call and written into its memory.
    """

    def __init__(
        self,
        objective: Objective,
        data: ClientData,
        placement: Placement = Placement(),  # noqa: B008
        *,
        allow: Sequence[str] = OURS,
        lost: Collection[tuple[Version, str]] = (),
    ) -> None:
        order = in_order(data.names)
        self.objective, self.schema = objective, data.schema
        self.names = [data.names[i] for i in order.tolist()]
        self.hosts = self.names
        self.lost = set(lost)
        self._allow = tuple(allow)
        self.nodes: list[Any] = [LoopEngine(objective, _OneClient(data, i), placement) for i in order.tolist()]

    @property
    def sizes(self) -> Tensor:
        """How many training examples each client reports: n."""
        return torch.cat([node.sizes for node in self.nodes])

    @property
    def fingerprint(self) -> str:
        """Equal exactly where the clients' data are."""
        return fingerprint([node.fingerprint for node in self.nodes])

    def describe(self) -> dict[str, Any]:
        """What changes bits, for the record of a run."""
        return {**self.nodes[0].describe(), "engine": "wired"}

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> Self:
        """The same clients with another objective and nothing in their memory."""
        engine = self.with_nodes(lambda node: node.open(objective))
        engine.objective = objective
        return engine

    def with_nodes(self, change: Callable[[Any], Any]) -> Self:
        """The same federation with each client's own engine replaced."""
        engine = copy.copy(self)
        engine.nodes = [change(node) for node in self.nodes]
        return engine

    def refresh(self, data: ClientData) -> list[str]:
        """New examples for the clients that `data` names."""
        position = {name: i for i, name in enumerate(self.names)}
        unknown = next((name for name in data.names if name not in position), None)
        require(unknown is None, f"There is no client {unknown!r} to give new examples to.")
        cleared = [self.nodes[position[name]].refresh(_OneClient(data, i)) for i, name in enumerate(data.names)]
        return sorted({slot for some in cleared for slot in some})

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Nothing to do: no message is sent for it."""

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """One message to every client asked, and one back from each, in an order of chance."""
        for place in permutation(fold(call.key, "arrival"), len(ids)).tolist():
            client = int(ids[place])
            name = self.names[client]
            own = call.of(torch.tensor([place]))._replace(since={"": call.since.get(name, START)})
            reply = self._answer(client, call_to_bytes(own))
            if (call.version, name) not in self.lost:
                yield part_from_bytes(reply, name, self._allow)

    def _answer(self, client: int, message: bytes) -> bytes:
        """A host's side: reads the call, runs it, and replies in the names of the server."""
        call = call_from_bytes(message, self._allow)
        try:
            (part,) = self.nodes[client].run(call, torch.tensor([0]))
            rejected = [(client, reason) for _, reason in part.rejected]
            return part_to_bytes(part._replace(ids=part.ids + client, rejected=rejected))
        except Exception as error:  # the only client raised, or sent what cannot travel: the server decides who did
            line = one_line(error)
            nobody = torch.empty(0, dtype=torch.int64)
            return part_to_bytes(Part(nobody, None, [(client, f"raised {line}")], error=line))
