"""The server's room and the only door out of it.

An algorithm's `run` sees cohorts (who, and how many examples each says it has) and replies. No path leads from here to
an example: `Cohort.map` brings every answer back as a row, `Cohort.sum` only weighted sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from corymb.core.client import ClientFn, Objective, Share, Shares
from corymb.core.intake import Part, Rejection, Sums, merge_sums
from corymb.keys import Key, fold, hash_name, root
from corymb.settings import require
from corymb.trees import Signature, concat, flatten, leaves, map_tensors, nbytes, signature, tree_map, unflatten

P = ParamSpec("P")
T = TypeVar("T")
N = TypeVar("N")

__all__ = [
    "Call",
    "Cohort",
    "Each",
    "Engine",
    "Federation",
    "Ledger",
    "Part",
    "Replies",
    "Sums",
    "TooFewReplies",
    "each",
]


class Each(NamedTuple):
    """An argument of which each client asked gets one row: its own, or the one that `of` names for it."""

    rows: Any
    of: Tensor | None = None

    def at(self, places: Tensor) -> Any:
        """The rows for the clients at these places of those asked."""
        wanted = places if self.of is None else self.of.to(places.device)[places]
        return map_tensors(lambda leaf: leaf[wanted.to(leaf.device)], self.rows)


def each(rows: T, of: Tensor | None = None) -> T:
    """Send each client asked its own row; any other argument goes to all alike.

    `each(models, of=labels)` sends each client the model of its label, without a copy for every client at the server.
    """
    return Each(rows, of)  # type: ignore[return-value]


class Call(NamedTuple):
    """One question to clients, as an engine gets it."""

    fn: ClientFn[Any, Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    key: Key
    clock: int
    verb: Literal["map", "sum"]
    readonly: bool = False


class Engine(Protocol):
    """Where clients are: the whole of what an engine must be."""

    @property
    def objective(self) -> Objective: ...
    @property
    def names(self) -> Sequence[str]: ...
    @property
    def sizes(self) -> Tensor: ...

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients at positions `ids`; parts may come in any order and cover any of them."""
        ...

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Client memory up to `clock` is durable; only the clocks in `keep` stay reachable."""
        ...

    def rewind(self, clock: int) -> None:
        """Forget what calls with `Call.clock >= clock` wrote into client memory."""
        ...


class TooFewReplies(RuntimeError):
    """Fewer clients gave a usable reply than `min_replies`."""


@dataclass(frozen=True)
class Replies(Generic[T]):
    """What came back: rows (or sums) of the clients that answered and were accepted, in the order they were asked."""

    clients: Cohort
    value: T
    rejected: list[tuple[str, str]]


@dataclass
class Ledger:
    """What crossed the door: the sizes of the clients' own messages, the same on every engine."""

    bytes_down: int = 0
    bytes_up: int = 0
    rounds: int = 0
    asked: int = 0
    replied: int = 0
    rejected: list[dict[str, Any]] = field(default_factory=list)
    abandoned: list[dict[str, Any]] = field(default_factory=list)
    """Rounds that too few clients answered."""


