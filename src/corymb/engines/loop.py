"""The loop engine: one client after another. It defines correct results, and is the easiest to debug."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from corymb.core.engine import Call, ClientData, Journal, Part
from corymb.core.intake import Intake
from corymb.core.objective import Objective
from corymb.engines.host import ClientHost, OfHost, blame
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
        self.commit, self.refresh = host.commit, host.refresh

    names = OfHost(lambda host: host.names)
    hosts = OfHost(lambda host: host.hosts)
    sizes = OfHost(lambda host: host.sizes)
    schema = OfHost(lambda host: host.schema)
    fingerprint = OfHost(lambda host: host.fingerprint)

    def describe(self) -> dict[str, Any]:
        """Everything that can change the bits of results, for the run's record."""
        return {"engine": "loop", **self.host.placement.describe()}

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> LoopEngine:
        """A new session with another objective and empty client memory; examples are shared."""
        engine = copy.copy(self)
        engine._use(self.host.opened(objective, journal))
        return engine

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call at the clients, one after another."""
        call = self.host.deliver(call)
        intake = Intake.at_host(call, ids, self.sizes)
        clients = ((client, place) for place, client in enumerate(ids.tolist()))
        blame(*self.host.ask_each(call, clients, intake), intake, everybody=len(ids) == len(self.names))
        yield self.host.settle(call, intake)
