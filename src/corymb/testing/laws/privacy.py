"""Laws of privacy: nothing crosses the door but what client functions return."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from corymb.core.client import Client, on_client
from corymb.core.driver import drive
from corymb.core.engine import Part
from corymb.core.federation import Federation
from corymb.evaluate import evaluate
from corymb.testing.cases import CASES, TRUTH, Case
from corymb.testing.engines import AnyEngine, Spy
from corymb.trees import Tree, flatten, leaves


def numbers(tree: Tree) -> set[float]:
    """Every float in a tree except integers, which may coincide by chance."""
    found: set[float] = set()
    for leaf in leaves(tree):
        if leaf.is_floating_point():
            found |= set(leaf[leaf != leaf.round()].tolist())
    return found


def watched_run(case: Case, engine: AnyEngine) -> tuple[Spy, Federation]:
    """A whole run and its evaluation, recorded."""
    spy, fed = _watched(case, engine)
    *_, at = drive(case.algorithm, fed)
    evaluate(fed, case.algorithm, at, truth=torch.tensor(TRUTH))
    return spy, fed


def _watched(case: Case, engine: AnyEngine) -> tuple[Spy, Federation]:
    spy = Spy(case.engine(engine))
    return spy, Federation(spy)


def check_nothing_else_crosses(case: Case, engine: AnyEngine) -> None:
    """Neither examples nor client memory cross the door in a whole run and its evaluation."""
    spy, _ = watched_run(case, engine)
    data = case.data()
    examples = numbers([data.train.x, data.train.y, data.test.x, data.test.y])
    assert len(examples) > 50
    out = set[float]().union(*(numbers(part.value) for parts in spy.parts for part in parts))
    sent = set[float]().union(*(numbers([call.args, call.options]) for call in spy.calls))
    assert len(out) > 20
    assert not examples & out, "examples came back"
    assert not examples & sent, "examples were sent"
    kept = set[float]().union(*(numbers(tables) for tables in spy.kept))
    assert bool(kept) == case.remembers
    assert bool(kept & out) == case.publishes
    assert case.publishes or not kept & sent


@on_client
def give_away(client: Client) -> tuple[Tensor, Tensor]:
    """Return an example, and what is in client memory."""
    client.memory.set("secret", client.train.x.sum() * 3)
    return client.train.x[0], client.memory.get("secret", client.train.x[0, 0])


def check_spy_sees(engine: AnyEngine) -> None:
    """The spy sees what is given away: otherwise the law above would prove nothing."""
    case = CASES["IFCA"]
    spy, fed = _watched(case, engine)
    fed.clients.map(give_away)
    out = numbers([part.value for part in spy.parts[0]])
    assert out & numbers(case.data().train.x)
    assert out & numbers(spy.kept[0])


def check_parts_hold_replies_only(engine: AnyEngine) -> None:
    """A part holds the clients' replies, and nothing else."""
    case = CASES["keeper"]
    spy, fed = _watched(case, engine)
    list(drive(case.algorithm, fed))
    assert Part._fields == ("ids", "value", "rejected", "host", "spread", "error", "cause", "sound")
    for parts, call in zip(spy.parts, spy.calls, strict=True):
        for part in parts:
            assert type(part) is Part
            assert part.cause is None
            names = set(flatten(part.value.total)[1].names) if call.verb == "sum" else set()
            assert names <= set(fed.objective.init(fed.key("any")))


@on_client
def give_nothing(client: Client) -> Tensor:
    """The number of the client's examples."""
    return client.train.weight.sum()


def check_no_path_to_examples(engine: AnyEngine) -> None:
    """No public attribute leads from server code to an example."""
    case = CASES["IFCA"]
    fed = case.federation(engine)
    secret = numbers([case.data().train.x, case.data().test.x])
    replies = fed.clients.map(give_nothing)
    seen: set[int] = set()
    queue: list[Any] = [fed, fed.clients, fed.evaluation(), fed.ledger, replies, fed.objective]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, (str, int, float, type, type(None))):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            assert not numbers(item) & secret
        elif isinstance(item, (list, tuple)):
            queue += item
        elif isinstance(item, dict):
            queue += item.values()
        else:
            public = [name for name in dir(item) if not name.startswith("_")]
            queue += [value for name in public if not callable(value := getattr(item, name))]
    assert len(seen) > 10
