"""Nodes in this process behind real Flower messages: the whole engine except the network, for tests and debugging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flwr.app import Message

from corymb.engines.flower.envelope import bytes_in, reply_to
from corymb.engines.flower.private import delivered, identify

Answering = Callable[[bytes], bytes]


class DirectGrid:
    """A grid whose nodes answer when a message is pushed; messages and replies go through Flower's serialisation."""

    def __init__(self, nodes: Mapping[int, Answering]) -> None:
        self.nodes = dict(nodes)
        self._replies: dict[str, Message] = {}
        self.messages = 0
        identify(1, 1, 1)

    def get_node_ids(self) -> Iterable[int]:
        """The ids of all nodes."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver each message and keep the node's reply; returns the messages' ids."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        arrived = delivered(message)
        self.messages += 1
        name = str(arrived.metadata.message_id)
        self._replies[name] = delivered(reply_to(arrived, self.nodes[arrived.metadata.dst_node_id](bytes_in(arrived))))
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages; each is returned once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]
