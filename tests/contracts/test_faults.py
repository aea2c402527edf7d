"""One bad client can neither end a run nor corrupt a model: it is dropped, named, and leaves nothing behind."""

import functools
import logging
import traceback
from dataclasses import replace

import pytest
import torch

from corymb.algorithms import IFCA, FedAvg
from corymb.core.client import Client, ClientFn, Share, Shares, on_client
from corymb.core.driver import drive
from corymb.core.engine import Part
from corymb.core.federation import Federation, TooFewReplies
from corymb.core.snapshot import planned_rounds
from corymb.core.sums import Sums
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.keys import root
from corymb.local import Descent, descend, losses, one_hot
from corymb.objectives import LinearRegression
from corymb.trees import as_tensors, count, leaves, map_tensors, nbytes, take
from tests.contracts.cases import CASES, LINE, Case
from tests.tiny import DOUBLE, ENGINES, Data, farthest, regression

SIZES = (6, 9, 12, 7, 6, 8, 10)
N = len(SIZES)
MARK = 777.0
OBJECTIVE = LinearRegression(3, dtype=torch.float64)
MODELS = {"weight": torch.stack([OBJECTIVE.init(root(j))["weight"] for j in range(2)])}
WHO = {"the first": [0], "the last": [N - 1], "one between": [3], "several": [0, 2, 6]}
every_engine = pytest.mark.parametrize("engine", ENGINES)
whoever = pytest.mark.parametrize("who", WHO.values(), ids=WHO)


def marked(who) -> Data:
    """Regression data in which bad clients know themselves by the first feature of their first example."""
    data = regression(SIZES)
    data.train.x[data.train.offsets[who], 0] = MARK
    return data


@functools.cache
def _engine(engine: str, who: tuple[int, ...]):
    return ENGINES[engine](OBJECTIVE, marked(list(who)), DOUBLE)


def federation(engine: str, who, **options) -> Federation:
    fed = Federation(_engine(engine, tuple(who)), **options)
    fed.rewind(0)
    return fed


def bad(client: Client) -> torch.Tensor:
    return client.train.x[0, 0] == MARK


def good_ids(who) -> list[int]:
    return [i for i in range(N) if i not in who]


# ---- faults that vectorise


NAN, INF = float("nan"), float("inf")
WORTHLESS = {
    "nan in value": "value is not finite",
    "inf in value": "value is not finite",
    "minus inf in value": "value is not finite",
    "nan in weight": "value is not finite",
    "nan in note": "value is not finite",
    "huge value": "value is too large",
    "label too large": "label is out of range for 2 clusters",
    "label negative": "label is out of range for 2 clusters",
    "weight negative": "weight is negative",
    "weight too large": "weight is more than the client's size allows",
    "weight infinite": "value is not finite",
}


@on_client
def train_badly(client: Client, models, *, fault: str, spread: bool):
    """An honest reply, unless the client is bad."""
    label = losses(client, models).argmin()
    model = descend(client, take(models, label), LINE)
    weight, note = one_hot(label, count(models)).double(), losses(client, models).sum()
    client.memory.set("was here", torch.tensor(1.0))

    def spoil(value, wrong):
        return torch.where(bad(client), torch.as_tensor(wrong, dtype=value.dtype), value)

    if fault.endswith("in value") or fault == "huge value":
        number = {"nan": NAN, "inf": INF, "minus": -INF, "huge": 1.7e308}[fault.split()[0]]
        only_last = torch.arange(3) == 2
        model = {"weight": torch.where(only_last, spoil(model["weight"], number), model["weight"])}
    elif fault.startswith("label"):
        label = spoil(label, 2 if "large" in fault else -1)
    elif fault.startswith("weight"):
        worst = {"negative": -1e-3, "large": 1.001 * client.train.weight.sum(), "infinite": INF}[fault.split()[-1]]
        weight = torch.where(torch.arange(2) == 1, spoil(weight, worst), weight)
    elif fault == "nan in weight":
        weight = spoil(weight, NAN)
    elif fault == "nan in note":
        note = spoil(note, NAN)
    if spread:
        return Shares({n: torch.stack([p, -p]) for n, p in model.items()}, weight, label, note)
    return Share(model, weight, label, note)


