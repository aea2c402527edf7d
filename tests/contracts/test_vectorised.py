"""The inside of the vectorised engine: which kernel, how many clients at once, and what vmap cannot take.

These are no laws of engines: they look at one engine's kernels, chunks and messages.
"""

import logging

import pytest
import torch

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.engines import VectorisedEngine
from corymb.engines.vectorised.engine import Need
from corymb.local import Descent, descend, losses, one_hot
from corymb.testing.assertions import CLOSE, farthest
from corymb.testing.engines import DOUBLE, engine_of
from corymb.testing.laws.engines import HOWS, N, ask, measure, models_of, right, small_federation, train, with_kernel
from corymb.testing.learners import LEARNERS
from corymb.testing.small_data import SIZES
from corymb.trees import take


def vectorised(learner, kernel=None):
    return engine_of(small_federation(learner, with_kernel(kernel)))


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_kernel_asked_for_is_used_if_it_can_be(learner):
    for kernel in ("fused", "foreach", "serial"):
        kernels = vectorised(learner, kernel).kernels
        if kernel in LEARNERS[learner].kernels:
            assert kernels.only == kernel
            assert kernels.pick(Descent(steps=2)) == kernel
        else:
            assert kernels.pick(Descent(steps=2)) != kernel


def test_the_choice_of_a_kernel_is_a_pure_function_of_model_optimiser_and_device():
    def picked(learner, how=Descent(steps=1)):
        return vectorised(learner).kernels.pick(how)

    assert picked("mlp") == "fused"
    assert picked("mlp", Descent(steps=1, momentum=0.5)) == "foreach"
    assert picked("cnn") == picked("lstm") == "serial"
    for learner in ("cnn", "lstm"):
        kernels = vectorised(learner).kernels
        assert kernels.together
        assert kernels.pick(Descent(steps=1), examples=8) == kernels.pick(Descent(batch=8), examples=10**6) == "foreach"
        assert kernels.pick(Descent(steps=1), examples=10**6) == kernels.pick(None, examples=10**6) == "serial"
    assert picked("layer used twice") == "foreach"


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("learner", ["linear", "mlp", "layer used twice", "cnn"])
def test_the_size_of_a_chunk_changes_nothing(learner, share):
    """With chunks of one client, and of two or three."""
    budget = int(1 + share * N * vectorised(learner)._bytes_of(max(SIZES), Need()))
    fed = small_federation(learner, with_kernel(None, budget))
    chunk = engine_of(fed).describe()["chunk"]
    assert chunk == 1 if share == 0 else 1 < chunk < N
    assert farthest(ask(fed, measure, models_of(learner)), right(learner, None)) < CLOSE
    for how in ("epochs", "momentum"):
        assert farthest(ask(fed, train, models_of(learner), how=HOWS[how]), right(learner, how)) < CLOSE


@pytest.mark.parametrize("most", [1, 2, 4])
def test_a_chunk_that_is_too_large_for_the_machine_is_halved(most, monkeypatch, caplog):
    learner = LEARNERS["linear"]
    engine = VectorisedEngine(learner.objective(), learner.data(), DOUBLE)
    work, budget, tried = engine._under_vmap, engine.budget, []

    def cramped(call, ids, places, objective, few):
        tried.append(len(ids))
        if len(ids) > most:
            raise torch.OutOfMemoryError("no room")
        return work(call, ids, places, objective, few)

    monkeypatch.setattr(engine, "_under_vmap", cramped)
    with caplog.at_level(logging.WARNING):
        got = ask(Federation(engine), train, models_of("linear"), how=HOWS["epochs"])
    assert farthest(got, right("linear", "epochs")) < CLOSE
    assert max(tried) > most
    assert engine.budget < budget
    assert "out of memory" in caplog.text


# ---- functions that fail under vmap


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
def test_functions_that_fail_under_vmap_run_client_by_client_and_warn_once(fn, verb, caplog):
    learner, models = LEARNERS["linear"], models_of("linear")
    fed = Federation(VectorisedEngine(learner.objective(), learner.data(), DOUBLE))
    want = ask(small_federation("linear", "loop"), fn, models, verb=verb)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert farthest(ask(fed, fn, models, verb=verb), want) < CLOSE
    said = [record.getMessage() for record in caplog.records if fn.name in record.getMessage()]
    assert len(said) == 1
    assert "client by client" in said[0]


@on_client
def recurrent_losses(client: Client, models):
    return client.objective.losses(take(models, 0), client.train).sum()


def test_a_recurrent_model_runs_client_by_client_without_a_warning(caplog):
    learner, models = LEARNERS["lstm"], models_of("lstm")
    fed = Federation(VectorisedEngine(learner.objective(), learner.data(), DOUBLE))
    with caplog.at_level(logging.INFO):
        ask(fed, recurrent_losses, models)
    assert [record.levelname for record in caplog.records if "client by client" in record.getMessage()] == ["INFO"]


@on_client
def look_at_test(client: Client, models):
    return losses(client, models, on=client.test).sum() + client.test.x.sum()


def test_functions_that_read_test_examples_still_run_under_vmap(caplog):
    learner = LEARNERS["linear"]
    fed = Federation(VectorisedEngine(learner.objective(), learner.data(), DOUBLE))
    with caplog.at_level(logging.WARNING):
        got = ask(fed, look_at_test, models_of("linear"))
    assert farthest(got, ask(small_federation("linear", "loop"), look_at_test, models_of("linear"))) < CLOSE
    assert caplog.records == []
