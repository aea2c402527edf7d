"""The loop is the definition of right: every kernel, every chunk and every company gives its numbers."""

import functools
import logging

import pytest
import torch
from torch.func import vmap

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation, each
from corymb.engines import LoopEngine, Placement, VectorisedEngine
from corymb.engines.vectorised.engine import Need
from corymb.keys import fold, normal, root, uniform
from corymb.local import Descent, descend, gradient, loss, losses, one_hot, part, scores
from corymb.trees import count, stack, take
from tests.contracts.learners import LEARNERS
from tests.tiny import DOUBLE, SIZES, farthest, join

CLOSE = 1e-9
N = len(SIZES)
HOWS = {
    "full batch": Descent(lr=0.05, steps=2),
    "epochs": Descent(lr=0.05, epochs=2, batch=5),
    "momentum": Descent(lr=0.05, epochs=2, batch=5, momentum=0.9),
    "batches": Descent(lr=0.05, steps=3, batch=3),
    "adam": Descent(lr=0.02, epochs=2, batch=5, optimiser="adam"),
    "proximal": Descent(lr=0.05, epochs=2, batch=5, proximal=0.5, weight_decay=0.1),
}
FEW = ("full batch", "momentum")
MANY = {"linear", "mlp", "cnn", "lstm", "layer used twice"}  # these go through all of HOWS


@on_client
def measure(client: Client, models):
    model = take(models, 1)
    return {
        "losses": losses(client, models),
        "loss": loss(client, model),
        "scores": scores(client, models),
        "on test": losses(client, models, on=client.test),
        "gradient": gradient(client, model),
        "gradient on test": gradient(client, model, on=client.test),
        "size": client.train.weight.sum(),
    }


@on_client
def train(client: Client, models, *, how: Descent):
    """Descent from a model that all have, and from one's own choice; a draw that must be this client's."""
    choice = losses(client, models).argmin()
    return {
        "common": descend(client, take(models, 0), how),
        "own": descend(client, take(models, choice), how, purpose="own"),
        "choice": choice,
        "draw": uniform(client.key("draw"), (2,), torch.float64),
    }


@functools.cache
def room(learner: str, kernel: str | None, memory: int | None = None) -> Federation:
    objective, data = LEARNERS[learner].objective(), LEARNERS[learner].data()
    if kernel == "loop":
        return Federation(LoopEngine(objective, data, DOUBLE))
    return Federation(VectorisedEngine(objective, data, DOUBLE, kernel=kernel, memory=memory))


@functools.cache
def models_of(learner: str, k: int = 2):
    return stack([room(learner, "loop").objective.init(fold(root(5), j)) for j in range(k)])


def ask(fed: Federation, fn, *args, ids=None, verb="map", **options):
    """A call with the same key every time."""
    fed.set_clock(seed=3, clock=7)
    cohort = fed.clients if ids is None else fed.clients[ids]
    replies = getattr(cohort, verb)(fn, *args, **options)
    assert replies.rejected == []
    assert replies.clients.ids.tolist() == cohort.ids.tolist()
    return replies.value


@functools.cache
def right(learner: str, how: str | None):
    loop = room(learner, "loop")
    if how is None:
        return ask(loop, measure, models_of(learner))
    return ask(loop, train, models_of(learner), how=HOWS[how])


KERNELS = [None, "fused", "foreach", "serial"]
every_kernel = pytest.mark.parametrize(
    ("learner", "kernel"),
    [(name, None) for name in LEARNERS]
    + [(name, kernel) for name in LEARNERS for kernel in LEARNERS[name].kernels]
    + [(name, "fused") for name in ("layer used twice", "lstm", "transposed weight")]  # which must fall back
    + [("lstm", "foreach")],
)


@every_kernel
def test_every_kernel_measures_like_the_loop(learner, kernel):
    assert farthest(ask(room(learner, kernel), measure, models_of(learner)), right(learner, None)) < CLOSE