def check(fed: Federation, who, reason: str, fn, *args, verb: str = "sum", **options):
    """Bad clients are dropped and named; what is left is what the others by themselves give."""
    fed.set_clock(seed=0, clock=4)
    want = getattr(fed.clients[good_ids(who)], verb)(fn, *args, **options)
    assert want.rejected == []
    fed.ledger.rejected.clear()
    fed.set_clock(seed=0, clock=4)
    got = getattr(fed.clients, verb)(fn, *args, **options)
    assert got.clients.ids.tolist() == good_ids(who)
    assert sorted(name for name, _ in got.rejected) == [f"client-{i}" for i in who]
    assert all(reason in why for _, why in got.rejected), got.rejected
    assert sorted(entry["client"] for entry in fed.ledger.rejected) == [f"client-{i}" for i in who]
    assert all(entry["clock"] == 4 and reason in entry["reason"] for entry in fed.ledger.rejected)
    assert farthest(got.value, want.value) < 1e-9
    return got


@every_engine
@whoever
@pytest.mark.parametrize("fault", WORTHLESS)
def test_a_worthless_reply_is_dropped_and_named(engine, who, fault):
    fed = federation(engine, who)
    check(fed, who, WORTHLESS[fault], train_badly, MODELS, fault=fault, spread=False)
    here = fed.clients.map(was_here).value
    assert here.tolist() == [0.0 if i in who else 1.0 for i in range(N)]  # what it wanted to keep is not kept


@on_client
def was_here(client: Client):
    return client.memory.get("was here", torch.tensor(0.0))


@every_engine
@pytest.mark.parametrize("fault", WORTHLESS)
def test_the_same_for_a_value_for_every_sum(engine, fault):
    check(federation(engine, [0, 2]), [0, 2], WORTHLESS[fault], train_badly, MODELS, fault=fault, spread=True)


@on_client
def answer_badly(client: Client, models, wrong):
    fit = losses(client, models)
    return {"fit": torch.where(bad(client), wrong, fit), "size": client.train.weight.sum()}


@every_engine
@whoever
@pytest.mark.parametrize("wrong", [NAN, INF])
def test_a_worthless_row_is_dropped_and_named(engine, who, wrong):
    check(federation(engine, who), who, "not finite", answer_badly, MODELS, wrong, verb="map")


@every_engine
def test_the_ledger_counts_the_bytes_of_replies_that_counted(engine):
    fed = federation(engine, [0])
    got = fed.clients.map(answer_badly, MODELS, NAN)
    assert fed.ledger.bytes_up == (N - 1) * nbytes(take(got.value, 0))
    assert (fed.ledger.asked, fed.ledger.replied) == (N, N - 1)


# ---- faults that only a client by itself can have


ODD = {
    "shape": "reply is",
    "dtype": "reply is",
    "structure": "reply is",
    "name": "reply is",
    "more sums": "reply is",
    "no label": "reply is",
    "Shares": "value does not have one row for each weight",
    "no share": "reply is a dict, `sum` wants a Share",
    "nothing": "reply is a NoneType, `sum` wants a Share",
    "text": "raised TypeError",
    "raises": "raised ZeroDivisionError: division by zero",
    "raises nothing said": "raised KeyError",
    "slot of another form": "reply is",
}


@on_client
def train_oddly(client: Client, models, *, fault: str):
    label = losses(client, models).argmin()
    model, weight = descend(client, take(models, label), LINE), one_hot(label, 2)
    if not bad(client):
        client.memory.set("kept", torch.ones(2))
        return Share(model, weight, label, ())
    client.memory.set("kept", torch.ones(3) if fault == "slot of another form" else torch.ones(2))
    if fault == "raises":
        return 1 / 0
    if fault == "raises nothing said":
        raise KeyError
    return {
        "shape": Share({"weight": model["weight"][:1]}, weight, label, ()),
        "dtype": Share({"weight": model["weight"].float()}, weight, label, ()),
        "structure": Share(({"weight": model["weight"]},), weight, label, ()),
        "name": Share({"weights": model["weight"]}, weight, label, ()),
        "more sums": Share(model, one_hot(label, 3), label, ()),
        "no label": Share(model, weight, None, ()),
        "Shares": Shares(model, weight, label, ()),
        "no share": {"weight": model["weight"]},
        "nothing": None,
        "text": "what?",
        "slot of another form": Share(model, weight, label, ()),
    }[fault]


@every_engine
@whoever
@pytest.mark.parametrize("fault", ODD)
def test_an_odd_reply_is_dropped_and_named(engine, who, fault):
    fed = federation(engine, who)
    check(fed, who, ODD[fault], train_oddly, MODELS, fault=fault)
    assert fed.clients.map(has_kept).value.tolist() == [0.0 if i in who else 1.0 for i in range(N)]


