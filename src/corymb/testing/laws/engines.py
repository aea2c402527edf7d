"""Laws of an engine's arithmetic: results agree with the loop, whichever clients are asked and whatever is learned."""

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
    """Everything that can be measured about models."""
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
    """Descent from a common model and from the client's own choice, and a draw that must be the client's own."""
    choice = losses(client, models).argmin()
    return {
        "common": descend(client, take(models, 0), how),
        "own": descend(client, take(models, choice), how, purpose="own"),
        "choice": choice,
        "draw": uniform(client.key("draw"), (2,), torch.float64),
    }


@functools.cache
def with_kernel(kernel: KernelName | None, memory: int | None = None) -> MakeEngine:
    """A factory of vectorised engines that use this kernel if possible."""
    return functools.partial(VectorisedEngine, kernel=kernel, memory=memory)


@functools.cache
def small_federation(learner: str, engine: AnyEngine) -> Federation:
    """A federation of six clients with one of `LEARNERS`, cached for all laws."""
    return federation(engine, LEARNERS[learner].objective(), LEARNERS[learner].data())


@functools.cache
def models_of(learner: str, k: int = 2) -> Params:
    """k models, the same for every engine."""
    return stack([small_federation(learner, "loop").objective.init(fold(root(5), j)) for j in range(k)])


def ask(
    fed: Federation, fn: ClientFn[..., Any], *args: Any, ids: list[int] | None = None, verb: str = "map", **options: Any
) -> Any:
    """Make a call with the same key every time, and check that every client's reply was accepted."""
    fed.set_clock(seed=3, clock=7)
    cohort = fed.clients if ids is None else fed.clients[ids]
    replies = getattr(cohort, verb)(fn, *args, **options)
    assert replies.rejected == []
    assert replies.clients.ids.tolist() == cohort.ids.tolist()
    return replies.value


@functools.cache
def right(learner: str, how: str | None) -> Any:
    """The loop's result of `measure`, or of `train` with one of `HOWS`."""
    loop = small_federation(learner, "loop")
    if how is None:
        return ask(loop, measure, models_of(learner))
    return ask(loop, train, models_of(learner), how=HOWS[how])


def check_measures(learner: str, engine: AnyEngine) -> None:
    """Losses, scores and gradients agree with the loop's."""
    assert farthest(ask(small_federation(learner, engine), measure, models_of(learner)), right(learner, None)) < CLOSE


def check_descends(learner: str, engine: AnyEngine, how: str) -> None:
    """A descent ends where the loop's does, and changes the model."""
    got = ask(small_federation(learner, engine), train, models_of(learner), how=HOWS[how])
    assert farthest(got, right(learner, how)) < CLOSE, how
    assert farthest(right(learner, how)["common"], stack([take(models_of(learner), 0)] * N)) > 1e-4


def check_order_and_company(learner: str, engine: AnyEngine) -> None:
    """A client's numbers do not depend on which other clients are asked, nor on their order."""
    fed, models = small_federation(learner, engine), models_of(learner)
    for ids in ([5, 4, 3, 2, 1, 0], [3, 0, 5], [1], [5, 4]):
        got = ask(fed, train, models, ids=ids, how=HOWS["epochs"])
        assert farthest(got, take(right(learner, "epochs"), torch.tensor(ids))) < CLOSE


def check_further_client(engine: AnyEngine) -> None:
    """An additional client, first in order and with the most examples, does not change other clients' numbers."""
    learner = LEARNERS["mlp"]
    stranger = learner.data((30,), seed=8)._replace(names=["a stranger"])
    fed = federation(engine, learner.objective(), join(stranger, learner.data()))
    got = ask(fed, train, models_of("mlp"), how=HOWS["epochs"])
    assert farthest(take(got, slice(1, None)), right("mlp", "epochs")) < CLOSE


@on_client
def use_some(client: Client, models: Params) -> dict[str, Tree]:
    """Results on every second example, on examples with different weights, and on none."""
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
    """Examples may have different weights, or weight 0."""
    models = models_of(learner)
    want = ask(small_federation(learner, "loop"), use_some, models)
    assert farthest(ask(small_federation(learner, engine), use_some, models), want) < CLOSE
    assert farthest(want["none"], stack([take(models, 0)] * N)) == 0


def check_no_examples(engine: AnyEngine) -> None:
    """A client may have no examples at all: its descent returns the start."""
    data = LEARNERS["mlp"].data()
    no_examples = data.train._replace(offsets=torch.tensor([0, 0, *data.train.offsets[2:].tolist()]))
    untested = data.test._replace(offsets=torch.tensor([0, 0, 0, *data.test.offsets[3:].tolist()]))
    data = data._replace(train=no_examples, test=untested)
    objective, models = LEARNERS["mlp"].objective(), models_of("mlp")
    loop, other = (federation(name, objective, data) for name in ("loop", engine))
    assert farthest(ask(other, measure, models), ask(loop, measure, models)) < CLOSE
    for how in ("full batch", "epochs", "momentum"):
        got, want = (ask(fed, train, models, how=HOWS[how]) for fed in (other, loop))
        assert farthest(got, want) < CLOSE
        assert farthest(take(want["common"], 0), take(models, 0)) == 0


def check_coarse_arithmetic(learner: str, engine: AnyEngine, placement: Placement) -> None:
    """Low-precision arithmetic gives float32 results near the exact ones, and restores all settings."""
    objective = LEARNERS[learner].objective().to("cpu", torch.float32)
    fed = federation(engine, objective, LEARNERS[learner].data(), placement)
    models: dict[str, Tensor] = {name: p.float() for name, p in models_of(learner).items()}
    for how in ("full batch", "momentum"):
        got = ask(fed, train, models, how=HOWS[how])
        assert {p.dtype for p in got["common"].values()} == {torch.float32}
        assert farthest(got["common"], right(learner, how)["common"]) < (0.05 if placement.mixed else 1e-3)
    assert getattr(engine_of(fed), "_serial", set()) == set()  # no fallback to running clients one by one
    assert torch.backends.cuda.matmul.allow_tf32 is False
