"""A time limit for each client's work: the node runs in a separate process, which is killed if a client takes too long.

A thread cannot be killed, a process can. The process announces which clients it starts to run; if it then sends nothing
for too long, it is killed and restarted, and the call is repeated without those clients, then for smaller and smaller
groups of them until the one that takes too long is found. Without a limit, a node needs no second process.
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
"""The longest time that a process may take to load its data."""
_HEAD = struct.Struct(">cQ")


class _Overdue(Exception):
    """The process was killed while it ran `clients`."""

    def __init__(self, clients: Sequence[int]) -> None:
        super().__init__("took too long")
        self.clients = list(clients)


class _Run(NamedTuple):
    parts: list[Any]
    seconds: float
    remembers: bool


class Guarded:
    """Forwards messages to a node in another process, and rejects clients that take longer than `seconds`."""

    def __init__(self, command: Sequence[str], seconds: float, allow: Sequence[str]) -> None:
        self.command, self.seconds, self.allow = list(command), seconds, tuple(allow)
        self._process: subprocess.Popen[bytes] | None = None

    def answer(self, message: bytes) -> bytes:
        """The node's reply to a message."""
        try:
            return self._ask(message)
        except _Overdue as late:
            return self._without(message, late.clients)
        except (OSError, EOFError) as error:
            self.close()
            return refusal(f"the clients' process ended: {error}. It is restarted for the next call.")

    def _without(self, message: bytes, late: list[int]) -> bytes:
        """Repeat a call without the clients that took too long; those are named in the reply."""
        try:
            request = unpack(message, self.allow)
            if not isinstance(request, dict) or request.get("kind") != "call" or not late:
                return refusal(f"no answer within {self.seconds:g} s")
            ids: list[int] = request["ids"].tolist()
            places = [place for place, client in enumerate(ids) if client not in late]
            suspects = [place for place, client in enumerate(ids) if client in late]
            runs, overdue = list[_Run](), suspects if len(suspects) == 1 else list[int]()
            for group in (places, *_halves(suspects)):
                self._run_at(request, group, runs, overdue)
        except WireError as problem:
            return refusal(str(problem))
        why = f"took longer than {self.seconds:g} s"
        overdue_part = Part(torch.empty(0, dtype=torch.int64), None, [(ids[place], why) for place in sorted(overdue)])
        return pack(
            {
                "kind": "parts",
                "parts": [*(part for run in runs for part in run.parts), part_to_tree(overdue_part)],
                "seconds": sum((run.seconds for run in runs), 0.0),
                "remembers": any(run.remembers for run in runs),
            }
        )

    def _run_at(self, request: dict[str, Any], places: list[int], runs: list[_Run], overdue: list[int]) -> None:
        """Run the call for the clients at `places`; if it takes too long, split the suspects in halves and repeat.

        Appends finished runs to `runs`, and the places of clients that take too long to `overdue`.
        """
        if not places:
            return
        again = {**request, "only": torch.tensor(places), "again": bool(runs)}
        try:
            reply = unpack(self._ask(pack(again)), self.allow)
        except _Overdue as late:
            ids = request["ids"].tolist()
            suspects = [place for place in places if ids[place] in late.clients] or places
            if len(suspects) == 1:
                log.warning("client %d took longer than %g s: its process was killed", ids[suspects[0]], self.seconds)
                overdue += suspects
            self._run_at(request, [place for place in places if place not in suspects], runs, overdue)
            for half in _halves(suspects):
                self._run_at(request, half, runs, overdue)
            return
        if reply.get("kind") != "parts":
            raise WireError(str(reply.get("why", f"its reply is {reply.get('kind')!r}, wanted 'parts'")))
        runs.append(_Run(reply["parts"], float(reply["seconds"]), bool(reply["remembers"])))

    # ---- the process

    def _ask(self, message: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        _write(process.stdin, b"m", message)
        last_heard, running = time.monotonic(), list[int]()
        while True:
            if not select.select([process.stdout], [], [], max(0.0, last_heard + self.seconds - time.monotonic()))[0]:
                self.close()
                raise _Overdue(running)
            kind, data = _read(process.stdout)
            if kind == b"r":
                return data
            last_heard, running = time.monotonic(), json.loads(data)

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
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


def _halves(places: list[int]) -> list[list[int]]:
    """The list in two halves; nothing for a single place."""
    middle = len(places) // 2
    return [places[:middle], places[middle:]] if len(places) > 1 else []


def serve_pipe(make: Callable[[], Node]) -> None:
    """The child process's side: a node that reads messages from stdin and answers on stdout, until stdin ends."""
    inwards, outwards = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # keep what client functions print out of the replies
    lock = threading.Lock()
    node = make()

    def on_begin(clients: Sequence[int]) -> None:
        with lock:
            _write(outwards, b"t", json.dumps(list(clients)).encode())

    node.engine.host.on_begin = on_begin  # sessions are copies of this host, so they report too
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
    data = bytearray()
    while len(data) < length:
        if not (more := pipe.read(min(length - len(data), 1 << 20))):
            raise EOFError("the other end closed the pipe")
        data += more
    return bytes(data)
