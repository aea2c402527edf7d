"""Laws of faults: a bad client can neither end a run nor corrupt a model; its reply is dropped, and it is named."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from corymb.algorithms import IFCA, FedAvg
from corymb.core.client import ClientFn
from corymb.core.driver import drive
from corymb.core.federation import ClientsFailed, Federation, Replies, TooFewReplies, each
from corymb.core.snapshot import Snapshot
from corymb.testing import bad_clients as clients
from corymb.testing.assertions import CLOSE, collected_warnings, expect_error, farthest
from corymb.testing.bad_clients import MODELS, NAN, N, bad_federation, good_ids
from corymb.testing.cases import CASES, Case
from corymb.testing.engines import DOUBLE, AnyEngine, engine_maker, engine_of, federation, in_one_process, sabotaged
from corymb.testing.laws.algorithms import check_number
from corymb.trees import leaves, nbytes, take


def check_fault(
    fed: Federation,
    who: Sequence[int],
    reason: str,
    fn: ClientFn[..., Any],
    *args: Any,
    verb: str = "sum",
    **options: Any,
) -> Replies[Any]:
    """Bad clients are dropped and named, and the result is that of the other clients alone."""
    fed.set_clock(seed=0, clock=4)
    want = getattr(fed.clients[good_ids(who)], verb)(fn, *args, **options)
    assert want.rejected == []
    fed.ledger.rejected.clear()
    fed.set_clock(seed=0, clock=4)
    got: Replies[Any] = getattr(fed.clients, verb)(fn, *args, **options)
    assert got.clients.ids.tolist() == good_ids(who)
    assert sorted(name for name, _ in got.rejected) == [f"client-{i}" for i in who]
    assert all(reason in why for _, why in got.rejected), got.rejected
    assert sorted(entry["client"] for entry in fed.ledger.rejected) == [f"client-{i}" for i in who]
    assert all(entry["clock"] == 4 and reason in entry["reason"] for entry in fed.ledger.rejected)
    assert farthest(got.value, want.value) < CLOSE
    return got


def check_worthless_reply(engine: AnyEngine, who: Sequence[int], fault: str) -> None:
    """A share with invalid numbers is dropped, its client named, and its memory write discarded."""
    fed = bad_federation(engine, who)
    check_fault(fed, who, clients.WORTHLESS[fault], clients.train_badly, MODELS, fault=fault, spread=False)
    here = fed.clients.map(clients.was_here).value
    assert here.tolist() == [0.0 if i in who else 1.0 for i in range(N)]


def check_worthless_shares(engine: AnyEngine, fault: str, who: Sequence[int] = (0, 2)) -> None:
    """Shares (a value for every sum) with invalid numbers are dropped, and their clients named."""
    fed = bad_federation(engine, who)
    check_fault(fed, who, clients.WORTHLESS[fault], clients.train_badly, MODELS, fault=fault, spread=True)


def check_worthless_row(engine: AnyEngine, who: Sequence[int], wrong: float) -> None:
    """A row with invalid numbers is dropped, and its client named."""
    check_fault(bad_federation(engine, who), who, "not finite", clients.answer_badly, MODELS, wrong, verb="map")


def check_bytes_of_good_replies(engine: AnyEngine) -> None:
    """The ledger counts the bytes of accepted replies only."""
    fed = bad_federation(engine, [0])
    got = fed.clients.map(clients.answer_badly, MODELS, NAN)
    assert fed.ledger.bytes_up == (N - 1) * nbytes(take(got.value, 0))
    assert (fed.ledger.asked, fed.ledger.replied) == (N, N - 1)


def check_odd_reply(engine: AnyEngine, who: Sequence[int], fault: str) -> None:
    """A reply of another form, or an error, is dropped, its client named, and its memory write discarded.

    With separate hosts, the form of memory slots at other hosts is unknown: there, a slot of another form is no fault.
    """
    fed = bad_federation(engine, who)
    if fault == "slot of another form" and not in_one_process(engine_of(fed)):
        who = ()
    check_fault(fed, who, clients.ODD[fault], clients.train_oddly, MODELS, fault=fault)
    if fault != "slot of another form" or who:
        assert fed.clients.map(clients.has_kept).value.tolist() == [0.0 if i in who else 1.0 for i in range(N)]


def check_odd_row(engine: AnyEngine, who: Sequence[int], fault: str) -> None:
    """A row of another form is dropped, and its client named."""
    fed = bad_federation(engine, who)
    check_fault(fed, who, "most clients sent", clients.answer_oddly, MODELS, fault=fault, verb="map")


def check_meddling(engine: AnyEngine) -> None:
    """A client function that overwrites its arguments and torch's settings changes no client's numbers."""
    fed, models = bad_federation(engine, []), {"weight": MODELS["weight"].clone()}
    labels = torch.arange(N) % 2
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    replies = []
    for meddle in (False, True, False):
        fed.set_clock(seed=0, clock=4)
        replies.append(fed.clients.map(clients.train_and_meddle, models, each(labels), meddle=meddle))
    assert all(len(reply.clients) == N for reply in replies)
    assert [farthest(reply.value, replies[0].value) for reply in replies] == [0.0, 0.0, 0.0]
    assert torch.equal(models["weight"], MODELS["weight"])
    assert torch.equal(labels, torch.arange(N) % 2)
    now = torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    assert now == before


def check_too_few_good_replies(engine: AnyEngine) -> None:
    """Too few good replies raise an error that names the bad clients."""
    fed = bad_federation(engine, [0, 2, 6], min_replies=5)
    with expect_error(TooFewReplies, r"4 of 7 clients .* wanted 5 \(client-0: value is not finite; client-2"):
        fed.clients.map(clients.answer_badly, MODELS, NAN)
    enough = bad_federation(engine, [0, 2], min_replies=5).clients.map(clients.answer_badly, MODELS, NAN)
    assert len(enough.clients) == 5


def check_nobody_is_asked_twice(engine: AnyEngine) -> None:
    """A position that is given twice is refused."""
    with expect_error(ValueError, "asked twice"):
        bad_federation(engine, []).clients[[1, 2, 1]].map(clients.answer_badly, MODELS, NAN)


# ---- whole runs


def spoilt_federation(case: Case, engine: AnyEngine, who: Sequence[int], number: float = NAN) -> Federation:
    """The case's clients, some of which corrupt every reply."""
    made = engine_maker(engine)(case.objective(), clients.marked(case.data(), who), DOUBLE)
    return Federation(sabotaged(made, clients.bad, number))