@on_client
def has_kept(client: Client):
    return client.memory.get("kept", torch.zeros(2))[0]


@on_client
def answer_oddly(client: Client, models, *, fault: str):
    fit = losses(client, models)
    if not bad(client):
        return fit
    return {"shape": fit[:1], "scalar": fit[0], "dtype": fit.float(), "structure": (fit,), "nothing": None}[fault]


@every_engine
@whoever
@pytest.mark.parametrize("fault", ["shape", "scalar", "dtype", "structure", "nothing"])
def test_an_odd_row_is_dropped_and_named(engine, who, fault):
    check(federation(engine, who), who, "most clients sent", answer_oddly, MODELS, fault=fault, verb="map")


# ---- whole runs


class Sabotaged:
    """An engine at which marked clients spoil every reply, whatever they are asked."""

    def __init__(self, engine, number: float) -> None:
        self.engine, self.number = engine, number

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def run(self, call, ids):
        def body(client, *args, **options):
            reply = as_tensors(call.fn.body(client, *args, **options))
            wrong = torch.tensor(self.number)
            return map_tensors(lambda t: torch.where(bad(client), wrong, t) if t.is_floating_point() else t, reply)

        body.__module__, body.__qualname__ = call.fn.body.__module__, call.fn.body.__qualname__
        yield from self.engine.run(call._replace(fn=ClientFn(body)), ids)


def sabotaged(case: Case, engine: str, who, number: float = NAN) -> Federation:
    data = case.data()
    x = data.train.x.clone()
    x[data.train.offsets[who], 0] = MARK
    data = data._replace(train=data.train._replace(x=x))
    return Federation(Sabotaged(ENGINES[engine](case.objective(), data, DOUBLE), number))


FULL = ["FedAvg", "FedProx", "IFCA", "IFCA, by examples", "IFCA, momentum", "IFCA, shared layer", "IFCA, soft"]


@every_engine
@pytest.mark.parametrize("name", FULL)
def test_a_whole_run_with_bad_clients_is_the_run_without_them(engine, name):
    """Full participation, and an algorithm that does not divide by the number of all clients."""
    case = CASES[name]
    if isinstance(case.algorithm, IFCA):
        case = case._replace(algorithm=replace(case.algorithm, repair=False))
    who = [0, 5]
    rest = [i for i in range(N) if i not in who]
    fed = sabotaged(case, engine, who)
    with_them = list(drive(case.algorithm, fed, seed=3))
    without = Federation(ENGINES[engine](case.objective(), case.data().at(rest), DOUBLE))
    for got, want in zip(with_them, drive(case.algorithm, without, seed=3), strict=True):
        assert farthest(got.models, want.models) < 1e-9
        assert torch.equal(got.labels[rest], want.labels)
        assert got.labels[who].tolist() == [-1, -1]
        assert got.notes.keys() == want.notes.keys()
        assert got.notes["train_loss"] == pytest.approx(want.notes["train_loss"], abs=1e-9)
    assert {(entry["clock"], entry["client"]) for entry in fed.ledger.rejected} == {
        (clock, f"client-{i}") for clock in range(len(with_them)) for i in who
    }


@pytest.mark.parametrize("name", [name for name in CASES if name not in FULL])
def test_no_algorithm_ends_over_a_bad_client(name):
    case, engine = CASES[name], "loop" if CASES[name].remembers else "vectorised"
    fed = sabotaged(case, engine, [0], INF)
    snapshots = list(drive(case.algorithm, fed, seed=3))
    assert len(snapshots) == planned_rounds(case.algorithm)
    assert {entry["client"] for entry in fed.ledger.rejected} <= {"client-0"}
    assert all(torch.isfinite(value).all() for at in snapshots for value in leaves(at.models))
    if "Oracle" not in name and name != "CFL":  # these begin with everybody's label
        assert {int(at.labels[0]) for at in snapshots} == {-1}


@every_engine
def test_too_few_good_replies_are_said_with_names(engine):
    fed = federation(engine, [0, 2, 6], min_replies=5)
    with pytest.raises(TooFewReplies, match=r"4 of 7 clients .* wanted 5 \(client-0: value is not finite; client-2"):
        fed.clients.map(answer_badly, MODELS, NAN)
    assert len(federation(engine, [0, 2], min_replies=5).clients.map(answer_badly, MODELS, NAN).clients) == 5


