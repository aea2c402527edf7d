"""The server's side of hosts in other processes: who hosts whom, sessions, versions, and what to do with silence.

A `Transport` carries bytes to nodes and back (Flower, Ray, or a function call in tests). One message goes to each node
for a call, whoever of its clients is asked. A node that gives no answer is asked again when it is back: calls may come
twice (see `corymb.engines.node`). What a node says is checked by the same rules as on every engine.
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from corymb.core.engine import START, Call, ClientData, Journal, Part, Rejection, in_order
from corymb.core.objective import Objective
from corymb.engines.agreement import same_schema
from corymb.engines.node import FORMAT, versions
from corymb.messages import OURS, call_to_tree, part_from_tree
from corymb.objectives.recipe import recipe_of
from corymb.settings import InvalidInput, fingerprint, first_line, require
from corymb.trees import Tree
from corymb.wire import WireError, pack, unpack

log = logging.getLogger(__name__)
HELLO = pack({"kind": "hello"})
POLL = 0.25
REMIND = 60.0
"""Seconds after which a node that the run waits for is named in the log, again and again."""
SOON = 10.0
"""Seconds after which a run that has not begun says for the first time whom it waits for."""


class Answer(NamedTuple):
    """What came back from an address: bytes, or why there are none."""

    address: str
    data: bytes | None
    problem: str = ""


Hellos = dict[str, Mapping[str, Any]]
"""What nodes say of themselves, by address."""


class Transport(Protocol):
    """Carries bytes to nodes and back. An address is the transport's own name for a node; it may change on restart."""

    name: str

    def addresses(self) -> Sequence[str]:
        """The nodes that can be reached now."""
        ...

    def exchange(self, messages: Mapping[str, bytes], give_up: Callable[[], bool]) -> Iterator[Answer]:
        """Send a message to each address, and yield what comes back as it comes: one answer each.

        Where `give_up()` becomes true, those who have not answered are let go.
        """
        ...

    def close(self) -> None:
        """Nothing more will be sent."""
        ...


class Patience(NamedTuple):
    """How long to wait for nodes that are silent."""

    seconds: float | None = None
    """Once enough clients have answered, silent nodes are waited for so long; None: until they answer."""
    min_replies: int = 1
    """How many clients are enough."""


class _Host(NamedTuple):
    """A node, as it said when it came."""

    name: str
    token: str
    clients: Tensor  # the places of its clients among all, in the node's own order
    hello: Mapping[str, Any]


class _Traffic:
    """What passed, for whoever measures: wire bytes are not the ledger's, which counts clients' own messages."""

    def __init__(self) -> None:
        self.messages = self.bytes_down = self.bytes_up = 0
        self.slowest = 0.0
        """Seconds of the slowest node's own work in the last call."""
        self.worked: dict[str, float] = {}
        """Seconds of each node's own work in all calls so far."""

    def add_work(self, node: str, seconds: float) -> None:
        """A node has worked for so long in the last call; whatever is no time is not counted."""
        if seconds > 0:
            self.slowest = max(self.slowest, seconds)
            self.worked[node] = self.worked.get(node, 0.0) + seconds


