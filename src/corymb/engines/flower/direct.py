"""Nodes in this process behind real Flower messages: all of the engine but the network, for tests and for debugging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flwr.app import Message

from corymb.engines.flower.envelope import bytes_in, reply_to
from corymb.engines.flower.private import delivered, identify

Answering = Callable[[bytes], bytes]


class DirectGrid:
    """A grid whose nodes answer as soon as a message is pushed; what arrives went through Flower's own packing."""

    def __init__(self, nodes: Mapping[int, Answering]) -> None:
        self.nodes = dict(nodes)
        self._replies: dict[str, Message] = {}
        self.messages = 0
        identify(1, 1, 1)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let every node answer."""
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        arrived = delivered(message)
        self.messages += 1
        name = str(arrived.metadata.message_id)
        self._replies[name] = delivered(reply_to(arrived, self.nodes[arrived.metadata.dst_node_id](bytes_in(arrived))))
        return name

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies, each once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]
