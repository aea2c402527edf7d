"""One client after another: the definition of right, and the debugger's friend."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from corymb.core.engine import Call, ClientData, Journal, Part
from corymb.core.intake import Intake
from corymb.core.objective import Objective
from corymb.engines.host import ClientHost, blame
from corymb.engines.placement import Placement


class LoopEngine:
    """Runs a call client by client in this process."""

    def __init__(
        self,
        objective: Objective,
        data: ClientData,
        placement: Placement = Placement(),  # noqa: B008
        *,
        journal: Journal | None = None,
    ) -> None:
        self._use(ClientHost(objective, data, placement, journal))

    def _use(self, host: ClientHost) -> None:
        self.host, self.objective = host, host.objective
        self.names, self.hosts = host.names, host.hosts
        self.commit, self.refresh = host.commit, host.refresh

    @property
    def sizes(self) -> Tensor:
        """How many training examples each client has: n."""
        return self.host.sizes

    @property
    def schema(self) -> Mapping[str, Any]:
        """What the clients' examples are like."""
        return self.host.schema

    @property
    def fingerprint(self) -> str:
        """Equal exactly where the clients' data are."""
        return self.host.fingerprint

    def describe(self) -> dict[str, Any]:
        """What changes bits, for the record of a run."""
        return {"engine": "loop", **self.host.placement.describe()}

    def open(self, objective: Objective, journal: Journal | None = None) -> LoopEngine:
        """The same clients with another objective and nothing in their memory; examples are shared."""
        engine = copy.copy(self)
        engine._use(self.host.opened(objective, journal))
        return engine

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients in turn."""
        call = self.host.deliver(call)
        intake = Intake(call.verb, ids, self.sizes[ids])
        clients = ((client, place) for place, client in enumerate(ids.tolist()))
        blame(*self.host.ask_each(call, clients, intake), intake)
        yield self.host.settle(call, intake)
