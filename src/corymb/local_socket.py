"""A node that answers a ClientApp on the same machine, over a unix socket: see `corymb.flower_app`."""

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
    """Answer whoever connects, one after another; only this user can."""
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
                    log.exception("a ClientApp was not answered")


def send(connection: socket.socket, data: bytes) -> None:
    """Send bytes, their number first."""
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive(connection: socket.socket) -> bytes:
    """The bytes that `send` sent."""
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        if not (more := connection.recv(min(length - len(found), 1 << 20))):
            raise EOFError("the other end is gone")
        found += more
    return bytes(found)