@every_kernel
def test_every_kernel_descends_like_the_loop(learner, kernel):
    for how in HOWS if learner in MANY and kernel in LEARNERS[learner].kernels else FEW:
        got = ask(room(learner, kernel), train, models_of(learner), how=HOWS[how])
        assert farthest(got, right(learner, how)) < CLOSE, how
        assert farthest(right(learner, how)["common"], stack([take(models_of(learner), 0)] * N)) > 1e-4  # it moved


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_kernel_that_is_asked_for_does_the_work_where_it_can(learner):
    for kernel in ("fused", "foreach", "serial"):
        kernels = room(learner, kernel).__dict__["_engine"].kernels
        if kernel in LEARNERS[learner].kernels:
            assert kernels.only == kernel
            assert kernels.pick(Descent(steps=2)) == kernel
        else:
            assert kernels.pick(Descent(steps=2)) != kernel


def test_the_choice_of_a_kernel_is_a_pure_function_of_model_optimiser_and_device():
    def picked(learner, how=Descent(steps=1)):
        return room(learner, None).__dict__["_engine"].kernels.pick(how)

    assert picked("mlp") == "fused"
    assert picked("mlp", Descent(steps=1, momentum=0.5)) == "foreach"
    assert picked("cnn") == picked("lstm") == "serial"
    assert picked("layer used twice") == "foreach"


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("learner", ["linear", "mlp", "layer used twice", "cnn"])
def test_the_size_of_a_chunk_changes_nothing(learner, share):
    """One client at a time, and two or three."""
    whole = room(learner, None).__dict__["_engine"]
    fed = room(learner, None, int(1 + share * N * whole._bytes_of(max(SIZES), Need())))
    chunk = fed.__dict__["_engine"].describe()["chunk"]
    assert chunk == 1 if share == 0 else 1 < chunk < N
    assert farthest(ask(fed, measure, models_of(learner)), right(learner, None)) < CLOSE
    for how in ("epochs", "momentum"):
        assert farthest(ask(fed, train, models_of(learner), how=HOWS[how]), right(learner, how)) < CLOSE


@pytest.mark.parametrize("kernel", ["loop", *KERNELS])
@pytest.mark.parametrize("learner", ["mlp"])
def test_order_and_company_change_no_clients_numbers(learner, kernel):
    fed, models = room(learner, kernel), models_of(learner)
    for ids in ([5, 4, 3, 2, 1, 0], [3, 0, 5], [1], [5, 4]):
        got = ask(fed, train, models, ids=ids, how=HOWS["epochs"])
        assert farthest(got, take(right(learner, "epochs"), torch.tensor(ids))) < CLOSE


@pytest.mark.parametrize("kernel", ["loop", *KERNELS])
def test_a_further_client_changes_no_other_clients_numbers(kernel):
    """It comes first, and is longer than all others."""
    learner = LEARNERS["mlp"]
    stranger = learner.data((30,), seed=8)._replace(names=["a stranger"])
    more = join(stranger, learner.data())
    engine = LoopEngine if kernel == "loop" else functools.partial(VectorisedEngine, kernel=kernel)
    got = ask(Federation(engine(learner.objective(), more, DOUBLE)), train, models_of("mlp"), how=HOWS["epochs"])
    assert farthest(take(got, slice(1, None)), right("mlp", "epochs")) < CLOSE


