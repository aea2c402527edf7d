"""The clients of an in-process engine: their examples on a device, their memory, and how one of them is called."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from corymb.core.client import Client, ClientFn, Memory, Slot, Split
from corymb.core.engine import START, Call, ClientData, Each, Journal, OneHost, Part, TimeIsUp, Version, in_order
from corymb.core.intake import Intake
from corymb.core.names import ClientNames
from corymb.core.objective import Objective
from corymb.core.rules import kind_problem
from corymb.engines.examples import ExampleTable, held_on
from corymb.engines.isolation import copies, isolated
from corymb.engines.memory import MemoryStore, one_client
from corymb.engines.placement import Placement
from corymb.keys import KeyRing
from corymb.settings import fingerprint, first_line, require
from corymb.trees import as_tensors, map_tensors

T = TypeVar("T")


class Outcome(NamedTuple):
    """The result of running a client function: the reply and the memory writes."""

    value: Any
    writes: dict[str, Slot]


class Replies(Protocol):
    """Takes replies: an `Intake`, or a wrapper of one."""

    def add_rows(self, ids: Tensor, rows: Any, writes: dict[str, Slot]) -> None: ...
    def reject(self, client: int, reason: str) -> None: ...


class ClientHost:
    """All clients of an in-process engine, ordered by name."""

    def __init__(
        self, objective: Objective, data: ClientData, placement: Placement, journal: Journal | None = None
    ) -> None:
        self.objective, self.placement, self.journal = objective, placement, journal
        self.device = device = torch.device(placement.device)
        order = in_order(data.names)
        ordered = bool((order[1:] > order[:-1]).all())
        self.names = ClientNames.of(data.names if ordered else [data.names[i] for i in order.tolist()])
        self.hosts = OneHost(len(self.names))
        held, order_of_all = held_on(data, device, placement.dtype), None if ordered else order
        self.examples: dict[Split, ExampleTable] = {
            "train": ExampleTable(data.train, order_of_all, device, placement.dtype, held),
            "test": ExampleTable(data.test, order_of_all, device, placement.dtype, held),
        }
        self._data, self._refreshed = data, list[str]()
        self._ring = KeyRing(self.names.hashes)
        self.on_begin: Callable[[Sequence[int]], None] = lambda clients: None  # called before clients are run together
        self._begin()

    def _begin(self) -> None:
        self.memory = MemoryStore({split: table.counts for split, table in self.examples.items()})
        self._known = START  # the last version in this process's memory; later ones are in the journal

    @property
    def sizes(self) -> Tensor:
        """How many training examples each client has: n."""
        return self.examples["train"].sizes

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of the examples, computed on demand: an algorithm that is run by hand needs none."""
        return self._data.schema

    @property
    def fingerprint(self) -> str:
        """Equal exactly if the data are equal; the data set hashes its contents on first use."""
        data = self._data.fingerprint()
        return fingerprint(data, *self._refreshed) if self._refreshed else data

    def opened(self, objective: Objective, journal: Journal | None) -> ClientHost:
        """A host with the same examples, another objective and empty client memory."""
        host = copy.copy(self)
        host.objective, host.journal = objective, journal
        host.examples = {split: copy.copy(table) for split, table in self.examples.items()}
        host._begin()
        return host

    def refresh(self, data: ClientData) -> list[str]:
        """Replace the examples of the clients in `data`; returns the names of the memory slots that were cleared."""
        position = {name: i for i, name in enumerate(self.names)}
        unknown = next((name for name in data.names if name not in position), None)
        require(unknown is None, f"There is no client {unknown!r}: new examples must be of the run's clients.")
        ids = torch.tensor([position[name] for name in data.names])
        for split, rows in (("train", data.train), ("test", data.test)):
            self.examples[split].replace(ids, rows)  # type: ignore[index]
        self._refreshed = [*self._refreshed, data.fingerprint()]
        return self.memory.resize({split: table.counts for split, table in self.examples.items()}, ids)

    # ---- memory

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Make client memory durable if there is a journal; drops what no clock in `keep` needs."""
        if self.journal is None:
            self.memory.forget_before(min(keep, default=clock))
            return
        self.journal.commit(clock, keep, *self.memory.export())
        self.memory.forget_before(clock)  # earlier states are in the journal

    def deliver(self, call: Call) -> Call:
        """Prepare a call: move its arguments to the device, and discard memory writes that never counted."""
        check_on_client(call.fn)
        self._forget_after(call.since.get("", START))
        if not call.readonly:
            self._known = call.version
        args, options = map_tensors(lambda leaf: leaf.to(self.device), (call.args, call.options))
        return call._replace(args=args, options=options)

    def _forget_after(self, version: Version) -> None:
        """Return client memory to a version, from the journal if this process does not have it (any longer)."""
        if self.journal is not None and (version > self._known or not self.memory.reaches(version)):
            self.memory.restore(Version(version.clock, 0), self.journal.read(version.clock), self.device)
            self._known = version
        else:
            self.memory.forget_after(version)

    def settle(self, call: Call, intake: Intake) -> Part:
        """The part with the accepted replies, after writing their clients' memory."""
        taken = intake.result()
        intake.release()
        while taken.writes:  # release each as it is written: together they may be as large as the memory itself
            owners, slots = taken.writes.pop(0)
            self.memory.write(call.version, owners, map_tensors(lambda leaf: leaf.to(self.device), slots))
        return taken.part

    # ---- one client

    def keys(self, call: Call, ids: Tensor, purposes: Sequence[str] = ()) -> Tensor:
        """Each client's key for this call, followed by its keys for these purposes: n, 1 + len(purposes)."""
        return self._ring.keys(int(call.key), ids, purposes).to(self.device, non_blocking=True)

    def ask_one(self, call: Call, client: int, place: int) -> Outcome:
        """Run a call for a single client; `place` is its row in arguments made with `each`."""
        self.on_begin([client])
        ids = torch.tensor([client])
        padded = {split: table.longest(ids) for split, table in self.examples.items()}
        memory = Memory(one_client(self.memory.read(ids, padded)), lengths=padded, readonly=call.readonly)
        subject = Client(
            train=self.examples["train"].one(client),
            test=self.examples["test"].one(client),
            objective=self.objective,
            memory=memory,
            key=self.keys(call, ids)[0, 0],
        )
        where = torch.tensor(place)
        args = copies([a.at(where) if isinstance(a, Each) else a for a in call.args])
        options = copies({n: o.at(where) if isinstance(o, Each) else o for n, o in call.options.items()})
        with isolated(), self.placement.computing():
            value = as_reply(call.fn, call.fn.body(subject, *args, **options))
        check_kinds(value, memory.writes)
        kept = {name: slot._replace(value=_without_history(slot.value)) for name, slot in memory.writes.items()}
        # A client function may create tensors, such as a weight of 1, on the default device.
        return Outcome(map_tensors(lambda leaf: leaf.detach().to(self.device), value), kept)

    def ask_each(
        self, call: Call, clients: Iterable[tuple[int, int]], intake: Replies
    ) -> tuple[int, list[tuple[int, Exception]]]:
        """Run a call for clients one after another; returns how many answered, and the errors of those that raised."""
        answered, errors = 0, []
        for client, place in clients:
            try:
                outcome = self.ask_one(call, client, place)
            except TimeIsUp:
                raise
            except Exception as error:  # `blame` decides whose fault it is once all have been asked
                errors.append((client, error))
                continue
            rows = map_tensors(lambda leaf: leaf.unsqueeze(0), outcome.value)
            writes = {name: _row(slot) for name, slot in outcome.writes.items()}
            intake.add_rows(torch.tensor([client]), rows, writes)
            answered += 1
        return answered, errors


