"""The server's side of hosts in other processes: discovery, sessions, calls, and waiting for silent nodes.

A `Transport` carries bytes to nodes and back (Flower, Ray, or a function call in tests). A call is one message to each
node that has any of the clients asked. A node that does not answer is sent the message again when it is back: nodes
handle repeated calls (see `corymb.engines.node`). Replies are checked by the same rules as on every engine.
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from corymb.core.engine import START, Call, ClientData, Journal, Part, Rejection, in_order
from corymb.core.objective import Objective
from corymb.core.snapshot import Algorithm, packages_of
from corymb.engines.agreement import same_schema
from corymb.engines.node import FORMAT, versions
from corymb.messages import OURS, call_to_tree, part_from_tree
from corymb.objectives.recipe import recipe_of
from corymb.settings import InvalidInput, fingerprint, first_line, require
from corymb.trees import Tree
from corymb.wire import SCRIPT, WireError, pack, package_of, unpack

log = logging.getLogger(__name__)
HELLO = pack({"kind": "hello"})
POLL = 0.25
REMIND = 60.0
"""Seconds between log messages that name the nodes that the run waits for."""
SOON = 10.0
"""Seconds until the first such message before a run begins."""
GRACE = 10.0
"""Seconds that a call waits for a sign of life of nodes that missed an earlier one, once all others have answered."""


class Answer(NamedTuple):
    """The answer from an address: bytes, or why there are none."""

    address: str
    data: bytes | None
    problem: str = ""


Hellos = dict[str, Mapping[str, Any]]
"""Replies of nodes to the hello message, by address."""


class Transport(Protocol):
    """Carries bytes to nodes and back. An address is the transport's name for a node; it may change on restart."""

    name: str

    def addresses(self) -> Sequence[str]:
        """The nodes that can be reached now."""
        ...

    def exchange(self, messages: Mapping[str, bytes], give_up: Callable[[], bool]) -> Iterator[Answer]:
        """Send a message to each address, and yield one answer for each, in order of arrival.

        Messages may be packed when they are looked up: look each one up when it is sent, and do not keep it.
        When `give_up()` becomes true, addresses that have not answered are no longer waited for.
        """
        ...

    def close(self) -> None:
        """Release the connection; nothing is sent after this."""
        ...


class _Message:
    """A message to a node, packed whenever it is sent: those of all nodes together hold as many copies of a model."""

    def __init__(self, make: Callable[[], bytes], *, opens: bool = False) -> None:
        self._make, self.opens, self.size = make, opens, 0

    def pack(self) -> bytes:
        """The message, the same bytes each time."""
        data = self._make()
        self.size = len(data)
        return data


class _Packing(Mapping[str, bytes]):
    """Messages by address, packed as they are looked up."""

    def __init__(self, messages: Mapping[str, _Message]) -> None:
        self._messages = messages

    def __getitem__(self, address: str) -> bytes:
        return self._messages[address].pack()

    def __iter__(self) -> Iterator[str]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)


class Patience(NamedTuple):
    """How long to wait for silent nodes."""

    seconds: float | None = None
    """How long to wait for silent nodes once enough clients have answered; None: until they answer."""
    min_replies: int = 1
    """How many clients are enough."""


class _Host(NamedTuple):
    """A node, as it introduced itself."""

    name: str
    token: str
    clients: Tensor  # the indices of its clients among all, in the node's order
    hello: Mapping[str, Any]


class _Traffic:
    """Counts messages and wire bytes, for measurements; the ledger counts the clients' own messages instead."""

    def __init__(self) -> None:
        self.messages = self.bytes_down = self.bytes_up = 0
        self.slowest = 0.0
        """Seconds that the slowest node spent computing in the last call."""
        self.computed: dict[str, float] = {}
        """Seconds that each node has spent computing in all calls so far."""

    def add_work(self, node: str, seconds: float) -> None:
        """Add the seconds that a node reports for the last call; anything but a positive number is ignored."""
        if seconds > 0:
            self.slowest = max(self.slowest, seconds)
            self.computed[node] = self.computed.get(node, 0.0) + seconds