class RemoteEngine:
    """Clients on hosts in other processes.

    `expect` is the number of nodes to wait for before the federation is complete. `allow` are packages of the user's
    own that replies may name things of. `clients` are those of a run that goes on: their nodes are waited for, and
    others are left out.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        expect: int | None = None,
        wait: float = 300.0,
        patience: Patience = Patience(),  # noqa: B008 - frozen
        allow: Sequence[str] = (),
        remembers: bool = False,
        clients: Collection[str] = (),
    ) -> None:
        self._transport, self.patience = transport, patience
        self._wanted = frozenset(clients)
        self._allow = (*OURS, *allow)
        self._address: dict[str, str] = {}  # of each host
        self.traffic = _Traffic()
        self._strange: dict[str, str] = {}  # who was left out, and why
        self._unable: dict[str, set[str]] = {}  # who cannot run a function
        self._known = self._gather(expect or 1, wait)
        self._join(list(self._known.values()))
        self._remembers = set(self.hosts) if remembers else set[str]()
        self._keep = 0
        self.session, self._opening = "", b""
        self.objective: Objective = None  # type: ignore[assignment]  # until `open` gives one

    # ---- who is there

    def _say_hello(self, addresses: Sequence[str], least: int = 0, wait: float = REMIND) -> Hellos:
        """What nodes at these addresses say of themselves; one that says nothing sensible is left out, and named.

        Silent ones are waited for longer where fewer than `least` have answered: a SuperNode that waits for the rest of
        a message from a driver that was killed is deaf until Flower gives that run up, in a minute or two.
        """
        found, began = Hellos(), time.monotonic()
        messages = {address: HELLO for address in addresses if address not in self._strange}
        told = began + SOON - REMIND

        def enough() -> bool:
            nonlocal told
            now = time.monotonic()
            if now - told > REMIND and (silent := [address for address in messages if address not in found]):
                told = now
                line = "nodes %s are online but silent: they may still read their data, or fail to (see their logs)"
                log.warning(line, ", ".join(silent))
            return now - began > (min(REMIND, wait) if len(found) >= least else wait)

        for answer in self._transport.exchange(messages, enough):
            if answer.data is None:
                log.info("the node at %s is silent: %s", answer.address, answer.problem)
                continue
            try:
                hello = _read_hello(answer.data, self._allow)
                if self._wanted and self._wanted.isdisjoint(hello["clients"]):
                    raise InvalidInput(f"it is {hello['name']!r}, which has no client of this run")
                found[answer.address] = hello
            except (WireError, InvalidInput) as problem:
                self._strange[answer.address] = first_line(problem)
                log.warning("the node at %s is left out: %s", answer.address, first_line(problem))
        return found

    def _gather(self, least: int, wait: float) -> Hellos:
        """The nodes of a federation, by address, once as many are there as are expected."""
        began, found = time.monotonic(), Hellos()
        told = began + SOON - REMIND
        while True:
            new = [address for address in self._transport.addresses() if address not in found]
            found |= self._say_hello(new, least - len(found), max(0.0, wait - (time.monotonic() - began)))
            named = {str(one["name"]): address for address, one in found.items()}
            require(len(named) == len(found), f"Two nodes have the same name: {sorted(named)}. Give each its own.")
            absent = self._wanted.difference(*(one["clients"] for one in found.values()))
            if len(found) >= least and not absent:
                silent = [address for address in new if address not in found and address not in self._strange]
                if silent:
                    log.warning("nodes %s are online but silent: left out (nodes=… waits for all)", ", ".join(silent))
                return found
            left_out = "".join(f"; one was left out: {why}" for why in list(self._strange.values())[:1])
            there = f"{len(found)} of {least} nodes are there"
            lacking = f"; nobody has client {min(absent)!r} of the run, and {len(absent) - 1} more" if absent else ""
            how = "Start the nodes that the run had" if absent else "Start more, or expect fewer"
            late = time.monotonic() - began >= wait
            require(not late, f"{there} after {wait:.0f} s{lacking}{left_out}. {how}.")
            if time.monotonic() - told > REMIND:
                told = time.monotonic()
                log.warning("waiting: %s%s%s", there, lacking, left_out)
            time.sleep(POLL)

    def _join(self, hellos: list[Mapping[str, Any]]) -> None:
        hellos = sorted(hellos, key=lambda hello: str(hello["name"]))
        owners = [(name, hello) for hello in hellos for name in hello["clients"]]
        twice: dict[str, str] = {}
        for name, hello in owners:
            require(
                name not in twice,
                f"Client {name!r} is on two nodes, {twice.get(name)!r} and {hello['name']!r}: give it to one of them.",
            )
            twice[name] = str(hello["name"])
        order = in_order([name for name, _ in owners]).tolist()
        self.names = [owners[i][0] for i in order]
        self.hosts = [str(owners[i][1]["name"]) for i in order]
        places = {name: place for place, name in enumerate(self.names)}
        self._hosts: dict[str, _Host] = {}
        self.sizes = torch.zeros(len(self.names), dtype=torch.int64)
        for hello in hellos:
            clients = torch.tensor([places[name] for name in hello["clients"]], dtype=torch.int64)
            self._hosts[str(hello["name"])] = _Host(str(hello["name"]), str(hello["token"]), clients, hello)
            self.sizes[clients] = hello["sizes"]
        self._address = {str(hello["name"]): address for address, hello in self._known.items()}
        self._check_alike(hellos)  # first: another version may say of its examples what this one does not know
        self.schema = same_schema(hellos)

    def _check_alike(self, hellos: Sequence[Mapping[str, Any]]) -> None:
        here, first = versions(), hellos[0]
        for hello in hellos:
            name, theirs = hello["name"], hello["versions"]
            same = theirs.get("corymb") == here["corymb"]
            require(
                same,
                f"Node {name!r} has corymb {theirs.get('corymb')}, this machine {here['corymb']}: install the same on "
                "both, and start the node again.",
            )
            if theirs.get("torch") != here["torch"]:
                line = "node %s has torch %s, this machine %s: numbers may differ in the last bits"
                log.warning(line, name, theirs.get("torch"), here["torch"])
            mine, other = (one["engine"].get("precision") for one in (hello, first))
            require(
                mine == other, f"Node {name!r} computes in {mine}, node {first['name']!r} in {other}: start them alike."
            )

    def _locate(self, missing: Collection[str]) -> None:
        """Look for hosts that gave no answer among the nodes that are there now: a restarted node has a new address."""
        there = set(self._transport.addresses())
        for host in missing:
            if self._address.get(host) not in there:
                self._address.pop(host, None)
        taken = set(self._address.values())
        strangers = [address for address in there if address not in taken]
        for address, hello in self._say_hello(strangers).items():
            known = self._hosts.get(str(hello["name"]))
            if known is None or known.name not in missing:
                continue  # a node that is not of this run, or one that takes another's name
            if hello["token"] != known.token or list(hello["clients"]) != list(known.hello["clients"]):
                log.warning("a node calls itself %s, but it is another one: it is left out", known.name)
                continue
            self._address[known.name] = address

    # ---- what an engine is

    @property
    def fingerprint(self) -> str:
        """Equal exactly where the clients' data are."""
        return fingerprint([(name, host.hello["fingerprint"]) for name, host in sorted(self._hosts.items())])

    def describe(self) -> dict[str, Any]:
        """What changes bits, for the record of a run. The server's own arithmetic is on the CPU."""
        engines = {name: dict(host.hello["engine"]) for name, host in sorted(self._hosts.items())}
        precision = next(iter(engines.values())).get("precision", "float32")
        return {"engine": self._transport.name, "device": "cpu", "precision": precision, "hosts": engines}

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> Self:
        """The same clients with another objective: a session of its own at every node, which keeps its own journal.

        A session with a name that nodes know is taken up again, with what clients remember.
        """
        engine = copy.copy(self)
        engine.objective = objective
        engine.session = session or secrets.token_hex(8)
        engine._opening = pack({"kind": "open", "session": engine.session, "objective": recipe_of(objective)})
        engine._remembers = set(self._remembers)
        engine._open_at(list(self._hosts))
        return engine

    def _open_at(self, hosts: Sequence[str]) -> None:
        for host, reply in self._replies(dict.fromkeys(hosts, self._opening), self._waiting(0)):
            if isinstance(reply, str):
                log.warning("node %s is silent, and opens the session when it is back: %s", host, reply)
            elif reply.get("kind") != "opened":
                why = reply.get("why", "its answer is of another kind")
                raise InvalidInput(f"Node {host!r} did not open the session: {str(why)[:300]}")

    def refresh(self, data: ClientData) -> list[str]:
        """Refused: nodes hold their data."""
        raise InvalidInput("The clients' data are on their nodes: give them new examples there, and start a new run.")

    def remembers_from(self, algorithm: object) -> None:
        """Nodes of an algorithm whose clients keep something must have what they kept."""
        if getattr(algorithm, "keeps_memory", False):
            self._remembers = set(self.hosts)

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """No message is sent for it: the next call says from which clock on nodes have to keep client memory."""
        self._keep = min(keep, default=clock)

    # ---- calls

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """One message to every node that has any of the clients asked, and one part back from each."""
        asked = {name: places for name, host in self._hosts.items() if len(places := _places(ids, host.clients))}
        messages = {name: self._message(call, ids, name, places) for name, places in asked.items()}
        waiting = self._waiting(min(self.patience.min_replies, len(ids)))
        self.traffic.slowest = 0.0
        order, ready = sorted(messages), dict[str, list[Part]]()  # added up in one order, so that bits stay the same
        never = dict[str, str]()
        for name, reply in self._replies(messages, waiting):
            own = ids[asked[name]]
            if isinstance(reply, dict) and reply.get("never") is True:
                never[name] = str(reply.get("why"))[:500]
            ready[name] = self._parts(name, reply, own)
            waiting.answered += sum(len(part.ids) for part in ready[name])
            if isinstance(reply, dict) and isinstance(spent := reply.get("seconds"), float):
                self.traffic.add_work(name, min(spent, waiting.waited()))
            if isinstance(reply, dict) and reply.get("remembers") is True:
                self._remembers.add(name)
            while order and order[0] in ready:
                yield from ready.pop(order.pop(0))
        self._refuse(call.fn.name, never)

    def _refuse(self, function: str, never: Mapping[str, str]) -> None:
        """End a run whose function no node may run, or has. Some nodes alone cannot end it: they are left out."""
        known = self._unable.setdefault(function, set())
        for name, why in never.items():
            require(not set(self._hosts) <= known | set(never), f"No node can run {function}. Node {name!r}: {why}")
            if name not in known:
                log.warning("node %s takes no part in %s, and its clients are rejected: %s", name, function, why)
        known |= set(never)

    def _waiting(self, enough: int) -> _Waiting:
        return _Waiting(enough, self.patience.seconds)

    def _message(self, call: Call, ids: Tensor, host: str, places: Tensor) -> bytes:
        own = call.of(places)._replace(since={"": call.since.get(host, START)})
        local = torch.searchsorted(self._hosts[host].clients, ids[places])
        return pack(
            {
                "kind": "call",
                "session": self.session,
                "ids": local,
                "keep": self._keep,
                "remembers": host in self._remembers,
                "call": call_to_tree(own),
            }
        )

    def _replies(self, messages: Mapping[str, bytes], waiting: _Waiting) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Each host's reply as a tree, or in words why there is none; those who are silent are asked again."""
        pending = dict(messages)
        why, reopened = dict.fromkeys(pending, "did not answer"), set[str]()
        while pending:
            hosts = {self._address[host]: host for host in pending if host in self._address}
            for answer in self._transport.exchange({at: pending[host] for at, host in hosts.items()}, waiting.over):
                host = hosts[answer.address]
                if answer.data is None:
                    why[host] = answer.problem
                    continue
                self._count(pending[host], answer.data)
                reply = _read(answer.data, self._allow)
                lost = isinstance(reply, dict) and reply.get("unknown") is True and pending[host] is not self._opening
                if lost and host not in reopened:  # its sessions: this one is opened again, and it is asked once more
                    reopened.add(host)
                    with suppress(InvalidInput):
                        self._open_at([host])
                    continue
                del pending[host]
                yield host, reply
            if pending:
                if waiting.over():
                    break
                waiting.remind(pending)
                time.sleep(POLL)
                self._locate(list(pending))
        for host in pending:
            yield host, f"{why[host]}; waited for {waiting.waited():.0f} s"

    def _count(self, sent: bytes, received: bytes) -> None:
        self.traffic.messages += 1
        self.traffic.bytes_down += len(sent)
        self.traffic.bytes_up += len(received)

    def _parts(self, name: str, reply: dict[str, Any] | str, own: Tensor) -> list[Part]:
        """What a node's reply comes to, in the places of all clients; one that makes no sense is every client's."""
        problem = reply if isinstance(reply, str) else ""
        if isinstance(reply, dict) and reply.get("kind") != "parts":
            problem = str(reply.get("why", "its reply is of another kind"))
        if not problem and isinstance(reply, dict):
            try:
                trees = reply.get("parts")
                if not isinstance(trees, list):
                    raise WireError("its reply has no parts")
                parts = [self._placed(part_from_tree(tree, name), name) for tree in trees]
            except WireError as error:
                problem = first_line(error)
            else:
                named = {client for part in parts for client in (*part.ids.tolist(), *dict(part.rejected))}
                rest = [client for client in own.tolist() if client not in named]
                return [*parts, _rejected(rest, f"node {name}: it says nothing of this client", name)]
        return [_rejected(own.tolist(), f"node {name}: {problem}", name)]

    def _placed(self, part: Part, name: str) -> Part:
        """A part in the places of all clients; a node can speak of its own only."""
        clients = self._hosts[name].clients
        if len(part.ids) and not (int(part.ids.min()) >= 0 and int(part.ids.max()) < len(clients)):
            raise WireError("its reply is for clients that it does not have")
        rejected = [(int(clients[client]), why) for client, why in part.rejected if 0 <= client < len(clients)]
        return part._replace(ids=clients[part.ids], rejected=rejected)

    def echo(self, payload: Tree) -> float:
        """Seconds until every node has sent a payload back: what messages cost by themselves."""
        began = time.perf_counter()
        messages = dict.fromkeys(self._hosts, pack({"kind": "echo", "payload": payload}))
        for host, reply in self._replies(messages, self._waiting(len(self.names))):
            if not isinstance(reply, dict) or reply.get("kind") != "echo":
                raise InvalidInput(f"Node {host!r} did not send the payload back: {reply}")
        return time.perf_counter() - began

    def close(self) -> None:
        """End what connects this process with the nodes."""
        self._transport.close()


