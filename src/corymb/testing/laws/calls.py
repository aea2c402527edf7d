"""Laws of the arguments and results of calls: rows for each client, plain values, keys, vmap in client functions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from corymb.core.client import Client, on_client
from corymb.core.federation import each
from corymb.keys import fold, normal, root, uniform
from corymb.local import Descent, descend, gradient, loss, losses
from corymb.testing.assertions import CLOSE, expect_error, farthest
from corymb.testing.engines import AnyEngine, federation
from corymb.testing.laws.engines import HOWS, N, ask, models_of, small_federation
from corymb.testing.learners import LEARNERS
from corymb.testing.small_data import SIZES
from corymb.trees import Params, Tree, count, stack, take


@on_client
def start_from(
    client: Client, own: dict[str, Tree], shift: float, *, how: Descent, extra: Tensor | float
) -> tuple[Params, Tensor]:
    """Descent from the client's own model, and its own number."""
    model: Params = {n: p + shift for n, p in own["model"].items()}
    return descend(client, model, how), own["number"] + extra


def check_rows_of_each(engine: AnyEngine) -> None:
    """Each client gets its own row of `each`, in whatever order clients are asked."""
    key = fold(root(2), torch.arange(N))
    models = {name: torch.stack([p[0]] * N) for name, p in models_of("mlp").items()}
    models = {n: p + normal(fold(root(1), n), p.shape, torch.float64) for n, p in models.items()}
    own: dict[str, Tree] = {"model": models, "number": uniform(key, (), torch.float64)}
    for ids in ([0, 1, 2, 3, 4, 5], [4, 0, 2]):
        rows, extra = take(own, torch.tensor(ids)), torch.tensor(ids).double()
        want, got = (
            ask(
                small_federation("mlp", name),
                start_from,
                each(rows),
                0.1,
                ids=ids,
                how=HOWS["epochs"],
                extra=each(extra),
            )
            for name in ("loop", engine)
        )
        assert farthest(got, want) < CLOSE
        assert torch.allclose(got[1], own["number"][ids] + extra)


def check_rows_by_label(engine: AnyEngine) -> None:
    """`each(models, of=labels)` is the same as `each` with a copy for every client."""
    labels = torch.tensor([1, 0, 0, 1, 1, 0])
    fed = small_federation("mlp", engine)
    own = {"model": models_of("mlp"), "number": torch.arange(2).double()}
    got = ask(fed, start_from, each(own, of=labels), 0.0, how=HOWS["full batch"], extra=1.0)
    want = ask(fed, start_from, each(take(own, labels)), 0.0, how=HOWS["full batch"], extra=1.0)
    assert farthest(got, want) < CLOSE
    assert got[1].tolist() == (labels + 1).tolist()


def check_wrong_number_of_rows(engine: AnyEngine) -> None:
    """Too few rows are refused, and so are too few indices of rows."""
    clients = small_federation("linear", engine).clients
    for wrong in (each(torch.zeros(N - 1)), each(torch.zeros(3), of=torch.tensor([0]))):
        with expect_error(ValueError, r"each\(.*clients asked"):
            clients.map(start_from, wrong, 0.0, how=HOWS["full batch"], extra=0.0)  # type: ignore[arg-type]


def check_missing_row(engine: AnyEngine) -> None:
    """The index of a row that does not exist is refused."""
    own = {"model": models_of("linear"), "number": torch.zeros(2)}
    for label in (-1, 2):
        labels = torch.tensor([0, 1, 0, 1, label, 0])
        with expect_error((ValueError, IndexError)):
            small_federation("linear", engine).clients.map(
                start_from, each(own, of=labels), 0.0, how=Descent(), extra=0.0
            )


@on_client
def plain_values(client: Client) -> dict[str, Tree]:
    """Python numbers, None, an empty tuple and a boolean."""
    return {"one": 1, "half": 0.5, "none": None, "empty": (), "yes": client.train.weight.sum() > 4}


def check_plain_values(engine: AnyEngine) -> None:
    """Plain values are returned as rows."""
    value = ask(small_federation("linear", engine), plain_values)
    assert value["one"].tolist() == [1] * N
    assert value["half"].tolist() == [0.5] * N
    assert (value["none"], value["empty"]) == (None, ())
    assert value["yes"].tolist() == [m > 4 for m in SIZES]


@on_client
def draws(client: Client) -> dict[str, Tensor]:
    """Draws for three purposes."""
    return {
        "bits": uniform(client.key("a"), (3,)),
        "other": uniform(client.key("b"), (3,)),
        "normal": normal(client.key("c"), (2,), torch.float64),
    }


def check_draws(engine: AnyEngine) -> None:
    """Random numbers are bit-equal on every engine, and differ by client, call, clock and seed."""
    first = ask(small_federation("linear", engine), draws)
    assert farthest(ask(small_federation("linear", "loop"), draws), first) == 0
    numbers = torch.cat([first["bits"], first["other"]], 1).flatten()
    assert len(numbers.unique()) == len(numbers)
    fed = small_federation("linear", engine)
    fed.set_clock(seed=3, clock=7)
    again, second = (fed.clients.map(draws).value for _ in range(2))
    assert farthest(again, first) == 0
    assert farthest(again["bits"], second["bits"]) > 0  # another call, another key
    for seed, clock in ((3, 8), (4, 7)):
        fed.set_clock(seed=seed, clock=clock)
        assert farthest(fed.clients.map(draws).value["bits"], first["bits"]) > 0