class RemoteEngine:
    """Clients on hosts in other processes.

    `expect` is the number of nodes to wait for. `allow` lists further packages that replies may refer to;
    the reply to a call may also refer to the package of the function that was called.
    `clients` are the clients of a run that is resumed: their nodes are waited for, and other nodes are left out.
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
        self._address: dict[str, str] = {}  # by host
        self.traffic = _Traffic()
        self._left_out: dict[str, str] = {}  # addresses of nodes that were left out, and why
        self._impostors: set[str] = set()  # addresses of nodes that have the name of another one
        self._newcomers: set[str] = set()  # addresses of nodes that are not of this run
        self._unable: dict[str, set[str]] = {}  # by function, the nodes that cannot run it
        self._absent: set[str] = set()  # nodes that missed a whole call, and have given no sign of life since
        self._known = self._gather(expect or 1, wait)
        self._join(list(self._known.values()))
        self._remembers = set(self.hosts) if remembers else set[str]()
        self._keep = 0
        self.session, self._opening = "", b""
        self.objective: Objective = None  # type: ignore[assignment]  # until `open` gives one

    # ---- discovery

    def _say_hello(self, addresses: Sequence[str], least: int = 0, wait: float = REMIND) -> Hellos:
        """The introductions of the nodes at these addresses; nodes with invalid ones are left out, with a warning.

        While fewer than `least` have answered, silent nodes are waited for up to `wait` seconds, not just `REMIND`: a
        SuperNode that waits for the rest of a message from a killed driver does not answer until Flower abandons that
        run, in a minute or two.
        """
        found, began = Hellos(), time.monotonic()
        messages = {address: HELLO for address in addresses if address not in self._left_out}
        reminded = began + SOON - REMIND

        def enough() -> bool:
            nonlocal reminded
            now = time.monotonic()
            if now - reminded > REMIND and (silent := [address for address in messages if address not in found]):
                reminded = now
                line = "nodes %s are online but silent: they may still read their data, or fail to (see their logs)"
                log.warning(line, ", ".join(silent))
            return now - began > (min(REMIND, wait) if len(found) >= least else wait)

        for answer in self._transport.exchange(messages, enough):
            if answer.data is None:
                log.info("the node at %s is silent: %s", answer.address, answer.problem)
                continue
            if (hello := self._introduction(answer.address, answer.data)) is not None:
                found[answer.address] = hello
        return found

    def _introduction(self, address: str, data: bytes) -> Mapping[str, Any] | None:
        """A node's introduction; None, after a warning, if it is invalid: the node is left out."""
        try:
            hello = _read_hello(data, self._allow)
            if self._wanted and self._wanted.isdisjoint(hello["clients"]):
                raise InvalidInput(f"it is {hello['name']!r}, which has no client of this run")
        except (WireError, InvalidInput) as problem:
            reason = first_line(problem)
            if self._left_out.get(address) != reason:  # a node that missed a call may be asked again
                log.warning("the node at %s is left out: %s", address, reason)
            self._left_out[address] = reason
            return None
        return hello

    def _gather(self, least: int, wait: float) -> Hellos:
        """The nodes of the federation, by address, once there are at least `least` and all wanted clients."""
        began, found = time.monotonic(), Hellos()
        reminded = began + SOON - REMIND
        while True:
            new = [address for address in self._transport.addresses() if address not in found]
            found |= self._say_hello(new, least - len(found), max(0.0, wait - (time.monotonic() - began)))
            named = {str(one["name"]): address for address, one in found.items()}
            require(len(named) == len(found), f"Two nodes have the same name: {sorted(named)}. Give each its own.")
            absent = self._wanted.difference(*(one["clients"] for one in found.values()))
            if len(found) >= least and not absent:
                silent = [address for address in new if address not in found and address not in self._left_out]
                if silent:
                    log.warning("nodes %s are online but silent: left out (nodes=… waits for all)", ", ".join(silent))
                return found
            left_out = "".join(f"; one was left out: {why}" for why in list(self._left_out.values())[:1])
            there = f"{len(found)} of {least} nodes are there"
            more = f", and {len(absent) - 1} more" if len(absent) > 1 else ""
            lacking = f"; no node has client {min(absent)!r} of the run{more}" if absent else ""
            how = "Start the nodes that the run had" if absent else "Start more, or expect fewer"
            late = time.monotonic() - began >= wait
            require(not late, f"{there} after {wait:.0f} s{lacking}{left_out}. {how}.")
            if time.monotonic() - reminded > REMIND:
                reminded = time.monotonic()
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
        self._check_alike(hellos)  # before `same_schema`: another version's schema may have unknown fields
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
        """Look for silent hosts among the nodes that are online now: a restarted node has a new address."""
        for address, hello in self._say_hello(self._strangers(missing)).items():
            self._place(address, hello, missing)

    def _strangers(self, missing: Collection[str]) -> list[str]:
        """The addresses that are online and no known node's, after forgetting those of missing hosts that are not."""
        online = set(self._transport.addresses())
        for host in missing:
            if self._address.get(host) not in online:
                self._address.pop(host, None)
        return sorted(online.difference(self._address.values()))

    def _place(self, address: str, hello: Mapping[str, Any], missing: Collection[str]) -> str | None:
        """The missing host that introduces itself at this address, which is its address from now on, if it is one."""
        known = self._hosts.get(str(hello["name"]))
        if known is None:
            self._note_newcomer(address, hello, missing)
            return None
        if known.name not in missing:
            return None  # it has the name of a node that is online
        if hello["token"] != known.token:
            if address not in self._impostors:
                log.warning("a node calls itself %s, but it is another one: it is left out", known.name)
            self._impostors.add(address)
            return None
        self._address[known.name] = address
        return known.name

    def _note_newcomer(self, address: str, hello: Mapping[str, Any], missing: Collection[str]) -> None:
        """Warn once about a node that is not of this run but has clients for which the run waits."""
        if address in self._newcomers:
            return
        self._newcomers.add(address)
        theirs = {name: {self.names[client] for client in self._hosts[name].clients.tolist()} for name in missing}
        known = next((name for name, clients in theirs.items() if not clients.isdisjoint(hello["clients"])), None)
        if known is not None:
            line = (
                "node %s has clients of node %s, but takes no part in this run: start it as %s, with that one's --state"
            )
            log.warning(line, hello["name"], known, known)

    # ---- the engine's interface

    @property
    def fingerprint(self) -> str:
        """Equal exactly if the clients' data are equal."""
        return fingerprint([(name, host.hello["fingerprint"]) for name, host in sorted(self._hosts.items())])

    def describe(self) -> dict[str, Any]:
        """The settings that may change results in the last bits, for the record of a run.

        The device is that of the server's own computations: the CPU.
        """
        engines = {name: dict(host.hello["engine"]) for name, host in sorted(self._hosts.items())}
        precision = next(iter(engines.values())).get("precision", "float32")
        return {"engine": self._transport.name, "device": "cpu", "precision": precision, "hosts": engines}

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> Self:
        """An engine with the same clients and another objective, in a new session at every node.

        Nodes keep the journal themselves. A session whose name they know is resumed, with its client memory.
        """
        engine = copy.copy(self)
        engine.objective = objective
        engine.session = session or secrets.token_hex(8)
        engine._opening = pack({"kind": "open", "session": engine.session, "objective": recipe_of(objective)})
        engine._remembers = set(self._remembers)
        engine._open_at(list(self._hosts))
        return engine

    def _open_at(self, hosts: Sequence[str]) -> None:
        opening = _Message(lambda: self._opening, opens=True)
        for host, reply in self._replies(dict.fromkeys(hosts, opening), self._waiting(0)):
            if isinstance(reply, str):
                log.warning("node %s is silent, and will open the session when it is back: %s", host, reply)
            elif reply.get("kind") != "opened":
                why = reply.get("why", f"its reply is {str(reply.get('kind'))[:40]!r}, wanted 'opened'")
                raise InvalidInput(f"Node {host!r} did not open the session: {str(why)[:300]}")

    def refresh(self, data: ClientData) -> list[str]:
        """Raise InvalidInput: the data are on the nodes."""
        raise InvalidInput("The clients' data are on their nodes: give them new examples there, and start a new run.")

    def remembers_from(self, algorithm: object) -> None:
        """If the algorithm's clients keep memory, require every node to have it."""
        if getattr(algorithm, "keeps_memory", False):
            self._remembers = set(self.hosts)

    def allow_from(self, algorithm: Algorithm) -> None:
        """Let replies refer to the packages of the algorithm's client functions. Nodes decide for themselves."""
        self._allow = tuple(dict.fromkeys((*self._allow, *packages_of(algorithm))))

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Note the earliest clock in `keep`; the next call tells nodes from which clock on to keep client memory."""
        self._keep = min(keep, default=clock)

    # ---- calls

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Send a message to each node that has any of the clients asked, and yield the parts of their replies."""
        package = package_of(call.fn.name)
        if package not in self._allow:  # called by a function that the algorithm imports
            self._allow = (*self._allow, package)
        asked = {name: places for name, host in self._hosts.items() if len(places := _places(ids, host.clients))}
        messages = {name: _Message(partial(self._message, call, ids, name, places)) for name, places in asked.items()}
        waiting = self._waiting(min(self.patience.min_replies, len(ids)))
        self.traffic.slowest = 0.0
        order, ready = sorted(messages), dict[str, list[Part]]()  # a fixed order of summation keeps results the same
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
        """Raise InvalidInput if no node can run a function; if only some cannot, warn that they are rejected."""
        known = self._unable.setdefault(function, set())
        for name, reason in never.items():
            why = f"{reason}{self._further_packages(name, package_of(function))}"
            require(not set(self._hosts) <= known | set(never), f"No node can run {function}. Node {name!r}: {why}")
            if name not in known:
                log.warning("node %s takes no part in %s, and its clients are rejected: %s", name, function, why)
        known |= set(never)

    def _further_packages(self, host: str, package: str) -> str:
        """What a node that does not allow a package has to allow too, so that its owner need not restart it twice."""
        allowed = self._hosts[host].hello.get("allow")
        if not isinstance(allowed, list) or _covers(allowed, package):
            return ""
        known = (package, SCRIPT)
        others = [other for other in self._allow if other not in known and not _covers(allowed, other)]
        options = " ".join(f"--allow {other}" for other in others)
        return f" The algorithm may call functions of other packages too: {options}." if others else ""

    def _waiting(self, enough: int) -> _Waiting:
        return _Waiting(enough, self.patience.seconds)

    def _message(self, call: Call, ids: Tensor, host: str, places: Tensor) -> bytes:
        own = call.of(places)._replace(since={"": call.since.get(host, START)})
        local = torch.searchsorted(self._hosts[host].clients, ids[places])
        return pack(
            {
                "kind": "call",
                "session": self.session,
                "data": self._hosts[host].hello["fingerprint"],
                "ids": local,
                "keep": self._keep,
                "remembers": host in self._remembers,
                "call": call_to_tree(own),
            }
        )

    def _replies(
        self, messages: Mapping[str, _Message], waiting: _Waiting
    ) -> Iterator[tuple[str, dict[str, Any] | str]]:
        """Each host's reply as a tree, or a string that says why there is none; silent hosts are asked again."""
        pending, absent = dict(messages), self._absent & set(messages)
        asked_at_once = set(messages) - absent
        why, reopened = dict.fromkeys(pending, "did not answer"), set[str]()
        while pending:
            hosts = {self._address[host]: host for host in pending if host in self._address and host not in absent}
            signs, before = self._addresses_of(absent), len(absent)
            sending = _Packing(
                {at: pending[host] for at, host in hosts.items()} | dict.fromkeys(signs, _Message(lambda: HELLO))
            )
            over = partial(self._over, waiting, pending, absent)
            for answer in self._transport.exchange(sending, over):
                if answer.address in signs:
                    absent -= self._returned(answer, absent)
                    continue
                host = hosts[answer.address]
                if answer.data is None:
                    why[host] = answer.problem
                    continue
                self._count(pending[host].size, len(answer.data))
                reply = _read(answer.data, self._allow)
                lost = isinstance(reply, dict) and reply.get("unknown") is True and not pending[host].opens
                if lost and host not in reopened:  # it lost its sessions: open this one again, and ask once more
                    reopened.add(host)
                    with suppress(InvalidInput):
                        self._open_at([host])
                    continue
                del pending[host]
                waiting.note_answer()
                yield host, reply
            if pending and len(absent) == before:  # else one has just returned: it is asked now
                if over() or (absent >= set(pending) and not signs and waiting.enough):
                    break
                waiting.remind(pending)
                time.sleep(POLL)
                self._locate([host for host in pending if host not in absent])
        for host in pending:
            if host in absent:
                yield host, "it missed an earlier call and was not back yet"
                continue
            if host in asked_at_once:  # one that returned meanwhile had less time than the others
                self._note_missed(host, waiting)
            yield host, f"{why[host]}; waited for {waiting.waited():.0f} s"

    def _over(self, waiting: _Waiting, pending: Collection[str], absent: Collection[str]) -> bool:
        """Whether a call has waited long enough: briefly, if only for nodes that missed an earlier one."""
        return waiting.over(brief=set(pending) <= set(absent))

    def _addresses_of(self, absent: Collection[str]) -> set[str]:
        """Where absent hosts may be: at their own addresses, if these are online, or at unknown ones."""
        if not absent:
            return set()
        strangers = self._strangers(absent)
        known = {self._address[host] for host in absent if host in self._address}
        return known | set(strangers).difference(self._left_out, self._impostors, self._newcomers)

    def _returned(self, answer: Answer, absent: Collection[str]) -> set[str]:
        """The host that an answer to a hello shows to be back, if any: it takes part again."""
        if answer.data is None or (hello := self._introduction(answer.address, answer.data)) is None:
            return set()
        name = self._place(answer.address, hello, absent)
        if name is None:
            return set()
        log.warning("node %s is back, and takes part again", name)
        self._absent.discard(name)
        return {name}

    def _note_missed(self, host: str, waiting: _Waiting) -> None:
        """Say once that a host missed a whole call; later calls do not wait so long for it until it is back."""
        self._absent.add(host)
        line = "node %s did not answer within %.0f s (patience): its clients are left out until it is back, and calls"
        log.warning(f"{line} no longer wait for it", host, waiting.waited())

    def _count(self, sent: int, received: int) -> None:
        self.traffic.messages += 1
        self.traffic.bytes_down += sent
        self.traffic.bytes_up += received

    def _parts(self, name: str, reply: dict[str, Any] | str, own: Tensor) -> list[Part]:
        """The parts of a node's reply, with indices among all clients; an invalid reply rejects all clients asked."""
        problem = reply if isinstance(reply, str) else ""
        if isinstance(reply, dict) and reply.get("kind") != "parts":
            problem = str(reply.get("why", f"its reply is {str(reply.get('kind'))[:40]!r}, wanted 'parts'"))
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
                return [*parts, _rejected(rest, f"node {name}: its reply lacks this client", name)]
        return [_rejected(own.tolist(), f"node {name}: {problem}", name)]

    def _placed(self, part: Part, name: str) -> Part:
        """A part with indices among all clients; raises WireError if it has replies of other nodes' clients."""
        clients = self._hosts[name].clients
        if len(part.ids) and not (int(part.ids.min()) >= 0 and int(part.ids.max()) < len(clients)):
            raise WireError("its reply is for clients that it does not have")
        rejected = [(int(clients[client]), why) for client, why in part.rejected if 0 <= client < len(clients)]
        return part._replace(ids=clients[part.ids], rejected=rejected)

    def echo(self, payload: Tree) -> float:
        """Seconds until every node has sent a payload back: the cost of messages alone."""
        began = time.perf_counter()
        messages = dict.fromkeys(self._hosts, _Message(lambda: pack({"kind": "echo", "payload": payload})))
        for host, reply in self._replies(messages, self._waiting(len(self.names))):
            if not isinstance(reply, dict) or reply.get("kind") != "echo":
                raise InvalidInput(f"Node {host!r} did not send the payload back: {reply}")
        return time.perf_counter() - began

    def close(self) -> None:
        """Close the connection to the nodes."""
        self._transport.close()