# ---- everybody's fault


@on_client
def always_raises(client: Client, models):
    losses(client, models)
    raise ArithmeticError(f"nobody can do {len(models)} things")


@on_client
def raises_late(client: Client, models):
    fit = losses(client, models)
    return fit @ torch.zeros(5, dtype=fit.dtype)


@every_engine
@pytest.mark.parametrize(("fn", "kind"), [(always_raises, ArithmeticError), (raises_late, RuntimeError)])
@pytest.mark.parametrize("verb", ["map", "sum"])
def test_an_error_of_every_client_is_raised_as_it_is(engine, fn, kind, verb, caplog):
    fed = federation(engine, [])
    with caplog.at_level(logging.WARNING), pytest.raises(kind) as error:
        getattr(fed.clients, verb)(fn, MODELS)
    assert error.type is kind
    frames = traceback.extract_tb(error.tb)
    assert any(frame.name == fn.body.__name__ and frame.filename == __file__ for frame in frames)
    assert caplog.records == []
    assert fed.ledger.rejected == []


@every_engine
def test_an_error_of_every_client_ends_a_run_at_once(engine, monkeypatch):
    from corymb.algorithms import fedavg

    monkeypatch.setattr(fedavg, "train", always_raises_in_training)
    case = CASES["FedAvg"]
    with pytest.raises(ArithmeticError, match="not today"):
        next(drive(FedAvg(rounds=2, local=Descent()), case.federation(engine)))


@on_client
def always_raises_in_training(client: Client, models, *, local):
    raise ArithmeticError("not today")


def test_a_function_must_stand_at_module_level():
    def inside(client):
        return 0

    with pytest.raises(TypeError, match="module level"):
        on_client(inside)


@every_engine
def test_nobody_is_asked_twice(engine):
    fed = federation(engine, [])
    with pytest.raises(ValueError, match="asked twice"):
        fed.clients[[1, 2, 1]].map(answer_badly, MODELS, NAN)


# ---- the door, with engines that are not to be trusted


class Fake:
    """Says whatever it is told to."""

    def __init__(self, *parts: Part) -> None:
        self.parts, self.objective = parts, OBJECTIVE
        self.names, self.sizes = [f"client-{i}" for i in range(N)], torch.tensor(SIZES)
        self.hosts = [""] * N

    def run(self, call, ids):
        yield from self.parts


def rows(*ids: int, k: int = 2, n: int | None = None, dtype=torch.float64, rejected=(), fill: float = 1.0) -> Part:
    value = {"fit": torch.full((len(ids) if n is None else n, k), fill, dtype=dtype)}
    return Part(torch.tensor(ids, dtype=torch.int64), value, list(rejected))


def sums(*ids: int, k: int = 2, labels: int | None = None, total: float = 1.0, weight: float | None = None) -> Part:
    n = len(ids)
    value = Sums(
        {"weight": torch.full((k, 3), total * n, dtype=torch.float64)},
        torch.full((k,), float(n) if weight is None else weight),
        torch.zeros(n if labels is None else labels, dtype=torch.int64),
        (),
    )
    return Part(torch.tensor(ids, dtype=torch.int64), value, [])


def oddly(part: Part, **changes) -> Part:
    return part._replace(value=part.value._replace(**changes))


