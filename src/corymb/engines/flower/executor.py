"""A node's end: takes tasks from a SuperNode (`--isolation process`) and lets the node answer.

One process for all messages, with data, objective and memory in it. It never loads the app that Flower sends along.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from corymb.engines.flower.envelope import bytes_in, reply_to
from corymb.engines.flower.private import (
    CLIENT,
    Link,
    acquire,
    beating,
    pull_task,
    push_output,
    push_reply,
    runtime_client,
)

log = logging.getLogger(__name__)
COMPONENT = "flwr-clientapp"
POLL = 0.2
"""Seconds between two looks for a task."""


def serve(answer: Callable[[bytes], bytes], link: Link, stop: threading.Event | None = None) -> None:
    """Answer message after message, until told to stop; a SuperNode that is away is waited for."""
    stop = stop or threading.Event()
    client = runtime_client(link, COMPONENT)
    try:
        while not stop.is_set():
            if token := acquire(client, CLIENT):
                _do_task(answer, link, token)
            else:
                stop.wait(POLL)
    finally:
        client.close()


def _do_task(answer: Callable[[bytes], bytes], link: Link, token: str) -> None:
    """One message and its reply; what goes wrong with it is logged, and the next one is taken."""
    client = runtime_client(link, COMPONENT, token, patience=30)
    try:
        with beating(client):
            task = pull_task(client)
            push_reply(client, reply_to(task.message, answer(bytes_in(task.message))), task.context)
            push_output(client, task.context)
    except Exception:
        log.exception("a task failed")
    finally:
        client.close()