@on_client
def use_some(client: Client, models):
    """Every second example, and examples that count differently; padding may stand anywhere after them."""
    half = part(client.train, 1, 2)
    graded = client.train._replace(weight=client.train.weight * (1 + client.train.x.flatten(1)[:, 0] ** 2))
    none = client.train._replace(weight=client.train.weight * 0)
    model, batches = take(models, 0), Descent(lr=0.05, epochs=2, batch=2, momentum=0.5)
    return {
        "losses": (losses(client, models, on=half), losses(client, models, on=graded), losses(client, models, on=none)),
        "gradient": gradient(client, model, on=graded),
        "half": descend(client, model, batches, on=half),
        "graded": descend(client, model, HOWS["epochs"], on=graded),
        "none": descend(client, model, HOWS["epochs"], on=none),
        "own": descend(client, take(models, losses(client, models, on=half).argmin()), HOWS["batches"], on=half),
    }


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("learner", ["linear", "layer used twice"])
def test_examples_may_count_differently_or_not_at_all(learner, kernel):
    models = models_of(learner)
    want = ask(room(learner, "loop"), use_some, models)
    assert farthest(ask(room(learner, kernel), use_some, models), want) < CLOSE
    assert farthest(want["none"], stack([take(models, 0)] * N)) == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_client_may_have_no_examples_at_all(kernel):
    data = LEARNERS["mlp"].data()
    nobody = data.train._replace(offsets=torch.tensor([0, 0, *data.train.offsets[2:].tolist()]))
    untested = data.test._replace(offsets=torch.tensor([0, 0, 0, *data.test.offsets[3:].tolist()]))
    data = data._replace(train=nobody, test=untested)
    objective, models = LEARNERS["mlp"].objective(), models_of("mlp")
    loop, many = (
        Federation(engine)
        for engine in (LoopEngine(objective, data, DOUBLE), VectorisedEngine(objective, data, DOUBLE, kernel=kernel))
    )
    assert farthest(ask(many, measure, models), ask(loop, measure, models)) < CLOSE
    for how in ("full batch", "epochs", "momentum"):
        got, want = (ask(fed, train, models, how=HOWS[how]) for fed in (many, loop))
        assert farthest(got, want) < CLOSE
        assert farthest(take(want["common"], 0), take(models, 0)) == 0


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_chunk_that_is_too_large_for_the_machine_is_halved(most, monkeypatch, caplog):
    learner = LEARNERS["linear"]
    engine = VectorisedEngine(learner.objective(), learner.data(), DOUBLE)
    work, budget, tried = engine._under_vmap, engine.budget, []

    def cramped(call, ids, places):
        tried.append(len(ids))
        if len(ids) > most:
            raise torch.OutOfMemoryError("no room")
        return work(call, ids, places)

    monkeypatch.setattr(engine, "_under_vmap", cramped)
    with caplog.at_level(logging.WARNING):
        got = ask(Federation(engine), train, models_of("linear"), how=HOWS["epochs"])
    assert farthest(got, right("linear", "epochs")) < CLOSE
    assert max(tried) > most
    assert engine.budget < budget
    assert "out of memory" in caplog.text


# ---- arguments


@on_client
def start_from(client: Client, own, shift, *, how: Descent, extra):
    return descend(client, {n: p + shift for n, p in own["model"].items()}, how), own["number"] + extra


@pytest.mark.parametrize("kernel", [None, "foreach", "serial"])
def test_each_client_gets_its_own_row(kernel):
    key = fold(root(2), torch.arange(N))
    models = {name: torch.stack([p[0]] * N) for name, p in models_of("mlp").items()}
    models = {n: p + normal(fold(root(1), n), p.shape, torch.float64) for n, p in models.items()}
    own = {"model": models, "number": uniform(key, (), torch.float64)}
    for ids in ([0, 1, 2, 3, 4, 5], [4, 0, 2]):
        rows, extra = take(own, torch.tensor(ids)), torch.tensor(ids).double()
        want = ask(room("mlp", "loop"), start_from, each(rows), 0.1, ids=ids, how=HOWS["epochs"], extra=each(extra))
        got = ask(room("mlp", kernel), start_from, each(rows), 0.1, ids=ids, how=HOWS["epochs"], extra=each(extra))
        assert farthest(got, want) < CLOSE
        assert torch.allclose(got[1], rows["number"] + extra)


@pytest.mark.parametrize("kernel", ["loop", None])
def test_rows_by_label_are_sent_without_a_copy_for_each(kernel):
    labels = torch.tensor([1, 0, 0, 1, 1, 0])
    fed = room("mlp", kernel)
    own = {"model": models_of("mlp"), "number": torch.arange(2).double()}
    got = ask(fed, start_from, each(own, of=labels), 0.0, how=HOWS["full batch"], extra=1.0)
    want = ask(fed, start_from, each(take(own, labels)), 0.0, how=HOWS["full batch"], extra=1.0)
    assert farthest(got, want) < CLOSE
    assert got[1].tolist() == (labels + 1).tolist()


