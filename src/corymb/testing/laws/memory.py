"""Laws of client memory: lost and repeated messages, sessions on the same examples, new examples between rounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corymb.core.client import Client, on_client
from corymb.core.engine import Version
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.settings import InvalidInput
from corymb.testing.assertions import assert_same_bits, assert_same_run, expect_error, farthest
from corymb.testing.cases import CASES, Case, run
from corymb.testing.engines import AnyEngine, NeverAsked, Repeating, Spy, federation
from corymb.testing.keeper import Fragile, Keeper
from corymb.testing.laws.algorithms import SEED, whole
from corymb.testing.learners import LEARNERS
from corymb.testing.small_data import regression

REMEMBERING = {
    "visits": Case(Fragile(rounds=3), remembers=True),
    "keeper": CASES["keeper"],
    "networks": Case(Keeper(k=1, rounds=3), "classes", remembers=True),
}
"""Algorithms whose rounds depend on client memory of every call."""


# ---- lost and repeated messages


def losses_of_run(case: Case) -> list[tuple[Version, str]]:
    """Some calls of a whole run, each with one client that was asked, a different one each time."""
    spy = Spy(case.engine("wired"))
    list(run(case, Federation(spy), seed=SEED))
    found = []
    for number, (call, names) in enumerate(zip(spy.calls, spy.asked, strict=True)):
        if not call.readonly:
            found.append((call.version, names[number % len(names)]))
    return found[:: max(1, len(found) // 3)]


def check_lost_replies(case: Case) -> None:
    """A lost reply leaves nothing in client memory: the run is as if that client had not been asked."""
    for lost in losses_of_run(case):
        got, want = _with_and_without(case, lost)
        assert_same_run(got, want)
        assert [at.notes for at in got] == [at.notes for at in want], lost


def check_lost_replies_after_resume(case: Case) -> None:
    """A new server that resumes from the snapshot after the loss, with its versions, gives the same run."""
    for lost in losses_of_run(case):
        uninterrupted, never_asked = _with_and_without(case, lost)
        engine = _losing(case, lost)
        before = Federation(engine)
        for at in run(case, before, seed=SEED):
            if at.clock > lost[0].clock:  # the server stops at the snapshot after the loss
                break
        after = Federation(engine)
        after.rewind(at.clock, versions=before.versions)
        rest = list(run(case, after, at))
        assert_same_bits(rest, uninterrupted[at.clock :])
        assert_same_run(rest, never_asked[at.clock :])
        assert [one.notes for one in rest] == [one.notes for one in never_asked[at.clock :]], lost


def _with_and_without(case: Case, lost: tuple[Version, str]) -> tuple[list[Snapshot], list[Snapshot]]:
    got = list(run(case, Federation(_losing(case, lost)), seed=SEED))
    want = list(run(case, Federation(NeverAsked(case.engine("wired"), [lost])), seed=SEED))
    return got, want


def _losing(case: Case, lost: tuple[Version, str]) -> Any:
    engine: Any = case.engine("wired")
    engine.lost = {lost}
    return engine


def check_repeated_calls(engine: AnyEngine) -> None:
    """A host that gets a call twice gives the same answer twice, and the run is the same."""
    for case in REMEMBERING.values():
        fed = Federation(Repeating(case.engine(engine)))
        assert_same_bits(list(run(case, fed, seed=SEED)), whole(case, engine))


# ---- sessions and new examples


@on_client
def keep_and_tell(client: Client) -> dict[str, Tensor]:
    """Stores its targets and a number, and returns what was stored before."""
    memory = client.memory
    before = memory.get("targets", torch.zeros_like(client.train.y))
    number = memory.get("number", torch.tensor(0.0))
    memory.set("targets", client.train.y, along="train")
    memory.set("number", number + 1)
    return {"kept": (before * client.train.weight).sum(), "number": number, "seen": client.train.weight.sum()}


@on_client
def sum_of_examples(client: Client) -> Tensor:
    """A sum over the client's training and test examples."""
    x, y, weight = client.train
    return (weight[:, None] * x).sum() + (weight * y).sum() + client.test.x.sum() * 2


def check_open(engine: AnyEngine) -> None:
    """A session opened on an engine has the same examples, its own objective, and empty memory."""
    data, first = regression(), LEARNERS["linear"].objective()
    fed = federation(engine, first, data)
    fed.clients.map(keep_and_tell)
    other = LEARNERS["features"].objective()
    opened = fed.__dict__["_engine"].open(other)
    session = Federation(opened)
    assert session.objective is other
    assert (list(session.names), session.sizes.tolist()) == (list(fed.names), fed.sizes.tolist())
    assert opened.fingerprint == fed.__dict__["_engine"].fingerprint
    assert farthest(session.clients.map(sum_of_examples).value, fed.clients.map(sum_of_examples).value) == 0
    assert session.clients.map(keep_and_tell).value["number"].tolist() == [0.0] * len(data.names)
    assert session.clients.map(keep_and_tell).value["number"].tolist() == [1.0] * len(data.names)
    assert fed.clients.map(keep_and_tell).value["number"].tolist() == [1.0] * len(data.names)  # separate memories


def check_refresh(engine: AnyEngine) -> None:
    """New examples take effect at once; slots along examples are cleared for those clients only, and returned."""
    data = regression()
    fed = federation(engine, LEARNERS["linear"].objective(), data)
    inside = fed.__dict__["_engine"]
    mark = inside.fingerprint
    fed.clients.map(keep_and_tell)
    before = fed.clients.map(sum_of_examples).value
    new = regression((9, 20, 1), seed=5)._replace(names=["client-3", "client-0", "client-5"])
    with expect_error(InvalidInput, "There is no client"):
        inside.refresh(new._replace(names=["client-3", "client-0", "nobody"]))
    assert inside.refresh(new) == ["targets"]
    assert fed.sizes.tolist() == [20, 2, 5, 9, 7, 1]
    assert inside.fingerprint != mark
    fresh = federation(engine, LEARNERS["linear"].objective(), new)
    sums = dict(zip(fresh.names, fresh.clients.map(sum_of_examples).value.tolist(), strict=True))
    want = [sums.get(name, float(before[i])) for i, name in enumerate(fed.names)]
    assert farthest(fed.clients.map(sum_of_examples).value, torch.tensor(want, dtype=torch.float64)) < 1e-12
    after = fed.clients.map(keep_and_tell).value
    assert after["seen"].tolist() == fed.sizes.tolist()
    assert after["number"].tolist() == [1.0] * len(data.names)  # slots that do not follow examples stay
    kept = [0.0 if name in new.names else float(_targets(data, name)) for name in fed.names]
    assert farthest(after["kept"], torch.tensor(kept, dtype=torch.float64)) < 1e-12


def _targets(data: Any, name: str) -> Tensor:
    i = data.names.index(name)
    total: Tensor = data.train.y[data.train.offsets[i] : data.train.offsets[i + 1]].sum()
    return total
