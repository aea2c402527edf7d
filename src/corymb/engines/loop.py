"""One client after another: the definition of right, and the debugger's friend."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor

from corymb.core.client import Objective
from corymb.core.federation import Call
from corymb.core.intake import Part, Tally
from corymb.engines.host import ClientData, ClientHost, Placement, settle
from corymb.engines.memory import Journal


class LoopEngine:
    """Runs a call client by client in this process."""

    def __init__(
        self,
        objective: Objective,
        data: ClientData,
        where: Placement = Placement(),  # noqa: B008
        *,
        journal: Journal | None = None,
    ) -> None:
        self._room = ClientHost(objective, data, where, journal)
        self.objective, self.names, self.sizes = objective, self._room.names, self._room.sizes

    def describe(self) -> dict[str, Any]:
        """What changes bits, for the record of a run."""
        return {"engine": "loop", **self._room.where.describe()}

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients in turn."""
        call = self._room.delivered(call)
        tally = Tally(call.verb)
        clients = ((client, place) for place, client in enumerate(ids.tolist()))
        answered, errors = self._room.ask_each(call, clients, tally)
        settle(answered, errors, tally)
        part, writes = tally.result()
        for owners, slots in writes:
            self._room.memory.write(call.clock, owners, slots)
        yield part

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Make client memory durable, where there is a journal; what no kept clock needs is dropped."""
        self._room.commit(clock, keep)

    def rewind(self, clock: int) -> None:
        """Client memory as it was at `clock`."""
        self._room.rewind(clock)