@pytest.mark.parametrize("kernel", ["loop", None])
@pytest.mark.parametrize(
    "wrong", [lambda: each(torch.zeros(N - 1)), lambda: each(torch.zeros(3), of=torch.tensor([0]))]
)
def test_a_wrong_number_of_rows_is_refused(kernel, wrong):
    with pytest.raises(ValueError, match=r"each\(.*clients asked"):
        room("linear", kernel).clients.map(start_from, wrong(), 0.0, how=HOWS["full batch"], extra=0.0)


@pytest.mark.parametrize("kernel", ["loop", None])
@pytest.mark.parametrize("label", [-1, 2])
def test_a_row_that_is_not_there_is_refused(kernel, label):
    labels = torch.tensor([0, 1, 0, 1, label, 0])
    with pytest.raises((ValueError, IndexError)):
        room("linear", kernel).clients.map(
            start_from,
            each({"model": models_of("linear"), "number": torch.zeros(2)}, of=labels),
            0.0,
            how=Descent(),
            extra=0.0,
        )


# ---- client functions as people write them


@on_client
def own_vmap(client: Client, models, *, how: Descent):
    """vmap over models inside a client function, beside the same without it."""
    loop = [take(models, j) for j in range(count(models))]
    return (
        (vmap(lambda model: loss(client, model))(models), torch.stack([loss(client, m) for m in loop])),
        (vmap(lambda model: gradient(client, model))(models), stack([gradient(client, m) for m in loop])),
        (vmap(lambda model: descend(client, model, how))(models), stack([descend(client, m, how) for m in loop])),
        (
            vmap(lambda model: losses(client, {n: torch.stack([p, 2 * p]) for n, p in model.items()}))(models),
            torch.stack([losses(client, {n: torch.stack([p, 2 * p]) for n, p in m.items()}) for m in loop]),
        ),
        (
            vmap(lambda scale: loss(client, take(models, 0), on=client.train._replace(x=client.train.x * scale)))(
                torch.tensor([1.0, 2.0]).double()
            ),
            torch.stack(
                [loss(client, take(models, 0), on=client.train._replace(x=client.train.x * scale)) for scale in (1, 2)]
            ),
        ),
    )


@on_client
def two_vmaps(client: Client, models):
    grid = vmap(lambda a: vmap(lambda b: loss(client, {n: p * a + b for n, p in take(models, 0).items()}))(SHIFTS))(
        SCALES
    )
    rows = [[loss(client, {n: p * a + b for n, p in take(models, 0).items()}) for b in SHIFTS] for a in SCALES]
    return grid, torch.stack([torch.stack(row) for row in rows])


SCALES, SHIFTS = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.0, 0.5]).double()


@pytest.mark.parametrize(
    ("learner", "kernel"),
    [*(("linear", kernel) for kernel in ["loop", *KERNELS]), ("mlp", None), ("layer used twice", "foreach")],
)
def test_a_users_own_vmap_over_models_folds_into_the_clients(learner, kernel):
    fed, models = room(learner, kernel), models_of(learner, 3)
    want = ask(room(learner, "loop"), own_vmap, models, how=HOWS["epochs"])
    got = ask(fed, own_vmap, models, how=HOWS["epochs"])
    for mapped, looped in got:
        assert farthest(mapped, looped) < CLOSE
    assert farthest(got, want) < CLOSE
    grid, rows = ask(fed, two_vmaps, models)
    assert farthest(grid, rows) < CLOSE


@on_client
def branch(client: Client, models):
    fit = losses(client, models)
    if fit[0] < fit[1]:
        return fit[0]
    return fit[1]


@on_client
def take_item(client: Client, models):
    return losses(client, models) * client.train.weight.sum().item()


@on_client
def only_some_rows(client: Client, models):
    return client.train.x[client.train.weight > 0].sum(0)


@on_client
def not_under_vmap_in_sum(client: Client, models):
    label = int(losses(client, models).argmin())
    return Share(
        descend(client, take(models, label), HOWS["epochs"]), one_hot(torch.tensor(label), 2), torch.tensor(label)
    )