def check_run_with_bad_clients(case: Case, engine: AnyEngine, who: Sequence[int] = (0, 5)) -> None:
    """A whole run with bad clients is the same as the run without them.

    For full participation, and an algorithm that does not divide by the number of all clients.
    """
    if isinstance(case.algorithm, IFCA):
        case = case._replace(algorithm=replace(case.algorithm, repair=False))
    rest = good_ids(who)
    fed = spoilt_federation(case, engine, who)
    with_them = list(drive(case.algorithm, fed, seed=3))
    without = federation(engine, case.objective(), case.data().at(rest))
    for got, want in zip(with_them, drive(case.algorithm, without, seed=3), strict=True):
        assert farthest(got.models, want.models) < CLOSE
        assert torch.equal(got.labels[rest], want.labels)
        assert got.labels[list(who)].tolist() == [-1] * len(who)
        assert got.notes.keys() == want.notes.keys()
        assert abs(got.notes["train_loss"] - want.notes["train_loss"]) < CLOSE
    assert {(entry["clock"], entry["client"]) for entry in fed.ledger.rejected} == {
        (clock, f"client-{i}") for clock in range(len(with_them)) for i in who
    }


def check_bad_client_ends_no_run(case: Case, engine: AnyEngine, *, labelled: bool) -> None:
    """A bad client ends no run; `labelled`: it may have a label although its replies never count."""
    fed = spoilt_federation(case, engine, [0], clients.INF)
    snapshots: list[Snapshot] = list(drive(case.algorithm, fed, seed=3))
    check_number(case, len(snapshots))
    assert {entry["client"] for entry in fed.ledger.rejected} <= {"client-0"}
    assert all(torch.isfinite(value).all() for at in snapshots for value in leaves(at.models))
    if not labelled:
        assert {int(at.labels[0]) for at in snapshots} == {-1}


# ---- errors of all clients


def check_common_error(engine: AnyEngine, fn: ClientFn[..., Any], kind: type[Exception], verb: str) -> None:
    """An error of every client is raised unchanged, with its traceback; from other hosts, with its message."""
    fed = bad_federation(engine, [])
    here = in_one_process(engine_of(fed))
    raised: Exception | None = None
    with collected_warnings() as messages:
        try:
            getattr(fed.clients, verb)(fn, MODELS)
        except Exception as error:  # checked below
            raised = error
    assert messages == []
    if not here:
        assert type(raised) is ClientsFailed
        assert f"{kind.__name__}: " in str(raised)
        assert {entry["client"] for entry in fed.ledger.rejected} == set(fed.names)
        return
    assert type(raised) is kind
    frames = traceback.extract_tb(raised.__traceback__)
    assert any(frame.name == fn.body.__name__ and frame.filename == clients.__file__ for frame in frames)
    assert fed.ledger.rejected == []


@dataclass(frozen=True, kw_only=True)
class _Raising(FedAvg):
    """An algorithm whose first call raises at every client."""

    def run(self, fed: Federation, start: Snapshot | None = None) -> Any:
        fed.clients.sample(self.participants).map(clients.always_raises, Snapshot.fresh(fed, 1).models)
        yield from super().run(fed, start)


def check_common_error_ends_a_run(engine: AnyEngine) -> None:
    """An error of every client ends a run at once: the round is not retried."""
    fed = CASES["FedAvg"].federation(engine)
    kind = ArithmeticError if in_one_process(engine_of(fed)) else ClientsFailed
    with expect_error(kind, "nobody can do 1 things"):
        next(drive(_Raising(rounds=2), fed))
    assert fed.ledger.abandoned == []


def check_common_error_of_a_few(engine: AnyEngine) -> None:
    """An error of all clients asked in three rounds in a row ends a run, with the error as the cause."""
    fed = CASES["FedAvg"].federation(engine)
    raised: Exception | None = None
    with collected_warnings():
        try:
            next(drive(_Raising(rounds=2, participants=2), fed))
        except ClientsFailed as error:
            raised = error
    assert raised is not None
    assert "asked in 3 rounds failed with the same error" in str(raised)
    assert "nobody can do 1 things" in str(raised)
    assert len(fed.ledger.abandoned) == 3
    if in_one_process(engine_of(fed)):
        assert raised.__cause__ is not None
        walked = [frame for frame, _ in traceback.walk_tb(raised.__cause__.__traceback__)]
        assert any(frame.f_code.co_name == "always_raises" for frame in walked)
        assert all(frame.f_locals == {} for frame in walked)  # no examples can be reached from it
