"""A host of clients in a separate process, with its data, sessions and client memory, that answers messages in bytes.

A node runs client functions and makes objectives only from packages on its allow-list, and answers every message,
however malformed. Each call names its session and the last call of this host that the server accepted. The node
discards later memory writes before it runs the call, and memory is on disk before the reply is sent. A call may
therefore arrive twice, late, or after a restart.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import platform
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from corymb.core.engine import START, Call, Part, Version
from corymb.engines.host import HasHost, one_line
from corymb.engines.node_journal import NodeJournal, write_file
from corymb.messages import OURS, call_from_tree, part_to_tree
from corymb.objectives.recipe import made_from
from corymb.settings import PLAIN_NAME, InvalidInput, check_node_name, first_line
from corymb.trees import Tree
from corymb.wire import SCRIPT, NotAllowed, NotHere, WireError, pack, unpack

log = logging.getLogger(__name__)
OPENED = "session.safetensors"
TOKEN = "token"
FORMAT = 1
"""The version of the message format, which must be the same on both sides."""
MOST_SESSIONS = 4
"""How many sessions are in memory at once. A run has two or three; those of earlier runs are on disk."""
DISK_FULL = "this node's disk is full, so client memory cannot be kept: free some space there (--state)"


class UnknownSession(Exception):
    """Raised for a session that this node never opened, or of which nothing is left."""


class OtherData(WireError):
    """Raised for a call of a run that began with other data: a node reads its data again when it is restarted."""


NEVER = (NotAllowed, NotHere, OtherData)
"""Refusals that sending the message again does not change."""


class _Request(NamedTuple):
    """The contents of a call's message."""

    call: Call
    ids: Tensor
    keep: int
    """The earliest clock that the server may go back to."""
    remembers: bool
    """Whether, as far as the server knows, this node's clients have memory in this session; if it is lost, the node
    refuses the call."""
    only: Tensor | None
    """Indices into `ids` of the clients to run now; None for all."""
    again: bool
    """Whether other clients of the same call have run already; their memory writes are kept."""


class _Session:
    """The clients with one objective, and their memory of it."""

    def __init__(self, engine: Any, journal: NodeJournal) -> None:
        self.engine, self.journal = engine, journal
        self.at = START  # the version of the memory in this process
        self.path = [START]  # the versions that the memory in this process can go back to
        self.last: tuple[str, bytes] | None = None
        self.functions: set[str] = set()  # those called so far in this process

    @property
    def memory(self) -> Any:
        return self.engine.host.memory

    @property
    def remembers(self) -> bool:
        """Whether any client has memory."""
        return not self.memory.empty or any(entry.files for entry in self.journal.entries.values())

    def run(self, request: _Request) -> Part:
        """Return memory to the server's version, run the call, and store the memory writes."""
        call, ids = request.call, request.ids
        started = request.again and call.version in self.journal.entries
        self._go_back(call.version if started else call.since.get("", START), request.remembers)
        call = call._replace(since={"": self.at})
        if request.only is not None:
            ids, call = ids[request.only], call.of(request.only)
        part = _run(self.engine, call, ids)
        if not call.readonly:
            self.journal.write(call.version, self.at, *self.memory.export())
            self.at = call.version
            if request.keep:
                self.journal.drop_before(request.keep)
                self.memory.forget_before(request.keep)
            self.path = [at for at in dict.fromkeys([*self.path, self.at]) if self.memory.reaches(at)]
        return part

    def _go_back(self, since: Version, remembers: bool) -> None:
        place = self.journal.place_of(since, self.at if self.at > START else self.journal.head)
        if place == START < since and remembers:
            raise WireError(
                f"this node has nothing of client memory at clock {since.clock}: its folder is missing or another one. "
                "Start it with the folder that it had, or begin a new run."
            )
        if place in self.path and self.memory.reaches(place):
            self.path = self.path[: self.path.index(place) + 1]
        elif place == START:
            self.path = [START]
        else:
            if self.journal.folder is None:
                raise WireError(
                    f"client memory at clock {since.clock} is lost: this node has no folder to keep it in. Begin a new "
                    "run, and start the node with a folder."
                )
            self.memory.restore(place, self.journal.read(place), self.engine.host.device)
            self.path = [place]
        self.at = place


