"""Server code, and its only interface to clients ("the door").

An algorithm's `run` sees cohorts (which clients, and how many examples each reports) and replies. No path leads from
here to an example: `Cohort.map` returns every reply as a row, `Cohort.sum` returns only weighted sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from corymb.core.averaging import Reduction
from corymb.core.client import ClientFn, Share, Shares
from corymb.core.engine import START, Call, Each, Engine, Part, Verb, Version, check_rows, each
from corymb.core.guard import FEW_CLIENTS
from corymb.core.intake import Intake, IntakeResult
from corymb.core.lengths import Near
from corymb.core.names import ClientNames
from corymb.core.smallest import BLOCK, blocks_of, smallest_of_each
from corymb.core.sums import Sums
from corymb.keys import Key, fold_rows, key_of, uniform
from corymb.settings import require
from corymb.trees import Params, Signature, Tree, leaves, map_tensors, nbytes, signature, tree_map

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
    "NoReplies",
    "Part",
    "Replies",
    "Sums",
    "TooFewReplies",
    "each",
]


class TooFewReplies(RuntimeError):
    """Fewer clients gave a usable reply than `min_replies`."""


class NoReplies(TooFewReplies):
    """None of the clients that were asked gave a usable reply."""


class ClientsFailed(RuntimeError):
    """A bug in a client function, not a bad client: every client asked failed with the same error.

    In-process engines raise the original exception instead if all clients of the federation were asked.
    """


@dataclass(frozen=True)
class Replies(Generic[T]):
    """Rows (or sums) of the clients that answered and were accepted, in the order in which they were asked."""

    clients: Cohort
    value: T
    rejected: list[tuple[str, str]]


@dataclass
class Ledger:
    """What was sent: the sizes of the clients' own messages, the same on every engine.

    It counts what was sent to every client asked, and the replies that were accepted.
    """

    bytes_down: int = 0
    bytes_up: int = 0
    rounds: int = 0
    asked: int = 0
    replied: int = 0
    rejected: list[dict[str, Any]] = field(default_factory=list)
    abandoned: list[dict[str, Any]] = field(default_factory=list)
    """Rounds that too few clients answered."""
    epsilon: float | None = None
    """The privacy that the run has spent; None if it is not private."""


class Everybody:
    """All n clients of a federation; their positions are made when they are first needed."""

    def __init__(self, n: int) -> None:
        self._n = n

    def __len__(self) -> int:
        return self._n

    @cached_property
    def ids(self) -> Tensor:
        """0, 1, ..., n - 1."""
        return torch.arange(self._n)


class Cohort:
    """Some of the clients, by position; calling them is the only way for an algorithm to learn about their data."""

    def __init__(
        self, fed: Federation, ids: Tensor | Everybody, near: Near | None = None, like: Signature | None = None
    ) -> None:
        self._fed = fed
        self._of = ids
        self._near = near
        self._like = like

    def __len__(self) -> int:
        return len(self._of)

    @property
    def ids(self) -> Tensor:
        """The clients' positions among all clients of the federation."""
        return self._of.ids if isinstance(self._of, Everybody) else self._of

    def __repr__(self) -> str:
        return f"Cohort({len(self)} of {len(self._fed.clients)} clients)"

    def __getitem__(self, which: Tensor | slice | Sequence[int]) -> Cohort:
        """Some of these clients, by their places in this cohort or by a mask over it; `near` and `like` still apply."""
        index = which if isinstance(which, slice) else torch.as_tensor(which, device=self.ids.device)
        near = None if self._near is None else self._near.at(torch.arange(len(self))[index])
        return Cohort(self._fed, self.ids[index], near, self._like)

    def _at(self, places: Tensor) -> Cohort:
        """The clients at these places, which are drawn from this cohort: the others' positions are not needed."""
        near = None if self._near is None else self._near.at(places)
        ids = places if isinstance(self._of, Everybody) else self._of[places]
        return Cohort(self._fed, ids, near, self._like)

    @property
    def _rows(self) -> Tensor | int:
        """The clients' positions, or how many these are if they are all."""
        return len(self) if isinstance(self._of, Everybody) else self._of

    @property
    def sizes(self) -> Tensor:
        """How many training examples each client reports."""
        return self._fed.sizes[self.ids]

    @property
    def names(self) -> list[str]:
        """The clients' names."""
        return [self._fed.names[i] for i in self.ids.tolist()]

    @property
    def mask(self) -> Tensor:
        """A mask over all clients of the federation, true for those in this cohort: n."""
        return torch.zeros(len(self._fed.names), dtype=torch.bool).index_fill(0, self.ids, True)

    def pick(self, values: T) -> T:
        """This cohort's rows of values that have one row for every client of the federation.

        `at.labels`, `fed.sizes` and other arrays for all clients have n rows, no matter which clients are asked;
        `pick`, `put` and `where` translate between those and the rows of a cohort.
        """
        check_rows(values, "pick")
        return map_tensors(lambda leaf: leaf[self.ids.to(leaf.device)], values)

    def put(self, values: T, rows: T) -> T:
        """The values of all clients with this cohort's rows replaced: the reverse of `pick`."""
        return tree_map(lambda old, new: old.index_copy(0, self.ids.to(old.device), new.to(old)), values, rows)

    def where(self, mask: Tensor) -> Cohort:
        """The clients of this cohort for which a mask over all clients of the federation is true."""
        return self[self.pick(mask)]

    def sample(self, participants: int | float | None) -> Cohort:
        """A random sample: a number of clients, a fraction of them, or all (`None`), in this cohort's order.

        Each client's draw depends only on its name, so adding or removing clients changes little of a sample.
        """
        if participants is None:
            return self
        check_participants(participants)
        whole = isinstance(participants, int)
        n = int(participants) if whole else max(1, round(participants * len(self)))
        if n >= len(self):
            return self
        return self._at(smallest_of_each(self._draw_of(self._fed.draw("sample")), self._rows, n))

    def drawn(self, rate: float, key: Key) -> Cohort:
        """Each client independently with the same probability: Poisson sampling, which may draw nobody."""
        if rate >= 1:
            return self
        draw_of = self._draw_of(key)
        places, done = [torch.empty(0, dtype=torch.int64)], 0
        for ids in blocks_of(self._rows, BLOCK):
            drawn = uniform(draw_of(ids), (), torch.float64) < rate
            places.append(done + drawn.nonzero().flatten())
            done += len(drawn)
        return self._at(torch.cat(places))

    def split(self, n: int) -> list[Cohort]:
        """n random parts of (nearly) equal size."""
        shuffled = self._draw_of(self._fed.draw("split"))(self.ids).argsort(stable=True)
        return [self[places.sort().values] for places in shuffled.tensor_split(n)]

    def _draw_of(self, key: Key) -> Callable[[Tensor | slice], Key]:
        """A function that draws a random number for each of some clients."""
        return lambda ids: fold_rows(key, self._fed.name_hashes[ids])

    def map(self, fn: ClientFn[P, T], *args: P.args, **options: P.kwargs) -> Replies[T]:
        """Call a function at every client; returns every reply as a row."""
        return self._fed.ask(self.ids, "map", fn, args, options, self._near, self._like)

    def sum(self, fn: ClientFn[P, Share[N] | Shares[N]], *args: P.args, **options: P.kwargs) -> Replies[Sums[N]]:
        """Call a function at every client; returns weighted sums of their shares, with labels and notes as rows."""
        return self._fed.ask(self.ids, "sum", fn, args, options, self._near)

    def near(
        self,
        models: Params,
        by: Tensor | None = None,
        *,
        loose: bool = False,
        most: float | None = None,
        apart: bool = False,
    ) -> Cohort:
        """The same clients, with replies expected near these k models (one for each sum).

        A client whose update is far longer than the others' is refused and named (`corymb.core.guard`), and averages
        use the federation's `reduction`. `by` has a row for each client of the cohort: the shares of the models that
        it starts from, if those are not the weights of its reply. With `loose`, only updates a thousand times as long
        as usual are refused. `most` is an absolute bound on the length, used instead of a comparison with the others.
        `apart` says that a client's values for different sums come from different examples.
        """
        handful = len(self._fed.names) <= FEW_CLIENTS
        return Cohort(self._fed, self._of, Near(models, by, loose, most, apart, handful), self._like)

    def like(self, rows: Tree) -> Cohort:
        """The same clients, whose replies to `map` must have the signature of these rows, whatever others send."""
        return Cohort(self._fed, self._of, self._near, signature(rows, rows=True))