@pytest.mark.parametrize(
    ("fn", "verb"),
    [(branch, "map"), (take_item, "map"), (only_some_rows, "map"), (not_under_vmap_in_sum, "sum")],
    ids=["branch", "item", "mask", "int in a sum"],
)
def test_what_vmap_cannot_take_goes_client_by_client_and_says_so_once(fn, verb, caplog):
    learner, models = LEARNERS["linear"], models_of("linear")
    fed = Federation(VectorisedEngine(learner.objective(), learner.data(), DOUBLE))
    want = ask(room("linear", "loop"), fn, models, verb=verb)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert farthest(ask(fed, fn, models, verb=verb), want) < CLOSE
    said = [record.getMessage() for record in caplog.records if fn.name in record.getMessage()]
    assert len(said) == 1
    assert "client by client" in said[0]


@on_client
def look_at_test(client: Client, models):
    return losses(client, models, on=client.test).sum() + client.test.x.sum()


def test_looking_at_test_examples_is_no_reason_to_go_client_by_client(caplog):
    learner = LEARNERS["linear"]
    fed = Federation(VectorisedEngine(learner.objective(), learner.data(), DOUBLE))
    with caplog.at_level(logging.WARNING):
        got = ask(fed, look_at_test, models_of("linear"))
    assert farthest(got, ask(room("linear", "loop"), look_at_test, models_of("linear"))) < CLOSE
    assert caplog.records == []


@on_client
def plain_values(client: Client):
    """A number of Python, nothing, an empty tuple, a truth value."""
    return {"one": 1, "half": 0.5, "none": None, "empty": (), "yes": client.train.weight.sum() > 4}


@pytest.mark.parametrize("kernel", ["loop", None])
def test_plain_values_come_back_as_rows(kernel):
    value = ask(room("linear", kernel), plain_values)
    assert value["one"].tolist() == [1] * N
    assert value["half"].tolist() == [0.5] * N
    assert (value["none"], value["empty"]) == (None, ())
    assert value["yes"].tolist() == [m > 4 for m in SIZES]


@on_client
def draws(client: Client):
    return {
        "bits": uniform(client.key("a"), (3,)),
        "other": uniform(client.key("b"), (3,)),
        "normal": normal(client.key("c"), (2,), torch.float64),
    }


def test_random_numbers_are_bit_equal_on_every_engine_and_each_clients_own():
    loop, many = (ask(room("linear", kernel), draws) for kernel in ("loop", None))
    assert farthest(loop, many) == 0
    numbers = torch.cat([loop["bits"], loop["other"]], 1).flatten()
    assert len(numbers.unique()) == len(numbers)
    fed = room("linear", "loop")
    fed.set_clock(seed=3, clock=7)
    first, second = (fed.clients.map(draws).value for _ in range(2))
    assert farthest(first, loop) == 0
    assert farthest(first["bits"], second["bits"]) > 0  # another call, another key
    fed.set_clock(seed=3, clock=8)
    assert farthest(fed.clients.map(draws).value["bits"], first["bits"]) > 0
    fed.set_clock(seed=4, clock=7)
    assert farthest(fed.clients.map(draws).value["bits"], first["bits"]) > 0


# ---- precision


@pytest.mark.parametrize(
    ("learner", "kernel"),
    [
        *(("mlp", kernel) for kernel in ["loop", *KERNELS]),
        *((learner, kernel) for learner in ("linear", "cnn", "lstm") for kernel in ("loop", None)),
    ],
)
@pytest.mark.parametrize("where", [Placement(mixed=True), Placement(tf32=True)], ids=["bfloat16", "tf32"])
def test_coarse_arithmetic_runs_and_stays_near(learner, kernel, where):
    data = LEARNERS[learner].data()
    objective = LEARNERS[learner].objective().to("cpu", torch.float32)
    make = LoopEngine if kernel == "loop" else functools.partial(VectorisedEngine, kernel=kernel)
    fed = Federation(make(objective, data, where))
    models = {name: p.float() for name, p in models_of(learner).items()}
    for how in ("full batch", "momentum"):
        got = ask(fed, train, models, how=HOWS[how])
        assert {p.dtype for p in got["common"].values()} == {torch.float32}
        assert farthest(got["common"], right(learner, how)["common"]) < (0.05 if where.mixed else 1e-3)
    assert getattr(fed.__dict__["_engine"], "_serial", set()) == set()  # nothing was given up on
    assert torch.backends.cuda.matmul.allow_tf32 is False  # nothing is left switched
