"""A miniature federation: every client is a separate host, and exchanges only bytes with the server."""

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
    """Packs and unpacks every call and every reply; there is one part per client, and parts arrive in random order.

    What passes here can be sent to another machine. `lost` holds (version, client's name) of replies that never arrive,
    although the client has run the call and written its memory.
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
        """Equal exactly if the clients' data are equal."""
        return fingerprint([node.fingerprint for node in self.nodes])

    def describe(self) -> dict[str, Any]:
        """Everything that can change the bits of results, for the run's record."""
        return {**self.nodes[0].describe(), "engine": "wired"}

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> Self:
        """A new session with another objective and empty client memory."""
        engine = self.with_nodes(lambda node: node.open(objective))
        engine.objective = objective
        return engine

    def with_nodes(self, change: Callable[[Any], Any]) -> Self:
        """The same federation with each client's own engine replaced."""
        engine = copy.copy(self)
        engine.nodes = [change(node) for node in self.nodes]
        return engine

    def refresh(self, data: ClientData) -> list[str]:
        """Replace the examples of the clients in `data`; returns the names of the memory slots that were cleared."""
        position = {name: i for i, name in enumerate(self.names)}
        unknown = next((name for name in data.names if name not in position), None)
        require(unknown is None, f"There is no client {unknown!r}: new examples must be of the run's clients.")
        cleared = [self.nodes[position[name]].refresh(_OneClient(data, i)) for i, name in enumerate(data.names)]
        return sorted({slot for slots in cleared for slot in slots})

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Do nothing: no message is sent for a commit."""

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Send a message to every client asked, and yield their replies in random order."""
        for place in permutation(fold(call.key, "arrival"), len(ids)).tolist():
            client = int(ids[place])
            name = self.names[client]
            own = call.of(torch.tensor([place]))._replace(since={"": call.since.get(name, START)})
            reply = self._answer(client, call_to_bytes(own))
            if (call.version, name) not in self.lost:
                yield part_from_bytes(reply, name, self._allow)

    def _answer(self, client: int, message: bytes) -> bytes:
        """The host's side: read the call, run it, and reply with the server's client numbers."""
        call = call_from_bytes(message, self._allow)
        try:
            (part,) = self.nodes[client].run(call, torch.tensor([0]))
            rejected = [(client, reason) for _, reason in part.rejected]
            return part_to_bytes(part._replace(ids=part.ids + client, rejected=rejected))
        except Exception as error:  # the only client raised, or its reply cannot be sent: the server decides
            line = one_line(error)
            no_ids = torch.empty(0, dtype=torch.int64)
            return part_to_bytes(Part(no_ids, None, [(client, f"raised {line}")], error=line))
