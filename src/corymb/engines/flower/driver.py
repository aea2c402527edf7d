"""The server's side: starts a Flower run and acts as its ServerApp, in the caller's process instead of Flower's."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.app import Message

from corymb.engines.flower.grid import FlowerTransport, GridChanged
from corymb.engines.flower.link import link_to
from corymb.engines.flower.private import (
    SERVER,
    Link,
    ServerTask,
    acquire,
    run_ended,
    runtime_client,
    start_run,
    stop_runs_of_ended_drivers,
)
from corymb.settings import InvalidInput, first_line

log = logging.getLogger(__name__)
T = TypeVar("T")
ACQUIRE_SECONDS = 30.0
COMPONENT = "corymb"


def connect(address: str, *, ca: Path | None = None, secret: Path | None = None) -> FlowerTransport:
    """A transport over the federation at a SuperLink's address.

    `ca` is the certificate of the authority that signed the SuperLink's; without it, the connection is plain text.
    `secret` is the file that the SuperLink was started with (`--superexec-auth-secret-file`).
    """
    grid = RunGrid(link_to(address, ca, secret))
    return FlowerTransport(grid, identify=grid.identify, close=grid.close)


class RunGrid:
    """The grid of a Flower run that this process started; if Flower abandons the run, a new one is started."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._task, self._closed = _take_run(link), False

    @property
    def run_id(self) -> int:
        """Flower's id of the run."""
        return self._task.run_id

    def identify(self) -> None:
        """Identify this process to Flower as this run's; required before it creates messages."""
        self._task.identify()

    def get_node_ids(self) -> Iterable[int]:
        """The ids of the nodes that are online."""
        return self._tried(lambda: list(self._task.grid.get_node_ids()))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; returns their ids, empty for each that could not be sent."""
        return self._tried(lambda: [name or "" for name in self._task.grid.push_messages(list(messages))])

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that have arrived."""
        return self._tried(lambda: self._task.pull(list(message_ids)))

    def _tried(self, do: Callable[[], T]) -> T:
        """Call `do`; if Flower has abandoned the run, start a new one and raise GridChanged.

        Flower abandons a run after a long outage of its SuperLink, for example. A new one is also started if the grid
        is used after it was closed: a client that keeps its model is asked for it after the run.
        """
        try:
            if not self._closed and not self._task.lost.is_set():
                return do()
        except Exception as error:
            if not run_ended(error):
                raise
        if not self._closed:
            log.warning("Flower has ended its run %d: going on in a new one", self._task.run_id)
            self._task.finish("given up")
        self._task, self._closed = _take_run(self._link), False
        raise GridChanged

    def close(self) -> None:
        """Tell Flower that the run has ended."""
        if not self._closed:
            self._task.finish()
        self._closed = True


def _take_run(link: Link) -> ServerTask:
    try:
        if ended := stop_runs_of_ended_drivers(link):
            log.info("stopped the runs of drivers that were killed: %s", ended)
        start_run(link)
        client = runtime_client(link, COMPONENT, patience=20)
        began = time.monotonic()
        try:
            while time.monotonic() - began < ACQUIRE_SECONDS:
                # Two drivers that start at once may get each other's run, which does no harm: the app has no code.
                if token := acquire(client, SERVER):
                    return ServerTask(link, token)
                time.sleep(0.25)
        finally:
            client.close()
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        why = "give the secret that it was started with (secret=…)" if code in (401, 403) else f"HTTP status {code}"
        raise InvalidInput(f"The SuperLink at {link.address} refuses the connection: {why}.") from None
    except (httpx.HTTPError, OSError) as error:
        how = "over TLS " if link.ca is not None else ""
        raise InvalidInput(
            f"No SuperLink answers {how}at {link.address} ({first_line(error)}): `corymb flower up` starts one; if "
            "it has TLS, give its certificate (ca=…)."
        ) from None
    raise InvalidInput(
        f"The SuperLink at {link.address} started a run, but another process took it: give it --isolation process."
    )