class _Waiting:
    """Decides when a call has waited long enough for silent nodes."""

    def __init__(self, enough: int, patience: float | None) -> None:
        self._enough, self._patience = enough, patience
        self._began = self._reminded = self._latest = time.monotonic()
        self._since: float | None = None
        self.answered = 0

    @property
    def enough(self) -> bool:
        """Whether as many clients have answered as the call needs."""
        return self.answered >= self._enough

    def note_answer(self) -> None:
        """Note that a node has answered."""
        self._latest = time.monotonic()

    def over(self, *, brief: bool = False) -> bool:
        """Whether `patience` seconds have passed since enough clients answered; with `brief`, a moment at most.

        That moment, `GRACE`, begins when the last of the other nodes has answered.
        """
        if self._patience is None or not self.enough:
            return False
        now = time.monotonic()
        self._since = self._since or now
        return now - self._since >= self._patience or (brief and now - self._latest >= GRACE)

    def waited(self) -> float:
        """Seconds since the call was sent."""
        return time.monotonic() - self._began

    def remind(self, hosts: Collection[str]) -> None:
        """Log, at most every `REMIND` seconds, which hosts the call waits for."""
        if time.monotonic() - self._reminded > REMIND:
            self._reminded = time.monotonic()
            log.warning("waiting for node %s for %.0f s (patience=… goes on without)", ", ".join(hosts), self.waited())