class Cohort:
    """Some of the clients, by position; asking them is the only way to learn anything of their data."""

    def __init__(self, fed: Federation, ids: Tensor) -> None:
        self._fed = fed
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Cohort({len(self)} of {len(self._fed.clients)} clients)"

    def __getitem__(self, which: Tensor | slice | Sequence[int]) -> Cohort:
        """Some of these clients, by their places in this cohort or a mask over it."""
        index = which if isinstance(which, slice) else torch.as_tensor(which, device=self.ids.device)
        return Cohort(self._fed, self.ids[index])

    @property
    def sizes(self) -> Tensor:
        """How many training examples each client says it has."""
        return self._fed.sizes[self.ids]

    @property
    def names(self) -> list[str]:
        """The clients' names."""
        return [self._fed.names[i] for i in self.ids.tolist()]

    @property
    def mask(self) -> Tensor:
        """Who is in this cohort, of all clients of the federation: n."""
        return torch.zeros(len(self._fed.names), dtype=torch.bool).index_fill(0, self.ids, True)

    def pick(self, values: T) -> T:
        """This cohort's rows of values that have one row for every client of the federation.

        `at.labels`, `fed.sizes` and whatever else is kept for all clients has n rows, whoever is asked; `pick`, `put`
        and `where` translate between those and the rows of a cohort, so that nobody mixes them up.
        """
        return map_tensors(lambda leaf: leaf[self.ids.to(leaf.device)], values)

    def put(self, values: T, rows: T) -> T:
        """The values of all clients with this cohort's rows replaced: the reverse of `pick`."""
        return tree_map(lambda old, new: old.index_copy(0, self.ids.to(old.device), new.to(old)), values, rows)

    def where(self, mask: Tensor) -> Cohort:
        """Those clients of this cohort for whom a mask over all clients of the federation holds."""
        return self[self.pick(mask)]

    def sample(self, participants: int | float | None) -> Cohort:
        """A random few: a number of clients, a fraction of them, or all (`None`), in this cohort's order.

        Each client's draw depends on its name alone, so that who else is there changes little.
        """
        if participants is None:
            return self
        whole = isinstance(participants, int)
        wanted = "participants must be a number of clients, or a fraction of them in (0, 1]"
        require(participants >= 1 if whole else 0 < participants <= 1, f"{wanted}, got {participants}.")
        n = int(participants) if whole else max(1, round(participants * len(self)))
        if n >= len(self):
            return self
        return self[self._shuffled("sample")[:n].sort().values]

    def split(self, n: int) -> list[Cohort]:
        """n random parts of (nearly) equal size."""
        return [self[places.sort().values] for places in self._shuffled("split").tensor_split(n)]

    def _shuffled(self, purpose: str) -> Tensor:
        draws = fold(self._fed.draw(purpose), self._fed.name_hashes[self.ids])
        return draws.argsort(stable=True)

    def map(self, fn: ClientFn[P, T], *args: P.args, **options: P.kwargs) -> Replies[T]:
        """Ask every client; every answer comes back as a row."""
        return self._fed.ask(self.ids, "map", fn, args, options)

    def sum(self, fn: ClientFn[P, Share[N] | Shares[N]], *args: P.args, **options: P.kwargs) -> Replies[Sums[N]]:
        """Ask every client; only the weighted sums of their shares come back, with labels and notes as rows."""
        return self._fed.ask(self.ids, "sum", fn, args, options)


@dataclass
class _Moment:
    """Where a run stands: every key is folded from seed, clock and the number of the call since the last tick."""

    stream: str
    seed: int = 0
    clock: int = 0
    calls: int = 0

    def key(self) -> Key:
        return fold(root(self.seed), self.stream, self.clock)


