"""A Flower grid as a transport: pushes one message to each node, and pulls replies until all have arrived."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from flwr.app import Message

from corymb.engines.flower.envelope import bytes_in, message_to
from corymb.engines.remote import POLL, Answer

log = logging.getLogger(__name__)
RESEND = 120.0
"""Seconds after which a silent node is sent its message again; the interval then doubles each time. Flower can lose a
message or a reply, for example if its SuperLink is killed. A call that arrives twice is run once."""


class Grid(Protocol):
    """The part of Flower's grid that is used."""

    def get_node_ids(self) -> Iterable[int]: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


class GridChanged(Exception):
    """Raised when the messages' run has ended: they will not be answered."""


class FlowerTransport:
    """Carries bytes over a grid. `poll` is the number of seconds between polls for replies, which load the SuperLink.

    `identify` is called before messages are made: Flower keeps the identity of their sender for the whole process.
    """

    name = "flower"

    def __init__(
        self,
        grid: Grid,
        *,
        poll: float = POLL,
        identify: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._grid, self._poll, self._identify, self.close = grid, poll, identify, close

    def addresses(self) -> Sequence[str]:
        """The ids of the nodes that are online."""
        return [str(node) for node in self._grid.get_node_ids()]

    def exchange(self, messages: Mapping[str, bytes], give_up: Callable[[], bool]) -> Iterator[Answer]:
        """Send a message to each node, and yield answers as they arrive."""
        if not messages:
            return
        answered = set[str]()
        try:
            for answer in self._exchange(messages, give_up):
                answered.add(answer.address)
                yield answer
        except GridChanged:
            for node in messages.keys() - answered:
                yield Answer(node, None, "Flower ended its run")

    def _exchange(self, messages: Mapping[str, bytes], give_up: Callable[[], bool]) -> Iterator[Answer]:
        waiting = dict[str, str]()  # from the id of each unanswered message to its node
        self._push(messages, messages, waiting)
        for node in messages.keys() - set(waiting.values()):
            yield Answer(node, None, "the message could not be sent: the node is gone, or it is too large")
        patience, sent = RESEND, time.monotonic()
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, "")
                if node and not reply.has_error():
                    for name in [name for name, other in waiting.items() if other == node]:
                        del waiting[name]
                    yield Answer(node, bytes_in(reply))
                elif node and node not in waiting.values():
                    yield Answer(node, None, f"Flower says: {reply.error.reason}"[:200])
            if waiting and give_up():
                break
            if waiting and time.monotonic() - sent > patience:
                log.info("resending to nodes that were silent for %.0f s: %s", patience, set(waiting.values()))
                self._push(messages, set(waiting.values()), waiting)
                patience, sent = 2 * patience, time.monotonic()
            if waiting:
                time.sleep(self._poll)
        for node in set(waiting.values()):
            yield Answer(node, None, "did not answer in time")

    def _push(self, messages: Mapping[str, bytes], nodes: Iterable[str], waiting: dict[str, str]) -> None:
        """Send these nodes their messages, one at a time, and add those that could be sent to `waiting`."""
        self._identify()
        for node in nodes:
            (name,) = self._grid.push_messages([message_to(int(node), messages[node])]) or [""]
            if name:
                waiting[name] = node