# ---- cohorts


@on_client
def name_of(client: Client, sent: Tensor) -> tuple[Tensor, Tensor]:
    """The size of the client, and what it was sent."""
    return client.train.weight.sum(), sent


def check_order_of_names(engine: AnyEngine) -> None:
    """Clients are ordered by name, whatever their order in the data; names and sizes follow."""
    learner = LEARNERS["linear"]
    names = ["site-10", "site-9", "b", "site-2", "a", "site-09"]
    data = learner.data()._replace(names=names)
    wanted = ["a", "b", "site-2", "site-09", "site-9", "site-10"]
    sizes = dict(zip(names, SIZES, strict=True))
    for order in (range(N), [3, 5, 1, 0, 4, 2]):
        fed = federation(engine, learner.objective(), data.at(list(order)))
        assert list(fed.names) == wanted
        assert fed.sizes.tolist() == [sizes[name] for name in wanted]
        assert ask(fed, name_of, each(torch.arange(N)))[0].tolist() == fed.sizes.tolist()


def check_places_within_a_part(engine: AnyEngine) -> None:
    """`pick`, `put` and `where` translate between all clients and a cohort, also in a sub-federation."""
    fed = small_federation("linear", engine)
    within = fed.only(fed.clients[[5, 1, 4]])
    values = {"label": torch.arange(N) * 10, "rows": torch.arange(2.0 * N).reshape(N, 2)}
    cohort = within.clients
    assert within.sizes.tolist() == fed.sizes.tolist()  # arrays for all clients have n rows here, too
    assert cohort.pick(values["label"]).tolist() == [50, 10, 40]
    assert farthest(cohort.pick(values), take(values, torch.tensor([5, 1, 4]))) == 0
    assert farthest(cohort.put(values, cohort.pick(values)), values) == 0
    changed = cohort.put(values["label"], torch.tensor([7, 8, 9]))
    assert changed.tolist() == [0, 8, 20, 30, 9, 7]
    assert values["label"].tolist() == [0, 10, 20, 30, 40, 50]  # unchanged
    assert cohort.mask.tolist() == [False, True, False, False, True, True]
    large = cohort.where(fed.sizes >= 7)
    assert large.ids.tolist() == [i for i in (5, 1, 4) if SIZES[i] >= 7]
    assert large.where(torch.zeros(N, dtype=torch.bool)).ids.tolist() == []
    within.set_clock(seed=0, clock=0)
    replies = large.map(name_of, each(large.pick(values["label"])))
    assert replies.value[0].tolist() == [SIZES[i] for i in (5, 4)]
    assert replies.clients.put(values["label"] * 0, replies.value[1]).tolist() == [0, 0, 0, 0, 40, 50]


# ---- vmap in client functions


@on_client
def own_vmap(client: Client, models: Params, *, how: Descent) -> tuple[tuple[Tree, Tree], ...]:
    """Results of vmap over models inside a client function, paired with those of a loop."""
    loop = [take(models, j) for j in range(count(models))]
    two = [{n: torch.stack([p, 2 * p]) for n, p in m.items()} for m in loop]

    def scaled(scale: Tensor | int) -> Tensor:
        return loss(client, take(models, 0), on=client.train._replace(x=client.train.x * scale))

    return (
        (vmap(lambda model: loss(client, model))(models), torch.stack([loss(client, m) for m in loop])),
        (vmap(lambda model: gradient(client, model))(models), stack([gradient(client, m) for m in loop])),
        (vmap(lambda model: descend(client, model, how))(models), stack([descend(client, m, how) for m in loop])),
        (
            vmap(lambda model: losses(client, {n: torch.stack([p, 2 * p]) for n, p in model.items()}))(models),
            torch.stack([losses(client, pair) for pair in two]),
        ),
        (vmap(scaled)(torch.tensor([1.0, 2.0]).double()), torch.stack([scaled(1), scaled(2)])),
    )


SCALES, SHIFTS = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.0, 0.5]).double()


@on_client
def two_vmaps(client: Client, models: Params) -> tuple[Tensor, Tensor]:
    """The result of nested vmaps, and of nested loops."""

    def at(a: Tensor, b: Tensor) -> Tensor:
        return loss(client, {n: p * a + b for n, p in take(models, 0).items()})

    grid = vmap(lambda a: vmap(lambda b: at(a, b))(SHIFTS))(SCALES)
    return grid, torch.stack([torch.stack([at(a, b) for b in SHIFTS]) for a in SCALES])


def check_own_vmap(learner: str, engine: AnyEngine) -> None:
    """A vmap inside a client function gives the same as a loop, on every engine."""
    fed, models = small_federation(learner, engine), models_of(learner, 3)
    want = ask(small_federation(learner, "loop"), own_vmap, models, how=HOWS["epochs"])
    got = ask(fed, own_vmap, models, how=HOWS["epochs"])
    for mapped, looped in got:
        assert farthest(mapped, looped) < CLOSE
    assert farthest(got, want) < CLOSE
    grid, rows = ask(fed, two_vmaps, models)
    assert farthest(grid, rows) < CLOSE
