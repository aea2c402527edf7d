"""Laws of an engine's arithmetic: the loop is the definition of right, whoever is asked and whatever they learn."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from corymb.choices import KernelName
from corymb.core.client import Client, ClientFn, on_client
from corymb.core.federation import Federation
from corymb.engines import Placement, VectorisedEngine
from corymb.keys import fold, root, uniform
from corymb.local import Descent, descend, gradient, loss, losses, part, scores
from corymb.testing.assertions import CLOSE, farthest
from corymb.testing.engines import AnyEngine, MakeEngine, engine_of, federation
from corymb.testing.learners import LEARNERS
from corymb.testing.small_data import SIZES, join
from corymb.trees import Params, Tree, stack, take

N = len(SIZES)
HOWS = {
    "full batch": Descent(lr=0.05, steps=2),
    "epochs": Descent(lr=0.05, epochs=2, batch=5),
    "momentum": Descent(lr=0.05, epochs=2, batch=5, momentum=0.9),
    "batches": Descent(lr=0.05, steps=3, batch=3),
    "adam": Descent(lr=0.02, epochs=2, batch=5, optimiser="adam"),
    "proximal": Descent(lr=0.05, epochs=2, batch=5, proximal=0.5, weight_decay=0.1),
    "safe": Descent(lr=100.0, steps=2, safe=True),
    "safe batches": Descent(lr=100.0, epochs=2, batch=5, momentum=0.5, safe=True),
}


@on_client
def measure(client: Client, models: Params) -> dict[str, Tree]:
    """All that can be measured of models."""
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
def train(client: Client, models: Params, *, how: Descent) -> dict[str, Tree]:
    """Descent from a model that all have, and from one's own choice; a draw that must be this client's."""
    choice = losses(client, models).argmin()
    return {
        "common": descend(client, take(models, 0), how),
        "own": descend(client, take(models, choice), how, purpose="own"),
        "choice": choice,
        "draw": uniform(client.key("draw"), (2,), torch.float64),
    }


@functools.cache
def with_kernel(kernel: KernelName | None, memory: int | None = None) -> MakeEngine:
    """A vectorised engine that uses this kernel wherever it can."""
    return functools.partial(VectorisedEngine, kernel=kernel, memory=memory)


@functools.cache
def small_federation(learner: str, engine: AnyEngine) -> Federation:
    """A federation of six clients that learn what `LEARNERS` says, made once for all laws."""
    return federation(engine, LEARNERS[learner].objective(), LEARNERS[learner].data())


@functools.cache
def models_of(learner: str, k: int = 2) -> Params:
    """k models, the same for every engine."""
    return stack([small_federation(learner, "loop").objective.init(fold(root(5), j)) for j in range(k)])


def ask(
    fed: Federation, fn: ClientFn[..., Any], *args: Any, ids: list[int] | None = None, verb: str = "map", **options: Any
) -> Any:
    """A call with the same key every time, to which everybody asked gives a good answer."""
    fed.set_clock(seed=3, clock=7)
    cohort = fed.clients if ids is None else fed.clients[ids]
    replies = getattr(cohort, verb)(fn, *args, **options)
    assert replies.rejected == []
    assert replies.clients.ids.tolist() == cohort.ids.tolist()
    return replies.value


@functools.cache
def right(learner: str, how: str | None) -> Any:
    """What the loop answers to `measure`, or to `train` with one of `HOWS`."""
    loop = small_federation(learner, "loop")
    if how is None:
        return ask(loop, measure, models_of(learner))
    return ask(loop, train, models_of(learner), how=HOWS[how])


def check_measures(learner: str, engine: AnyEngine) -> None:
    """Losses, scores and gradients are the loop's."""
    assert farthest(ask(small_federation(learner, engine), measure, models_of(learner)), right(learner, None)) < CLOSE


def check_descends(learner: str, engine: AnyEngine, how: str) -> None:
    """A descent ends where the loop's ends, and it moves."""
    got = ask(small_federation(learner, engine), train, models_of(learner), how=HOWS[how])
    assert farthest(got, right(learner, how)) < CLOSE, how
    assert farthest(right(learner, how)["common"], stack([take(models_of(learner), 0)] * N)) > 1e-4


def check_order_and_company(learner: str, engine: AnyEngine) -> None:
    """Who else is asked, and in which order, changes no client's numbers."""
    fed, models = small_federation(learner, engine), models_of(learner)
    for ids in ([5, 4, 3, 2, 1, 0], [3, 0, 5], [1], [5, 4]):
        got = ask(fed, train, models, ids=ids, how=HOWS["epochs"])
        assert farthest(got, take(right(learner, "epochs"), torch.tensor(ids))) < CLOSE


def check_further_client(engine: AnyEngine) -> None:
    """A further client, who comes first and is longer than all others, changes no other client's numbers."""
    learner = LEARNERS["mlp"]
    stranger = learner.data((30,), seed=8)._replace(names=["a stranger"])
    fed = federation(engine, learner.objective(), join(stranger, learner.data()))
    got = ask(fed, train, models_of("mlp"), how=HOWS["epochs"])
    assert farthest(take(got, slice(1, None)), right("mlp", "epochs")) < CLOSE


@on_client
def use_some(client: Client, models: Params) -> dict[str, Tree]:
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


def check_weights_of_examples(learner: str, engine: AnyEngine) -> None:
    """Examples may count differently, or not at all."""
    models = models_of(learner)
    want = ask(small_federation(learner, "loop"), use_some, models)
    assert farthest(ask(small_federation(learner, engine), use_some, models), want) < CLOSE
    assert farthest(want["none"], stack([take(models, 0)] * N)) == 0


def check_no_examples(engine: AnyEngine) -> None:
    """A client may have no examples at all: its descent ends where it began."""
    data = LEARNERS["mlp"].data()
    nobody = data.train._replace(offsets=torch.tensor([0, 0, *data.train.offsets[2:].tolist()]))
    untested = data.test._replace(offsets=torch.tensor([0, 0, 0, *data.test.offsets[3:].tolist()]))
    data = data._replace(train=nobody, test=untested)
    objective, models = LEARNERS["mlp"].objective(), models_of("mlp")
    loop, other = (federation(name, objective, data) for name in ("loop", engine))
    assert farthest(ask(other, measure, models), ask(loop, measure, models)) < CLOSE
    for how in ("full batch", "epochs", "momentum"):
        got, want = (ask(fed, train, models, how=HOWS[how]) for fed in (other, loop))
        assert farthest(got, want) < CLOSE
        assert farthest(take(want["common"], 0), take(models, 0)) == 0


def check_coarse_arithmetic(learner: str, engine: AnyEngine, placement: Placement) -> None:
    """Coarse arithmetic runs, stays near, gives float32 and leaves nothing switched."""
    objective = LEARNERS[learner].objective().to("cpu", torch.float32)
    fed = federation(engine, objective, LEARNERS[learner].data(), placement)
    models: dict[str, Tensor] = {name: p.float() for name, p in models_of(learner).items()}
    for how in ("full batch", "momentum"):
        got = ask(fed, train, models, how=HOWS[how])
        assert {p.dtype for p in got["common"].values()} == {torch.float32}
        assert farthest(got["common"], right(learner, how)["common"]) < (0.05 if placement.mixed else 1e-3)
    assert getattr(engine_of(fed), "_serial", set()) == set()  # nothing was given up on
    assert torch.backends.cuda.matmul.allow_tf32 is False