class OfHost(Generic[T]):
    """A descriptor for an engine's attribute that is read from its host."""

    def __init__(self, read: Callable[[ClientHost], T]) -> None:
        self._read = read

    def __get__(self, engine: HasHost, kind: type | None = None) -> T:
        return self._read(engine.host)


class HasHost(Protocol):
    """An in-process engine."""

    host: ClientHost


def _row(slot: Slot) -> Slot:
    return Slot(map_tensors(lambda leaf: leaf.unsqueeze(0), slot.value), slot.present.reshape(1), slot.along)


def blame(answered: int, errors: Sequence[tuple[int, Exception]], intake: Intake, *, everybody: bool) -> None:
    """Attribute the errors of a call: raise if all clients failed, since that is a bug; else reject those that did.

    If only some clients were asked, such as the members of a cluster, all of them may be bad: a failure counts as a bug
    only if every client of the federation (`everybody`) was asked and failed.
    """
    if errors and not answered:
        if everybody:
            raise errors[0][1]
        intake.cause = _without_values(errors[0][1])
    for client, error in errors:
        intake.reject(client, f"raised {one_line(error)}")


def _without_values(error: Exception) -> Exception:
    """The same error with the local variables in its traceback cleared, since they hold examples."""
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__context__
    return error


def check_kinds(value: Any, writes: Mapping[str, Slot]) -> None:
    """Raise TypeError for replies or memory writes that cannot be added up or stored, such as sparse tensors."""
    for what, tree in (("reply", value), *((f"memory slot {name!r}", slot.value) for name, slot in writes.items())):
        if problem := kind_problem(tree):
            raise TypeError(f"{what} {problem}")


def as_reply(fn: ClientFn[..., Any], value: T) -> T:
    """A client function's return value, with numbers converted to tensors."""
    try:
        return as_tensors(value)
    except TypeError as error:
        raise TypeError(f"{fn.name} returned a value that cannot be sent: {error}") from None


def check_on_client(fn: object) -> None:
    """Raise TypeError unless `fn` is a client function."""
    if not isinstance(fn, ClientFn):
        name = getattr(fn, "__qualname__", type(fn).__name__)
        raise TypeError(
            f"{name} is not a client function: define it at module level, decorated with @on_client, with `client` as "
            "its first parameter"
        )


def _without_history(tree: T) -> T:
    """The tree detached from autograd graphs, which would otherwise be kept and grow round after round."""
    return map_tensors(Tensor.detach, tree)


def one_line(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    kind, line = type(error).__name__, first_line(error)
    return kind if line == kind else f"{kind}: {line}"