def _run(engine: Any, call: Call, ids: Tensor) -> Part:
    try:
        (part,) = engine.run(call, ids)
    except Exception as error:  # every client of this node raised; the server knows whether those of all nodes did
        line = one_line(error)
        log.info("%s failed at every client", call.fn.name, exc_info=True)
        return Part(ids[:0], None, [(client, f"raised {line}") for client in ids.tolist()], error=line)
    done: Part = part
    return done


class Node:
    """A host of clients that answers messages.

    `engine` is an in-process engine with the clients, on which sessions are opened. `allow` lists further packages
    whose client functions and models messages may name. `folder` stores sessions, client memory and the node's token
    beyond the life of the process.
    """

    def __init__(self, engine: HasHost, name: str, *, allow: Sequence[str] = (), folder: Path | None = None) -> None:
        check_node_name(name)
        self.engine: Any = engine
        self.name, self.folder = name, folder
        self.allow = (*OURS, *(package for package in allow if package not in OURS))
        self.token = _token(folder)
        self._sessions: dict[str, _Session] = {}
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "hello": self._hello,
            "open": self._open,
            "call": self._call,
            "echo": lambda request: {"kind": "echo", "payload": request.get("payload")},
        }

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the clients' data, which takes as long as reading them: they stay the same in this process."""
        return str(self.engine.fingerprint)

    def answer(self, message: bytes) -> bytes:
        """The reply to a message; if the message is wrong, a reply that says why."""
        try:
            digest = hashlib.sha256(message).hexdigest()
            request = unpack(message, self.allow)
            del message  # a large one is not kept while it is worked on, unless the caller keeps it
            kind = request.get("kind") if isinstance(request, dict) else None
            if kind not in self._answers:
                raise WireError(f"the message is of unknown kind {str(kind)[:40]!r}.")
            if kind != "call":
                return pack(self._answers[str(kind)](request))
            return self._once(request, digest)
        except UnknownSession as problem:
            return refusal(str(problem), unknown=True)
        except (WireError, InvalidInput) as problem:
            log.warning("a message was refused: %s", problem)
            return refusal(f"{first_line(problem)}{_remedy(problem)}", never=isinstance(problem, NEVER))
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                log.error("a message was refused: %s", DISK_FULL)
                return refusal(DISK_FULL)
            log.exception("a message could not be answered")
            return refusal(one_line(error))

    def _once(self, request: dict[str, Any], digest: str) -> bytes:
        """The reply to a call; a repeated message gets the same reply again, without running the call."""
        session = self._session(request.get("session"))
        if session.last is not None and session.last[0] == digest:
            log.info("a call arrived again: sending the same reply")
            return session.last[1]
        session.last = None  # the server has it, since it sends something else
        answered = self._call(request)
        request.clear()  # its models are not needed any more
        reply = pack(answered)
        session.last = (digest, reply)
        return reply

    # ---- kinds of messages

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        engine = self.engine
        return {
            "kind": "hello",
            "format": FORMAT,
            "name": self.name,
            "token": hashlib.sha256(self.token.encode()).hexdigest(),
            "clients": list(engine.names),
            "sizes": engine.sizes,
            "schema": _plain(engine.schema),
            "fingerprint": self.fingerprint,
            "engine": {name: value for name, value in engine.describe().items() if name not in ("memory", "chunk")},
            "versions": versions(),
            "allow": list(self.allow),
        }

    def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        name = _session_name(request.get("session"))
        recipe = request.get("objective")
        try:
            session = self._session(name)
        except UnknownSession:
            session = self._opened(name, recipe)
            if self.folder is not None:
                write_file(self._folder(name) / OPENED, pack({"objective": recipe}))
            self._hold(name, session)  # only now: one that is not on disk would be lost with this process
            log.info("session %s opened: %s", name, " ".join(session.engine.objective.describe().split())[:200])
        wanted = made_from(recipe, self.allow).describe()
        if session.engine.objective.describe() != wanted:
            raise WireError(f"session {name!r} has another objective than the one asked for, {wanted[:100]}")
        return {"kind": "opened"}

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("data", self.fingerprint) != self.fingerprint:
            raise OtherData(
                "its data are not those that it had when the run began: give it those back and restart it, or begin a "
                "new run"
            )
        parsed = _read_call(request, len(self.engine.names))
        session = self._session(request["session"])
        if (function := parsed.call.fn.name) not in session.functions:
            session.functions.add(function)
            log.info("session %s: %s for %d clients", request["session"], function, len(parsed.ids))
        began = time.perf_counter()
        part = session.run(parsed)
        spent = time.perf_counter() - began
        return {"kind": "parts", "parts": [part_to_tree(part)], "seconds": spent, "remembers": session.remembers}

    # ---- sessions

    def _session(self, name: Any) -> _Session:
        name = _session_name(name)
        if name not in self._sessions:
            stored = None if self.folder is None else self.folder / name / OPENED
            if stored is None or not stored.exists():
                raise UnknownSession(f"this node has no session {name!r}.")
            self._hold(name, self._opened(name, unpack(stored.read_bytes(), self.allow)["objective"]))
        self._sessions[name] = session = self._sessions.pop(name)  # the last one is the latest used
        return session

    def _hold(self, name: str, session: _Session) -> None:
        """Keep a session in memory, and release those not used for longest: they are on disk if there is a folder."""
        self._sessions[name] = session
        while self.folder is not None and len(self._sessions) > MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]

    def _opened(self, name: str, recipe: Tree) -> _Session:
        placement = self.engine.host.placement
        objective = made_from(recipe, self.allow).to(placement.device, placement.dtype)
        folder = None if self.folder is None else self._folder(name)
        return _Session(self.engine.open(objective), NodeJournal(folder))

    def _folder(self, session: str) -> Path:
        assert self.folder is not None
        folder = self.folder / session
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _session_name(name: Any) -> str:
    if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name):
        raise WireError("the message names no session.")
    return name


