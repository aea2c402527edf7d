"""A host in a process of its own: data, sessions, client memory. Bytes come in, bytes go out, whatever came in.

A node runs only client functions, and makes only objectives, of packages on its own allow-list. Every call names its
session and how far the server got with this host; what the host did after that is forgotten before the call is run, and
what clients keep is on disk before the reply leaves. So a call may come twice, late, or after a restart.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from corymb.core.engine import START, Call, Part, Version
from corymb.engines.host import HasHost, one_line
from corymb.engines.node_journal import NodeJournal, write_file
from corymb.messages import OURS, call_from_tree, part_to_tree
from corymb.objectives.recipe import made_from
from corymb.settings import InvalidInput, first_line, require
from corymb.trees import Tree
from corymb.wire import NotAllowed, NotHere, WireError, pack, unpack

log = logging.getLogger(__name__)
OPENED = "session.safetensors"
TOKEN = "token"
SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
FORMAT = 1
"""Of requests and replies: both sides must speak the same."""


class UnknownSession(Exception):
    """A call for a session that this node has never opened, or of which it has nothing left."""


class _Request(NamedTuple):
    """A call as it came in."""

    call: Call
    ids: Tensor
    keep: int
    """No server goes back to before this clock."""
    remembers: bool
    """Whether clients keep something in this session, as the server knows: a node that has nothing then refuses."""
    only: Tensor | None
    """Places among `ids` to run now; None for all."""
    again: bool
    """Whether others of `ids` were run before by the same call, whose memory stays."""


class _Session:
    """The clients with one objective and their memory in it."""

    def __init__(self, engine: Any, journal: NodeJournal) -> None:
        self.engine, self.journal = engine, journal
        self.at = START  # the call after which memory in this process is
        self.path = [START]  # the calls that memory in this process can go back to
        self.last: tuple[str, bytes] | None = None

    @property
    def memory(self) -> Any:
        return self.engine.host.memory

    @property
    def remembers(self) -> bool:
        """Whether any client has written anything."""
        return not self.memory.empty or any(entry.files for entry in self.journal.entries.values())

    def run(self, request: _Request) -> Part:
        """Go back to where the server is, run the call, and keep what clients wrote."""
        call, ids = request.call, request.ids
        begun = request.again and call.version in self.journal.entries
        self._go_back(call.version if begun else call.since.get("", START), request.remembers)
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
                f"this node has nothing of client memory at clock {since.clock}: its folder is gone, or it is another "
                "one. Start it with the folder it had, or begin a new run."
            )
        if place in self.path and self.memory.reaches(place):
            self.path = self.path[: self.path.index(place) + 1]
        elif place == START:
            self.path = [START]
        else:
            if self.journal.folder is None:
                raise WireError(f"client memory at clock {since.clock} is gone: this node keeps none on disk.")
            self.memory.restore(place, self.journal.read(place), self.engine.host.device)
            self.path = [place]
        self.at = place


def _run(engine: Any, call: Call, ids: Tensor) -> Part:
    try:
        (part,) = engine.run(call, ids)
    except Exception as error:  # every client raised: the server decides whether everybody did
        line = one_line(error)
        log.info("%s failed at every client", call.fn.name, exc_info=True)
        return Part(ids[:0], None, [(client, f"raised {line}") for client in ids.tolist()], error=line)
    done: Part = part
    return done


class Node:
    """A host that answers messages.

    `engine` holds the clients, in this process; sessions are opened on it. `allow` are further packages, of the user's
    own, whose client functions and models a message may name. `folder` is where sessions, client memory and the node's
    token outlast the process.
    """

    def __init__(self, engine: HasHost, name: str, *, allow: Sequence[str] = (), folder: Path | None = None) -> None:
        require(bool(SESSION.fullmatch(name)), f"A node is named with letters, digits, dots and dashes, got {name!r}.")
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

    def answer(self, message: bytes) -> bytes:
        """The reply to a message; whatever is wrong with it is said in the reply."""
        try:
            request = unpack(message, self.allow)
            kind = request.get("kind") if isinstance(request, dict) else None
            if kind not in self._answers:
                raise WireError(f"the message is of the unknown kind {str(kind)[:40]!r}.")
            if kind != "call":
                return pack(self._answers[str(kind)](request))
            return self._once(request, hashlib.sha256(message).hexdigest())
        except UnknownSession as problem:
            return refusal(str(problem), unknown=True)
        except (WireError, InvalidInput) as problem:
            log.warning("refused a message: %s", problem)
            return refusal(f"{first_line(problem)}{_remedy(problem)}", never=isinstance(problem, (NotAllowed, NotHere)))
        except Exception as error:
            log.exception("a message could not be answered")
            return refusal(one_line(error))

    def _once(self, request: dict[str, Any], digest: str) -> bytes:
        """The reply to a call; to one that comes again, the reply that it got."""
        session = self._session(request.get("session"))
        if session.last is not None and session.last[0] == digest:
            log.info("a call came again: its answer is given again")
            return session.last[1]
        reply = pack(self._call(request))
        session.last = (digest, reply)
        return reply

    # ---- what may be asked

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
            "fingerprint": engine.fingerprint,
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
            session = self._sessions[name] = self._opened(name, recipe)
            if self.folder is not None:
                write_file(self._folder(name) / OPENED, pack({"objective": recipe}))
        wanted = made_from(recipe, self.allow).describe()
        if session.engine.objective.describe() != wanted:
            raise WireError(f"session {name!r} is one with another objective: {wanted[:100]}")
        return {"kind": "opened"}

    def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = _read_call(request, len(self.engine.names))
        session = self._session(request["session"])
        began = time.perf_counter()
        part = session.run(asked)
        spent = time.perf_counter() - began
        return {"kind": "parts", "parts": [part_to_tree(part)], "seconds": spent, "remembers": session.remembers}

    # ---- sessions

    def _session(self, name: Any) -> _Session:
        name = _session_name(name)
        if name not in self._sessions:
            kept = None if self.folder is None else self.folder / name / OPENED
            if kept is None or not kept.exists():
                raise UnknownSession(f"this node has no session {name!r}.")
            self._sessions[name] = self._opened(name, unpack(kept.read_bytes(), self.allow)["objective"])
        return self._sessions[name]

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
    if not isinstance(name, str) or not SESSION.fullmatch(name):
        raise WireError("the message names no session.")
    return name


def _read_call(request: dict[str, Any], clients: int) -> _Request:
    ids, only, keep = request.get("ids"), request.get("only"), request.get("keep", 0)
    if not _rise(ids, clients) or not (only is None or _rise(only, len(cast(Tensor, ids)))):
        raise WireError("the call asks for clients that this node does not have.")
    if type(keep) is not int:
        raise WireError("the call does not say from which clock on memory is kept.")
    call = call_from_tree(request.get("call"))
    return _Request(call, cast(Tensor, ids), keep, request.get("remembers") is True, only, request.get("again") is True)


def _rise(places: Any, most: int) -> bool:
    """Whether these are places below `most`, each once and in order."""
    if not isinstance(places, Tensor) or places.dtype != torch.int64 or places.dim() != 1:
        return False
    return len(places) == 0 or (int(places[0]) >= 0 and int(places[-1]) < most and bool((places.diff() > 0).all()))


def refusal(why: str, *, unknown: bool = False, never: bool = False) -> bytes:
    """The reply to a message that cannot be answered; `never` says that it is of no use to ask again."""
    return pack({"kind": "refused", "why": why[:500], "unknown": unknown, "never": never})


def _remedy(problem: Exception) -> str:
    """What a node's owner can do about something that is not to be found there."""
    if isinstance(problem, NotAllowed):
        return (
            f" The node's owner can allow it: --allow {problem.package} (federation.toml: allow), and start it again."
        )
    return " A node that is running knows no newer code: start it again." if isinstance(problem, NotHere) else ""


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _token(folder: Path | None) -> str:
    """What a node proves to be the same with after a restart."""
    if folder is None:
        return secrets.token_hex(16)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TOKEN
    if not path.exists():
        write_file(path, secrets.token_hex(16).encode())
        path.chmod(0o600)
    return path.read_text(encoding="utf-8")


def versions() -> dict[str, str]:
    """The versions that must agree, or may explain different bits."""
    own = sys.modules["corymb"].__version__  # importing the package from inside would close a circle
    return {"corymb": own, "torch": str(torch.__version__), "python": platform.python_version()}