class Federation:
    """All clients behind one engine, with the run's seed and clock. The driver sets and ticks the clock."""

    def __init__(self, engine: Engine, *, min_replies: int = 1) -> None:
        require(min_replies >= 1, f"min_replies must be at least 1, got {min_replies}.")
        self._engine = engine
        self.min_replies = min_replies
        self.objective = engine.objective
        self.names = engine.names
        self.sizes = engine.sizes
        self.name_hashes = torch.tensor([hash_name(name) for name in engine.names], dtype=torch.int64)
        self.ledger = Ledger()
        self.clients = Cohort(self, torch.arange(len(engine.names)))
        self._readonly = False
        self._moment = _Moment("run")

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self._moment.seed

    @property
    def clock(self) -> int:
        """The number of snapshots yielded so far; the driver ticks it."""
        return self._moment.clock

    def set_clock(self, *, seed: int, clock: int) -> None:
        """Say where the run stands."""
        self._moment.seed, self._moment.clock, self._moment.calls = seed, clock, 0

    def rewind(self, clock: int) -> None:
        """Client memory as it was when the clock stood there."""
        self._engine.rewind(clock)

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Make client memory durable; see `Engine.commit`."""
        self._engine.commit(clock, keep)

    def evaluation(self) -> Federation:
        """The same clients, read-only: keys and ledger of its own, so that how often one looks changes nothing."""
        moment = _Moment("evaluation", self.seed, self.clock)
        return self._view(self.clients.ids, _readonly=True, ledger=Ledger(), min_replies=1, _moment=moment)

    def only(self, cohort: Cohort) -> Federation:
        """The federation of some of the clients; clock, keys and ledger are the same."""
        return self._view(cohort.ids)

    def _view(self, ids: Tensor, **changes: Any) -> Federation:
        view = object.__new__(Federation)
        view.__dict__.update(self.__dict__, **changes)
        view.clients = Cohort(view, ids)
        return view

    def key(self, purpose: str) -> Key:
        """Randomness of the server's own, for one purpose at this clock."""
        return fold(self._moment.key(), "server", purpose)

    def draw(self, purpose: str) -> Key:
        """As `key`, but a new one each time within a tick of the clock."""
        self._moment.calls += 1
        return fold(self.key(purpose), self._moment.calls)

    def ask(self, ids: Tensor, verb: Literal["map", "sum"], fn: Any, args: Any, options: Any) -> Replies[Any]:
        """Put one call through the door and check what comes back. Algorithms use `Cohort.map` and `Cohort.sum`."""
        if len(ids.unique()) < len(ids):
            raise ValueError("a client is asked twice in one call: give each position once")
        _check_rows(args, options, len(ids))
        self._moment.calls += 1
        key = fold(self._moment.key(), "call", self._moment.calls)
        call = Call(fn, args, options, key, self.clock, verb, self._readonly)
        parts = list(self._engine.run(call, ids))
        kept, rejected = _accept(parts, ids, verb)
        down, asked = _bytes_down(args, options), len(ids)
        self.ledger.bytes_down += down * asked
        self.ledger.bytes_up += sum(part.bytes_up for part in parts)
        self.ledger.asked += asked
        self.ledger.replied += sum(len(part.ids) for part in kept)
        named = [(self.names[i], reason) for i, reason in rejected]
        self.ledger.rejected += [{"clock": self.clock, "client": n, "reason": r} for n, r in named]
        answered = sum(len(part.ids) for part in kept)
        if answered < min(self.min_replies, max(asked, 1)):
            why = "; ".join(f"{name}: {reason}" for name, reason in named[:3])
            raise TooFewReplies(f"{answered} of {asked} clients gave a usable reply, wanted {self.min_replies} ({why})")
        return self._merge(kept, ids, verb, named)

    def _merge(self, parts: list[Part], asked: Tensor, verb: str, rejected: list[tuple[str, str]]) -> Replies[Any]:
        got = torch.cat([part.ids for part in parts])
        place = torch.full((len(self.names),), -1)
        place[got] = torch.arange(len(got))
        answered = asked[place[asked] >= 0]
        order = place[answered]
        if verb == "map":
            value = _reorder(concat([part.value for part in parts]), order)
        else:
            sums: Sums[Any] = merge_sums([part.value for part in parts])
            value = sums._replace(label=_reorder(sums.label, order), note=_reorder(sums.note, order))
        return Replies(Cohort(self, answered), value, rejected)


def _reorder(rows: T, order: Tensor) -> T:
    if torch.equal(order, torch.arange(len(order))):
        return rows
    return map_tensors(lambda leaf: leaf[order.to(leaf.device)], rows)