def _read_call(request: dict[str, Any], clients: int) -> _Request:
    ids, only, keep = request.get("ids"), request.get("only"), request.get("keep", 0)
    if not _ascending(ids, clients) or not (only is None or _ascending(only, len(cast(Tensor, ids)))):
        raise WireError("the call asks for clients that this node does not have.")
    if type(keep) is not int:
        raise WireError(f"the call's earliest clock to keep is a {type(keep).__name__}, wanted an integer.")
    call = call_from_tree(request.get("call"))
    return _Request(call, cast(Tensor, ids), keep, request.get("remembers") is True, only, request.get("again") is True)


def _ascending(places: Any, most: int) -> bool:
    """Whether these are indices below `most`, strictly ascending."""
    if not isinstance(places, Tensor) or places.dtype != torch.int64 or places.dim() != 1:
        return False
    return len(places) == 0 or (int(places[0]) >= 0 and int(places[-1]) < most and bool((places.diff() > 0).all()))


def refusal(why: str, *, unknown: bool = False, never: bool = False) -> bytes:
    """The reply to a message that cannot be answered.

    `unknown` means that the node does not have the session; `never`, that sending the message again is of no use.
    """
    return pack({"kind": "refused", "why": why[:500], "unknown": unknown, "never": never})


def _remedy(problem: Exception) -> str:
    """What the node's owner can do about a name that is not allowed or not found."""
    if isinstance(problem, (NotAllowed, NotHere)) and problem.package == SCRIPT:
        return (
            " It is defined in the script that was started, which no other process can import: put it into a module "
            "that the node has too, import it from there, and allow that module."
        )
    if isinstance(problem, NotAllowed):
        return (
            f" The node's owner can allow it: --allow {problem.package} (federation.toml: allow), and restart the node."
        )
    return " If the code is newer than the node's process, restart the node." if isinstance(problem, NotHere) else ""


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _token(folder: Path | None) -> str:
    """The secret by which a restarted node proves that it is the same node; stored in `folder` if there is one."""
    if folder is None:
        return secrets.token_hex(16)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TOKEN
    if not path.exists():
        write_file(path, secrets.token_hex(16).encode())
        path.chmod(0o600)
    return path.read_text(encoding="utf-8")


def versions() -> dict[str, str]:
    """The versions of Corymb, which must agree, and of torch and Python, which may explain different results."""
    own = sys.modules["corymb"].__version__  # not imported: that would be circular
    return {"corymb": own, "torch": str(torch.__version__), "python": platform.python_version()}
