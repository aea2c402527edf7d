"""A node's side: takes tasks from a SuperNode (`--isolation process`) and lets the node answer their messages.

One process serves all messages, and keeps data, objective and memory between them. It never loads the app that Flower
sends along.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from corymb.engines.flower.envelope import reply_to, take_bytes
from corymb.engines.flower.private import (
    CLIENT,
    Link,
    acquire,
    heartbeats,
    pull_task,
    push_output,
    push_reply,
    runtime_client,
)

log = logging.getLogger(__name__)
COMPONENT = "flwr-clientapp"
POLL = 0.2
"""Seconds between polls for a task."""


class _Tasks:
    """The tasks of a SuperNode, which has one at a time: if there is a next one, the current one has ended."""

    def __init__(self, acquire: Callable[[], str]) -> None:
        self._acquire, self._ahead = acquire, ""

    def take(self) -> str:
        """The token of the next task; empty if there is none."""
        token, self._ahead = self._ahead or self._acquire(), ""
        return token

    def another(self) -> bool:
        """Whether there is a next task; it is kept for `take`."""
        self._ahead = self._ahead or self._acquire()
        return bool(self._ahead)


def serve(answer: Callable[[bytes], bytes], link: Link, stop: threading.Event | None = None) -> None:
    """Answer messages until `stop` is set; waits for a SuperNode that cannot be reached."""
    stop = stop or threading.Event()
    client = runtime_client(link, COMPONENT)
    tasks = _Tasks(lambda: acquire(client, CLIENT))
    try:
        while not stop.is_set():
            if token := tasks.take():
                _do_task(answer, link, token, tasks.another)
            else:
                stop.wait(POLL)
    finally:
        client.close()


def _do_task(answer: Callable[[bytes], bytes], link: Link, token: str, overtaken: Callable[[], bool]) -> None:
    """Answer one message; errors are logged, so that the next one can be served."""
    client = runtime_client(link, COMPONENT, token, patience=30)
    try:
        with heartbeats(client):
            task = pull_task(client, overtaken)
            if task is None:
                log.warning("a message arrived incomplete: its sender is gone")
                return
            push_reply(client, reply_to(task.message, answer(take_bytes(task.message))), task.context)
            push_output(client, task.context)
    except Exception:
        log.exception("a task failed")
    finally:
        client.close()
