"""A limit to a client's own work: a node in a process of its own, which is ended when a client takes too long.

A thread cannot be ended, a process can. The process says whose work it begins; if nothing more is heard of it for too
long, it is ended and started again, and the call is run without those clients, or for fewer of them at once until the
one that takes too long stands alone. Without a limit a node needs no second process.
"""

from __future__ import annotations

import json
import logging
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, NamedTuple

import torch

from corymb.core.engine import Part
from corymb.engines.node import Node, refusal
from corymb.messages import part_to_tree
from corymb.wire import WireError, pack, unpack

log = logging.getLogger(__name__)
START_SECONDS = 300.0
"""A process may take so long to load its data."""
_HEAD = struct.Struct(">cQ")


class _Overdue(Exception):
    """The process was ended: `clients` were being run."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__("took too long")
        self.clients = list(clients)


class _Run(NamedTuple):
    parts: list[Any]
    seconds: float
    remembers: bool


class Guarded:
    """Answers as the node in its process does, and for clients that take longer than `seconds` that they do."""

    def __init__(self, command: Sequence[str], seconds: float, allow: Sequence[str]) -> None:
        self.command, self.seconds, self.allow = list(command), seconds, tuple(allow)
        self._process: subprocess.Popen[bytes] | None = None

    def answer(self, message: bytes) -> bytes:
        """The reply of the node."""
        try:
            return self._ask(message)
        except _Overdue as late:
            return self._without(message, late.clients)
        except (OSError, EOFError) as error:
            self.close()
            return refusal(f"the process of the clients ended: {error}. It is started again for the next call.")

    def _without(self, message: bytes, late: list[int]) -> bytes:
        try:
            request = unpack(message, self.allow)
            if not isinstance(request, dict) or request.get("kind") != "call" or not late:
                return refusal(f"no answer within {self.seconds:g} s")
            ids: list[int] = request["ids"].tolist()
            places = [place for place, client in enumerate(ids) if client not in late]
            suspects = [place for place, client in enumerate(ids) if client in late]
            found, overdue = list[_Run](), suspects if len(suspects) == 1 else list[int]()
            for some in (places, *_halves(suspects)):
                self._some(request, some, found, overdue)
        except WireError as problem:
            return refusal(str(problem))
        why = f"took longer than {self.seconds:g} s"
        nobody = Part(torch.empty(0, dtype=torch.int64), None, [(ids[place], why) for place in sorted(overdue)])
        return pack(
            {
                "kind": "parts",
                "parts": [*(part for run in found for part in run.parts), part_to_tree(nobody)],
                "seconds": sum((run.seconds for run in found), 0.0),
                "remembers": any(run.remembers for run in found),
            }
        )

    def _some(self, request: dict[str, Any], places: list[int], found: list[_Run], overdue: list[int]) -> None:
        """Run the call for the clients at some places; of those that take too long, for fewer at once."""
        if not places:
            return
        again = {**request, "only": torch.tensor(places), "again": bool(found)}
        try:
            reply = unpack(self._ask(pack(again)), self.allow)
        except _Overdue as late:
            ids = request["ids"].tolist()
            suspects = [place for place in places if ids[place] in late.clients] or places
            if len(suspects) == 1:
                log.warning("client %d took longer than %g s: its process was ended", ids[suspects[0]], self.seconds)
                overdue += suspects
            self._some(request, [place for place in places if place not in suspects], found, overdue)
            for half in _halves(suspects):
                self._some(request, half, found, overdue)
            return
        if reply.get("kind") != "parts":
            raise WireError(str(reply.get("why", "its reply is of another kind")))
        found.append(_Run(reply["parts"], float(reply["seconds"]), bool(reply["remembers"])))

    # ---- the process

    def _ask(self, message: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        _write(process.stdin, b"m", message)
        heard, running = time.monotonic(), list[int]()
        while True:
            if not select.select([process.stdout], [], [], max(0.0, heard + self.seconds - time.monotonic()))[0]:
                self.close()
                raise _Overdue(running)
            kind, data = _read(process.stdout)
            if kind == b"r":
                return data
            heard, running = time.monotonic(), json.loads(data)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            assert self._process.stdout is not None
            ready = select.select([self._process.stdout], [], [], START_SECONDS)[0]
            if not ready or _read(self._process.stdout)[0] != b"s":
                self.close()
                raise OSError("it did not start")
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


def _halves(places: list[int]) -> list[list[int]]:
    """Two halves; nothing of one place, which stands alone already."""
    middle = len(places) // 2
    return [places[:middle], places[middle:]] if len(places) > 1 else []


def serve_pipe(make: Callable[[], Node]) -> None:
    """The other end: a node that reads messages from stdin and answers on stdout, until stdin ends."""
    inwards, outwards = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever a client function prints is no reply
    lock = threading.Lock()
    node = make()

    def begun(clients: Sequence[int]) -> None:
        with lock:
            _write(outwards, b"t", json.dumps(list(clients)).encode())

    node.engine.host.begun = begun  # sessions are copies of it
    _write(outwards, b"s", b"")
    while True:
        try:
            _, message = _read(inwards)
        except EOFError:
            return
        reply = node.answer(message)
        with lock:
            _write(outwards, b"r", reply)


def _write(pipe: BinaryIO | Any, kind: bytes, data: bytes) -> None:
    rest = memoryview(_HEAD.pack(kind, len(data)) + data)
    while rest:
        rest = rest[pipe.write(rest) or 0 :]
    pipe.flush()


def _read(pipe: BinaryIO | Any) -> tuple[bytes, bytes]:
    kind, length = _HEAD.unpack(_exactly(pipe, _HEAD.size))
    return kind, _exactly(pipe, length)


def _exactly(pipe: BinaryIO | Any, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        if not (more := pipe.read(min(length - len(found), 1 << 20))):
            raise EOFError("the other end is gone")
        found += more
    return bytes(found)