BAD_PARTS = {
    "too few rows": ("map", rows(5, 6, n=1), "number of rows"),
    "too many rows": ("map", rows(5, 6, n=3), "number of rows"),
    "a row for all": ("map", Part(torch.tensor([5, 6]), {"fit": torch.ones(())}, []), "number of rows"),
    "a client twice": ("map", rows(5, 6, 6), "came twice"),
    "a client that another part has": ("map", rows(5, 6, 0), "came twice"),
    "a client never asked": ("map", rows(5, 6, 4), "not asked for"),
    "a client that is not there": ("map", rows(5, 6, 99), "not asked for"),
    "a client before the first": ("map", rows(5, 6, -1), "not asked for"),
    "another shape": ("map", rows(5, 6, k=3), "most clients sent"),
    "another dtype": ("map", rows(5, 6, dtype=torch.float32), "most clients sent"),
    "not finite": ("map", rows(5, 6, fill=NAN), "not finite"),
    "nothing at all": ("map", Part(torch.tensor([5, 6]), None, []), "most clients sent"),
    "sums: too few labels": ("sum", sums(5, 6, labels=1), "number of rows"),
    "sums: a client twice": ("sum", sums(5, 5, 6), "came twice"),
    "sums: never asked": ("sum", sums(5, 6, 4), "not asked for"),
    "sums: another k": ("sum", sums(5, 6, k=3), "most clients sent"),
    "sums: not finite": ("sum", sums(5, 6, total=INF), "not finite"),
    "sums: weight not finite": ("sum", sums(5, 6, weight=NAN), "not finite"),
    "sums: one for all": ("sum", oddly(sums(5, 6), total={"weight": torch.ones(3).double()}), "number of sums"),
    "sums: a short row": ("sum", oddly(sums(5, 6), total={"weight": torch.ones(2, 1).double()}), "most clients sent"),
    "sums: no weights": ("sum", oddly(sums(5, 6), weight=torch.tensor(2.0)), "number of sums"),
    "sums: one label": ("sum", oddly(sums(5, 6), label=torch.tensor(0)), "number of rows"),
    "sums: no labels": ("sum", oddly(sums(5, 6), label=None), "most clients sent"),
    "sums: rows instead": ("sum", rows(5, 6), "wanted Sums"),
    "sums: nothing": ("sum", Part(torch.tensor([5, 6]), None, []), "wanted Sums"),
}


@pytest.mark.parametrize(
    ("name", "first"),
    # Who comes first is believed.
    [(name, first) for name in BAD_PARTS for first in (True, False) if not (first and "another part" in name)],
)
def test_a_bad_part_is_refused_at_the_door(name, first):
    """Clients 0 to 2 come in good parts, 5 and 6 were asked too, 3 and 4 were not."""
    verb, part, reason = BAD_PARTS[name]
    make = rows if verb == "map" else sums
    good = [make(2, 0), make(1)]
    fed = Federation(Fake(*([part, *good] if first else [*good, part])))
    got = getattr(fed.clients[[0, 1, 2, 5, 6]], verb)(answer_badly, MODELS, NAN)
    assert got.clients.ids.tolist() == [0, 1, 2]
    assert [name for name, _ in got.rejected] == ["client-5", "client-6"]
    assert all(reason in why for _, why in got.rejected)
    if verb == "map":
        assert got.value["fit"].tolist() == [[1.0, 1.0]] * 3
    else:
        assert got.value.weight.tolist() == [3.0, 3.0]
        assert got.value.total["weight"].tolist() == [[3.0] * 3] * 2
        assert got.value.label.tolist() == [0, 0, 0]


def test_who_was_not_asked_has_no_vote():
    """A thousand strangers with rows of another shape, and one client many times."""
    strangers = rows(*range(100, 1100), k=3)
    often = rows(*[5] * 50, k=3)
    fed = Federation(Fake(strangers, often, rows(0, 1), rows(2)))
    got = fed.clients[[0, 1, 2, 5]].map(answer_badly, MODELS, NAN)
    assert got.clients.ids.tolist() == [0, 1, 2]
    assert got.value["fit"].shape == (3, 2)


def test_a_part_may_only_turn_down_clients_that_were_asked_and_did_not_answer():
    told = [(99, "?"), (-1, "?"), (3, "?"), (0, "?"), (5, "is ill")]
    fed = Federation(Fake(rows(0, 1, rejected=told), rows(2)))
    got = fed.clients[[0, 1, 2, 5]].map(answer_badly, MODELS, NAN)
    assert got.clients.ids.tolist() == [0, 1, 2]
    assert got.rejected == [("client-5", "is ill")]


def test_parts_in_any_order_are_put_in_the_order_asked():
    parts = [Part(torch.tensor(ids), {"fit": torch.tensor(ids).double()[:, None]}, []) for ids in ([4, 0], [6], [3])]
    got = Federation(Fake(*parts)).clients[[3, 0, 6, 1, 4]].map(answer_badly, MODELS, NAN)
    assert got.clients.ids.tolist() == [3, 0, 6, 4]
    assert got.value["fit"].flatten().tolist() == [3, 0, 6, 4]


def test_no_part_at_all_is_too_few_replies():
    for parts in ([], [Part(torch.empty(0, dtype=torch.int64), None, [], 0)]):
        with pytest.raises(TooFewReplies, match="0 of 7"):
            Federation(Fake(*parts)).clients.map(answer_badly, MODELS, NAN)


def test_engines_are_what_the_laws_are_tested_on():
    assert set(ENGINES.values()) == {LoopEngine, VectorisedEngine}