class _Waiting:
    """How long a call has been waited for, and whether that is enough."""

    def __init__(self, enough: int, patience: float | None) -> None:
        self._enough, self._patience = enough, patience
        self._began = self._reminded = time.monotonic()
        self._since: float | None = None
        self.answered = 0

    def over(self) -> bool:
        """Whether enough clients have answered, and patience with the others is at its end."""
        if self._patience is None or self.answered < self._enough:
            return False
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since >= self._patience

    def waited(self) -> float:
        """Seconds since the call was sent."""
        return time.monotonic() - self._began

    def remind(self, hosts: Collection[str]) -> None:
        """Say now and then who is waited for."""
        if time.monotonic() - self._reminded > REMIND:
            self._reminded = time.monotonic()
            log.warning("waiting for node %s for %.0f s (patience=… goes on without)", ", ".join(hosts), self.waited())


def _rejected(clients: Sequence[int], why: str, host: str) -> Part:
    rejected: list[Rejection] = [(client, why) for client in clients]
    return Part(torch.empty(0, dtype=torch.int64), None, rejected, host)


def _places(ids: Tensor, clients: Tensor) -> Tensor:
    """The places among those asked of a host's clients."""
    return torch.isin(ids, clients).nonzero().flatten()


def _read(data: bytes, allow: Sequence[str]) -> dict[str, Any] | str:
    try:
        tree = unpack(data, allow)
    except WireError as problem:
        return f"its reply cannot be read: {problem}"
    return tree if isinstance(tree, dict) else "its reply is of another kind"


