"""A client function whose answer depends on padding or chance, or that fails under vmap, runs client by client."""

import itertools
import logging

import numpy as np
import pytest
import torch

from corymb.core.client import Share, on_client
from corymb.core.federation import Federation
from corymb.engines import LoopEngine, Placement, VectorisedEngine
from corymb.local import Descent, descend, loss
from corymb.objectives import LinearRegression
from tests.tiny import DOUBLE, farthest, regression

OBJECTIVE = LinearRegression(3, dtype=torch.float64)
MODEL = {"weight": torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)}
SIZES, ALIKE = [5, 9, 7, 8], [6, 6, 6]
COUNTER = itertools.count()


@on_client
def count_rows(client, model):
    return torch.tensor(len(client.train.y))


@on_client
def average_rows(client, model):
    return client.objective.losses(model, client.train).mean()


@on_client
def weigh_by_rows(client, model):
    return Share(descend(client, model, Descent(lr=0.1)), weight=torch.full((1,), float(client.train.x.shape[0])))


@on_client
def keep_by_rows(client, model):
    client.memory.set("rows", torch.tensor(float(len(client.train.y))))
    return loss(client, model)


@on_client
def count_calls(client, model):
    return loss(client, model) + next(COUNTER)


@on_client
def as_it_should_be(client, model):
    weight = client.train.weight
    client.memory.set("fits", client.objective.losses(model, client.train), along="train")
    return (client.objective.losses(model, client.train) * weight).sum() / weight.sum()


def ask(engine, fn, sizes=SIZES):
    clients = Federation(engine(OBJECTIVE, regression(sizes), DOUBLE)).clients
    return (clients.sum if fn is weigh_by_rows else clients.map)(fn, MODEL).value


@pytest.mark.parametrize("fn", [count_rows, average_rows, weigh_by_rows, keep_by_rows])
def test_functions_that_count_padding_give_the_loops_answer_and_a_warning(fn, caplog):
    with caplog.at_level(logging.WARNING):
        assert farthest(ask(VectorisedEngine, fn), ask(LoopEngine, fn)) < 1e-12
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"{fn.name} runs client by client: the number of padded rows changes its answer.")
    assert "client.train.weight.sum()" in line


def test_without_padding_there_is_no_warning(caplog):
    ask(VectorisedEngine, average_rows, ALIKE)
    assert caplog.records == []


def test_padding_in_a_later_call_is_checked_then(caplog):
    fed = Federation(VectorisedEngine(OBJECTIVE, regression([6, 6, 6, 9]), DOUBLE))
    fed.clients[[0, 1, 2]].map(average_rows, MODEL)
    assert caplog.records == []
    fed.clients.map(average_rows, MODEL)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("sizes", [SIZES, ALIKE])
def test_functions_with_different_answers_on_each_call_give_a_warning(sizes, caplog):
    ask(VectorisedEngine, count_calls, sizes)
    (line,) = (record.getMessage() for record in caplog.records)
    assert "it gives a different answer when called again. Draw random numbers from client.key(...)" in line


def test_functions_that_use_weights_run_for_all_clients_at_once(caplog):
    fed = Federation(VectorisedEngine(OBJECTIVE, regression(SIZES), DOUBLE))
    for _ in range(2):
        fed.clients.map(as_it_should_be, MODEL)
    assert fed._engine._serial == set()
    assert caplog.records == []


@on_client
def round_by_rows(client, model):
    """Right, but in low precision it rounds by another amount for every number of rows."""
    found = loss(client, model)
    low = torch.is_autocast_enabled(client.train.weight.device.type)
    return found * (1 + 0.01 * len(client.train.y)) if low else found


@pytest.mark.parametrize(("fn", "warnings"), [(round_by_rows, 0), (average_rows, 1)])
def test_rounding_of_low_precision_is_not_taken_for_a_dependence_on_padding(fn, warnings, caplog):
    data = regression(SIZES)
    engine = VectorisedEngine(LinearRegression(3), data, Placement(mixed=True))
    found = Federation(engine).clients.map(fn, {"weight": MODEL["weight"].float()})
    assert found.rejected == []
    assert len(caplog.records) == warnings
    assert (fn.name in engine._serial) == bool(warnings)


# ---- functions that fail under vmap


@on_client
def branch(client, model):
    return loss(client, model) if loss(client, model) > 0 else torch.zeros(())


@on_client
def print_a_value(client, model):
    found = loss(client, model)
    f"{found.item():.2f}"
    return found


@on_client
def use_numpy(client, model):
    return loss(client, model) + float(np.sum(client.train.weight.numpy()))


@on_client
def draw(client, model):
    return loss(client, model) + 0 * torch.rand(())


@on_client
def go_backward(client, model):
    weight = model["weight"].clone().requires_grad_()
    client.objective.losses({"weight": weight}, client.train).sum().backward()
    return weight.grad


WORDS = {
    branch: "it branches on a tensor's value. Use torch.where",
    print_a_value: "it reads a tensor's value",
    use_numpy: "it uses tensors outside torch, as in numpy",
    draw: "it draws from torch's generator: runs are irreproducible. Draw from client.key(...)",
    go_backward: "it calls backward. Use corymb.local.gradient",
}


@pytest.mark.parametrize("fn", WORDS, ids=lambda fn: fn.__name__)
def test_functions_that_fail_under_vmap_run_client_by_client_with_a_reason(fn, caplog):
    assert farthest(ask(VectorisedEngine, fn), ask(LoopEngine, fn)) < 1e-12
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"{fn.name} runs client by client: {WORDS[fn]}")
