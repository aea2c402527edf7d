"""Connects a node with a ClientApp on the same machine over a unix socket: see `corymb.flower_app`."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)
_LENGTH = struct.Struct(">Q")


def serve_socket(answer: Callable[[bytes], bytes], path: Path) -> None:
    """Answer connections one after another; only this user can connect."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        before = os.umask(0o077)
        try:
            server.bind(str(path))
        finally:
            os.umask(before)
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection:
                try:
                    send(connection, answer(receive(connection)))
                except (OSError, EOFError):
                    log.exception("the connection to a ClientApp failed before it was answered")


def send(connection: socket.socket, data: bytes) -> None:
    """Send bytes, preceded by their length."""
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> bytes:
    """The bytes that `send` sent."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        if not (more := connection.recv(min(length - len(data), 1 << 20))):
            raise EOFError("the other end closed the connection")
        data += more
    return bytes(data)
