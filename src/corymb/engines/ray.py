"""Clients on a Ray cluster: long-lived actors, each with a shard of the clients and its own engine.

An actor that dies is restarted by Ray with its shard, which Ray stores; its client memory is restored from its journal,
on a disk shared by all machines. The call is repeated until the actor answers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corymb.core.engine import ClientData
from corymb.core.objective import Objective
from corymb.engines.guarded import Guarded
from corymb.engines.remote import POLL, Answer
from corymb.engines.shard import NodeSpec, node_from_bytes, shard_of, spec_to_bytes
from corymb.messages import OURS
from corymb.settings import first_line

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # an actor without a GPU still sees its machine's
import ray


class NodeActor:
    """A node in a Ray actor's process."""

    def __init__(self, data: bytes, client_seconds: float | None, allow: Sequence[str]) -> None:
        if client_seconds is None:
            self._answer = node_from_bytes(data).answer
        else:
            path = Path(tempfile.mkdtemp(prefix="corymb-")) / "node.safetensors"
            path.write_bytes(data)
            command = [sys.executable, "-m", "corymb.engines.shard", str(path)]
            self._answer = Guarded(command, client_seconds, (*OURS, *allow)).answer

    def answer(self, message: bytes) -> bytes:
        """The node's answer to a message."""
        return self._answer(message)


class RayTransport:
    """Carries bytes to actors. Clients are dealt to the actors in turn; on GPUs, each actor has one."""

    name = "ray"

    def __init__(
        self,
        data: ClientData,
        objective: Objective,
        *,
        actors: int,
        address: str | None = None,
        folder: Path | None = None,
        engine: str = "vectorised",
        device: str = "cpu",
        precision: str = "float32",
        allow: Sequence[str] = (),
        client_seconds: float | None = None,
    ) -> None:
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="WARNING")
        gpus = {"num_gpus": 1} if device.startswith("cuda") else {"num_cpus": 1}
        kind: Any = ray.remote(max_restarts=-1, max_task_retries=0, **gpus)(NodeActor)
        here = (os.getcwd(), *(path for path in sys.path if path and Path(path).is_dir()))
        self.actors: dict[str, Any] = {}
        self._shards: list[Any] = []  # references keep shards in Ray's store, for actors that are restarted
        for number in range(actors):
            name = f"actor-{number}"
            kept = "" if folder is None else str(folder.resolve() / name)
            spec = NodeSpec(name, engine, device, precision, kept, tuple(allow), here)
            shard = shard_of(data, range(number, len(data.names), actors))
            self._shards.append(ray.put(spec_to_bytes(spec, shard, objective)))
            self.actors[name] = kind.remote(self._shards[-1], client_seconds, tuple(allow))

    def addresses(self) -> Sequence[str]:
        """The names of all actors, including those that are being restarted."""
        return list(self.actors)

    def exchange(self, messages: Mapping[str, bytes], give_up: Callable[[], bool]) -> Iterator[Answer]:
        """Send each actor its message; yields answers as they arrive."""
        waiting = {self.actors[address].answer.remote(data): address for address, data in messages.items()}
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL)
            for reference in done:
                address = waiting.pop(reference)
                try:
                    yield Answer(address, ray.get(reference))
                except ray.exceptions.RayError as error:  # the actor died; Ray restarts it
                    yield Answer(address, None, f"{type(error).__name__}: {first_line(error)}")
            if not done and give_up():
                break
        for address in waiting.values():
            yield Answer(address, None, "did not answer in time")

    def close(self) -> None:
        """Kill the actors, and disconnect from the cluster if the connection was made here."""
        for actor in self.actors.values():
            ray.kill(actor)
        self.actors, self._shards = {}, []
        if self._started:
            ray.shutdown()