def _rejected(clients: Sequence[int], why: str, host: str) -> Part:
    rejected: list[Rejection] = [(client, why) for client in clients]
    return Part(torch.empty(0, dtype=torch.int64), None, rejected, host)


def _covers(allowed: Sequence[Any], package: str) -> bool:
    """Whether a node's allow-list has a package, one around it, or a module in it."""
    return any(f"{one}.".startswith(f"{package}.") or f"{package}.".startswith(f"{one}.") for one in allowed)


def _places(ids: Tensor, clients: Tensor) -> Tensor:
    """The indices into `ids` of a host's clients."""
    return torch.isin(ids, clients).nonzero().flatten()


def _read(data: bytes, allow: Sequence[str]) -> dict[str, Any] | str:
    try:
        tree = unpack(data, allow)
    except WireError as problem:
        return f"its reply cannot be read: {problem}"
    return tree if isinstance(tree, dict) else f"its reply is a {type(tree).__name__}, wanted a dict"


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
        raise WireError(f"it does not introduce itself: {why or 'it may belong to another program'}")
    if tree.get("format") != FORMAT:
        raise WireError(
            f"its message format is {tree.get('format')}, this machine's {FORMAT}: install the same version on both."
        )
    wrong = next((name for name, valid in _HELLO.items() if not valid(tree.get(name))), None)
    if wrong is None and bool((in_order(tree["clients"]).diff() <= 0).any()):
        wrong = "clients, which are not in order"
    if wrong is not None or len(tree["clients"]) != len(tree["sizes"]) or bool((tree["sizes"] < 0).any()):
        raise WireError(f"its introduction has invalid {wrong or 'sizes'}.")
    return tree
