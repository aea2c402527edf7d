"""Wraps bytes in Flower messages, and unwraps them."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict

RECORD, FIELD = "corymb", "message"
KIND = f"{MessageType.QUERY}.corymb"


def message_to(node: int, data: bytes) -> Message:
    """A message for a node, with Flower's default lifetime of 12 hours."""
    return Message(_content(data), dst_node_id=node, message_type=KIND)


def reply_to(message: Message, data: bytes) -> Message:
    """The reply to a message."""
    return Message(_content(data), reply_to=message)


def _content(data: bytes) -> RecordDict:
    return RecordDict({RECORD: ArrayRecord({FIELD: Array("uint8", (len(data),), "corymb", data)})})


def bytes_in(message: Message) -> bytes:
    """The bytes in a message; empty, which no reader accepts, if it is not one of Corymb's."""
    record = message.content.array_records.get(RECORD) if message.has_content() else None
    array = None if record is None else record.get(FIELD)
    return b"" if array is None else bytes(array.data)


def take_bytes(message: Message) -> bytes:
    """The bytes in a message, which it then no longer holds: while a large one is worked on, memory has no copy."""
    data = bytes_in(message)
    if message.has_content():
        message.content.pop(RECORD, None)
    return data