def _check_rows(args: Any, options: Any, n: int) -> None:
    for value in (*args, *options.values()):
        if isinstance(value, Each):
            for leaf in leaves(value.rows):
                if value.of is None and leaf.shape[0] != n:
                    raise ValueError(f"each(...) has {leaf.shape[0]} rows for {n} clients asked: give one row a client")
            if value.of is not None and len(value.of) != n:
                raise ValueError(f"each(..., of=...) names {len(value.of)} rows for {n} clients asked")
            k = min((len(leaf) for leaf in leaves(value.rows)), default=0)
            if value.of is not None and n and (int(value.of.min()) < 0 or int(value.of.max()) >= k):
                raise ValueError(f"each(..., of=...) names rows {value.of.min()} to {value.of.max()}, there are {k}")


def _bytes_down(args: Any, options: Any) -> int:
    """What one client is sent: all of an argument, but of `each` one row."""
    return sum(
        sum(leaf[:1].nbytes for leaf in leaves(value.rows)) if isinstance(value, Each) else nbytes(value)
        for value in (*args, *options.values())
    )


def _accept(parts: list[Part], asked: Tensor, verb: str) -> tuple[list[Part], list[Rejection]]:
    """Parts that fit what was asked; the signature of most clients wins, nobody counts twice."""
    parts = [part for part in parts if len(part.ids) or part.rejected]
    wanted, seen, kept = set(asked.tolist()), set[int](), []
    problems = [_problem(part, verb) for part in parts]
    signs = [None if problem else _part_signature(part, verb) for part, problem in zip(parts, problems, strict=True)]
    votes: Counter[Signature | None] = Counter()
    for part, sign in zip(parts, signs, strict=True):
        votes[sign] += len(wanted.intersection(part.ids.tolist())) if sign else 0  # who was not asked has no vote
    winner = votes.most_common(1)[0][0] if votes else None
    rejected: list[Rejection] = []
    for part, problem, sign in zip(parts, problems, signs, strict=True):
        mine = part.ids.tolist()
        if sign != winner and not problem:
            problem = f"part is {sign}, most clients sent {winner}"
        elif not wanted.issuperset(mine) or len(set(mine)) < len(mine) or not seen.isdisjoint(mine):
            problem = "reply was not asked for, or came twice"
        if problem:
            rejected += [(i, problem) for i in mine]
        elif mine:
            kept.append(part)
            seen.update(mine)
        rejected += part.rejected
    reasons = dict(reversed(rejected))  # the first one given to a client
    return kept, [(i, reasons[i]) for i in asked.tolist() if i in reasons and i not in seen]


def _problem(part: Part, verb: str) -> str | None:
    """What is wrong with a part whatever the others are like."""
    n = len(part.ids)
    if n and verb == "sum":
        if not isinstance(part.value, Sums) or not isinstance(part.value.weight, Tensor):
            return f"part is a {type(part.value).__name__}, wanted Sums"
        k = part.value.weight.shape
        if len(k) != 1 or any(leaf.shape[:1] != k for leaf in leaves(part.value.total)):
            return "part has another number of sums than of weights"
    if any(rows.shape[:1] != (n,) for rows in _rows_of(part, verb)):
        return "part has another number of rows than of clients"
    if not all(_finite(leaf) for leaf in leaves(part.value)):
        return "part is not finite"
    return None


def _finite(leaf: Tensor) -> bool:
    ends = (leaf.amax(), leaf.amin()) if leaf.is_floating_point() and leaf.numel() else ()
    return all(bool(torch.isfinite(end)) for end in ends)


def _rows_of(part: Part, verb: str) -> list[Tensor]:
    return leaves((part.value.label, part.value.note) if verb == "sum" and len(part.ids) else part.value)


def _part_signature(part: Part, verb: str) -> Signature | None:
    if not len(part.ids):
        return None
    if verb == "map":
        return signature(part.value, rows=True)
    flat, structure = flatten(part.value)
    rows = {id(leaf) for leaf in _rows_of(part, verb)}
    return signature(unflatten(structure, [leaf[:0] if id(leaf) in rows else leaf for leaf in flat]))