@dataclass
class _Moment:
    """The current place in a run: keys are folded from seed, clock and the number of calls since its last tick."""

    stream: str
    seed: int = 0
    clock: int = 0
    calls: int = 0
    started: bool = False
    """Whether any call was made, or a run's versions were taken over."""

    def key(self, *purpose: int | str) -> Key:
        return key_of(self.seed, self.stream, self.clock, *purpose)


class Federation:
    """All clients behind one engine, with the run's seed and clock. The driver sets and ticks the clock."""

    def __init__(self, engine: Engine, *, min_replies: int = 1, guard: bool = True) -> None:
        require(min_replies >= 1, f"min_replies must be at least 1, got {min_replies}.")
        self.guard = guard
        self.reduction = Reduction()
        self._engine = engine
        self.min_replies = min_replies
        self.objective = engine.objective
        self.names = ClientNames.of(engine.names)
        self.ledger = Ledger()
        self.asking: Callable[[int], None] = lambda clients: None  # called with the number of clients before each call
        self._everybody = Everybody(len(self.names))
        self.clients = Cohort(self, self._everybody)
        self._readonly = False
        self._moment = _Moment("run")
        self._accepted = dict.fromkeys(engine.hosts, START)  # the last call accepted from each host

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self._moment.seed

    @property
    def clock(self) -> int:
        """The number of snapshots yielded so far; the driver advances it."""
        return self._moment.clock

    @property
    def sizes(self) -> Tensor:
        """How many training examples each client reports: n."""
        return self._engine.sizes

    @property
    def name_hashes(self) -> Tensor:
        """A number for each client that depends on its name only: n."""
        return self.names.hashes

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of clients' examples as plain values: see `corymb.data.schema.DataSchema`."""
        return self._engine.schema

    @property
    def versions(self) -> dict[str, Version]:
        """For each host, the last call accepted from it: its client memory is up to date with that call."""
        return dict(self._accepted)

    def set_clock(self, *, seed: int, clock: int) -> None:
        """Set the run's seed and clock."""
        self._moment.seed, self._moment.clock, self._moment.calls = seed, clock, 0

    def rewind(self, clock: int, versions: Mapping[str, Version] | None = None) -> None:
        """Discard what clients wrote at this clock or later; the next call tells them to.

        A federation that has made no call yet takes over client memory from an earlier run: at `versions`, if the run
        recorded them, else as it was at this clock.
        """
        then = Version(clock, 0)
        for host, at in self._accepted.items():
            known = at if self._moment.started else (versions or {}).get(host, then)
            self._accepted[host] = min(known, then)
        self._moment.started |= versions is not None  # keep these versions when the driver rewinds to its own clock

    def commit(self, clock: int, keep: Collection[int]) -> None:
        """Make client memory durable; see `Engine.commit`."""
        self._engine.commit(clock, keep)

    def evaluation(self) -> Federation:
        """The same clients, read-only, with separate keys and ledger, so that evaluating more often changes nothing."""
        moment = _Moment("evaluation", self.seed, self.clock)
        return self._view(self.clients, _readonly=True, ledger=Ledger(), min_replies=1, _moment=moment)

    def averaged_by(self, reduction: Reduction) -> Federation:
        """The same federation with another reduction."""
        return self._view(self.clients, reduction=reduction)

    def only(self, cohort: Cohort) -> Federation:
        """The federation of some of the clients; clock, keys and ledger are the same."""
        return self._view(cohort)

    def _view(self, cohort: Cohort, **changes: object) -> Federation:
        view = object.__new__(Federation)
        view.__dict__.update(self.__dict__, **changes)
        view.clients = Cohort(view, cohort._of)
        return view

    def key(self, purpose: str) -> Key:
        """A random key of the server for one purpose at this clock."""
        return self._moment.key("server", purpose)

    def draw(self, purpose: str) -> Key:
        """Like `key`, but with a new key for each call within a round."""
        self._moment.calls += 1
        return self._moment.key("server", purpose, self._moment.calls)

    def ask(
        self,
        ids: Tensor,
        verb: Verb,
        fn: ClientFn[..., Tree],
        args: tuple[Tree, ...],
        options: dict[str, Tree],
        near: Near | None = None,
        like: Signature | None = None,
    ) -> Replies[Tree]:
        """Make one call and check the replies. Algorithms use `Cohort.map` and `Cohort.sum` instead."""
        everybody = len(ids) == len(self.names) and ids is self._everybody.ids
        ascending = everybody or bool((ids.diff() > 0).all())
        if not ascending and len(ids.unique()) < len(ids):
            raise ValueError("a client is asked twice in one call: give each position once")
        for value in (*args, *options.values()):
            if isinstance(value, Each):
                value.check(len(ids))
        by_rows = verb == "sum" and near is not None and self.reduction.by_rows
        verb = "map" if by_rows else verb
        call, asked = self._call(verb, fn, args, options, near, like), ids
        if not ascending:  # engines want ascending positions
            order = ids.argsort()
            call, asked = call.of(order), ids[order]
        self.asking(len(ids))
        intake = Intake(verb, asked, self.sizes[asked], self._engine.hosts, call.near, guard=self.guard, like=like)
        for part in self._engine.run(call, asked):
            intake.add_part(part)
        taken = intake.result()
        named = self._record(call, len(ids), taken)
        answered = len(taken.part.ids)
        if answered < min(self.min_replies, max(len(ids), 1)):
            cause = intake.cause
            if not answered and len(intake.errors) == 1 and len(named) == len(ids):
                cause = ClientsFailed(f"Every client that was asked failed in the same way: {intake.errors.pop()}")
                if len(ids) == len(self.names):  # otherwise the few asked may all be bad clients
                    raise cause
            why = "; ".join(f"{name}: {reason}" for name, reason in named[:3]) or "no answer from the others"
            raise (TooFewReplies if answered else NoReplies)(
                f"{answered} of {len(ids)} clients gave a usable reply, wanted {self.min_replies} ({why})"
            ) from (None if answered else cause)
        if not self._readonly:
            self._accepted.update(dict.fromkeys(taken.hosts, call.version))
        replies = self._in_order_asked(taken.part, ids, verb, named)
        if not by_rows:
            return replies
        assert near is not None
        places = torch.searchsorted(ids.sort().values, replies.clients.ids)
        starts = near.at(ids.argsort()[places])
        return Replies(replies.clients, self.reduction.sums(replies.value, starts), named)

    def _call(
        self,
        verb: Verb,
        fn: ClientFn[..., Tree],
        args: tuple[Tree, ...],
        options: dict[str, Tree],
        near: Near | None,
        like: Signature | None,
    ) -> Call:
        """Build the call for the engine, and count it."""
        moment = self._moment
        moment.calls, moment.started = moment.calls + 1, True
        return Call(
            fn=fn,
            args=args,
            options=options,
            key=moment.key("call", moment.calls),
            verb=verb,
            version=Version(self.clock, moment.calls),
            since=dict(self._accepted),
            readonly=self._readonly,
            near=near,
            guard=self.guard,
            like=like,
        )

    def _record(self, call: Call, asked: int, taken: IntakeResult) -> list[tuple[str, str]]:
        """Record a call in the ledger; returns the rejected clients by name, with reasons."""
        ledger = self.ledger
        ledger.bytes_down += _bytes_down(call) * asked
        ledger.bytes_up += taken.bytes_up
        ledger.asked += asked
        ledger.replied += len(taken.part.ids)
        named = [(self.names[client], reason) for client, reason in taken.part.rejected]
        ledger.rejected += [{"clock": self.clock, "client": name, "reason": reason} for name, reason in named]
        return named

    def _in_order_asked(self, part: Part, asked: Tensor, verb: Verb, rejected: list[tuple[str, str]]) -> Replies[Tree]:
        if torch.equal(part.ids, asked):
            return Replies(Cohort(self, asked), part.value, rejected)
        rank = self._ranks(asked)
        place = torch.full((len(asked),), -1)
        place[rank(part.ids)] = torch.arange(len(part.ids))
        place = place[rank(asked)]
        answered, order = asked[place >= 0], place[place >= 0]
        if verb == "map":
            value = _reorder(part.value, order)
        else:
            sums = part.value
            value = sums._replace(label=_reorder(sums.label, order), note=_reorder(sums.note, order))
        return Replies(Cohort(self, answered), value, rejected)

    def _ranks(self, asked: Tensor) -> Callable[[Tensor], Tensor]:
        """A function that numbers clients by position among those asked, in memory for those only."""
        if len(asked) == len(self.names):
            return lambda ids: ids
        ascending = asked.sort().values
        return lambda ids: torch.searchsorted(ascending, ids)


def check_participants(participants: int | float) -> None:
    """Raise InvalidInput unless `participants` is a number of clients or a fraction of them."""
    good = participants >= 1 if isinstance(participants, int) else 0 < participants <= 1
    wanted = "participants must be a number of clients, or a fraction of them in (0, 1]"
    require(good, f"{wanted}, got {participants}.")


def _reorder(rows: T, order: Tensor) -> T:
    if torch.equal(order, torch.arange(len(order))):
        return rows
    return map_tensors(lambda leaf: leaf[order.to(leaf.device)], rows)


def _bytes_down(call: Call) -> int:
    """Bytes sent to one client: whole arguments, and one row of each `Each`."""
    return sum(
        sum(leaf[:1].nbytes for leaf in leaves(value.rows)) if isinstance(value, Each) else nbytes(value)
        for value in (*call.args, *call.options.values())
    )
