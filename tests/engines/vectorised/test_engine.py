"""Chunks are as large as memory allows: replies and models worked on at once count, not only one descent a client."""

import torch
from torch.func import vmap

from corymb.core.client import Client, on_client
from corymb.core.federation import Federation
from corymb.engines import VectorisedEngine
from corymb.engines.vectorised.engine import Need
from corymb.local import Descent, descend
from corymb.objectives import LinearRegression
from corymb.trees import stack
from tests.tiny import DOUBLE, regression

MANY = 40
OBJECTIVE = LinearRegression(3, dtype=torch.float64)


@on_client
def send_much(client: Client, model):
    return torch.ones(20_000, dtype=torch.float64) * client.train.weight.sum()


@on_client
def keep_much(client: Client, model):
    client.memory.set("much", torch.ones(20_000, dtype=torch.float64) * client.train.weight.sum())
    return client.train.weight.sum()


@on_client
def train_every_model(client: Client, models):
    return vmap(lambda model: descend(client, model, Descent(lr=0.01, steps=1)))(models)


@on_client
def train_one(client: Client, models):
    return descend(client, {"weight": models["weight"][0]}, Descent(lr=0.01, steps=1))


def largest_chunk(fn, models, memory: int) -> int:
    """How many clients were at work at the same time."""
    engine = VectorisedEngine(OBJECTIVE, regression([5] * MANY), DOUBLE, memory=memory)
    work, seen = engine._under_vmap, []

    def counted(call, ids, places):
        seen.append(len(ids))
        return work(call, ids, places)

    engine._under_vmap = counted
    Federation(engine).clients.map(fn, models)
    return max(seen)


MODEL = OBJECTIVE.init(torch.tensor(0))
MODELS = stack([MODEL] * 16)


def test_large_replies_make_small_chunks():
    assert largest_chunk(send_much, MODEL, 2**20) <= 3  # 160 kB and a copy each
    assert largest_chunk(send_much, MODEL, 2**30) == MANY


def test_what_clients_keep_counts_too():
    assert largest_chunk(keep_much, MODEL, 2**20) <= 3


def test_a_function_that_trains_k_models_takes_k_times_the_memory():
    engine = VectorisedEngine(OBJECTIVE, regression([5] * MANY), DOUBLE)
    budget = 12 * engine._bytes_of(5, Need())
    assert largest_chunk(train_one, MODELS, budget) > 8
    assert largest_chunk(train_every_model, MODELS, budget) == 1


def test_a_small_job_is_not_measured_first():
    calls = []
    engine = VectorisedEngine(OBJECTIVE, regression([5] * 3), DOUBLE)
    work = engine._under_vmap
    engine._under_vmap = lambda call, ids, places: (calls.append(len(ids)), work(call, ids, places))[1]
    Federation(engine).clients.map(train_one, MODELS)
    assert calls == [3]