_HELLO: Mapping[str, Callable[[Any], bool]] = {
    "name": lambda value: isinstance(value, str),
    "token": lambda value: isinstance(value, str),
    "clients": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "sizes": lambda value: isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 1,
    "schema": lambda value: isinstance(value, dict),
    "fingerprint": lambda value: isinstance(value, str),
    "engine": lambda value: isinstance(value, dict),
    "versions": lambda value: isinstance(value, dict),
}


def _read_hello(data: bytes, allow: Sequence[str]) -> Mapping[str, Any]:
    tree = unpack(data, allow)
    if not isinstance(tree, dict) or tree.get("kind") != "hello":
        why = tree.get("why") if isinstance(tree, dict) else None
        raise WireError(f"it does not introduce itself: {why or 'it may serve another program'}")
    if tree.get("format") != FORMAT:
        raise WireError(f"it speaks format {tree.get('format')}, this machine {FORMAT}: install the same version.")
    wrong = next((name for name, right in _HELLO.items() if not right(tree.get(name))), None)
    if wrong is None and bool((in_order(tree["clients"]).diff() <= 0).any()):
        wrong = "clients, which are not in order"
    if wrong is not None or len(tree["clients"]) != len(tree["sizes"]) or bool((tree["sizes"] < 0).any()):
        raise WireError(f"what it says of itself cannot be used: {wrong or 'sizes'}.")
    return tree
