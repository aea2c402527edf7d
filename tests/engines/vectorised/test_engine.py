"""Chunks are as large as memory allows: replies and the number of models at once count, not only one descent."""

from dataclasses import replace

import pytest
import torch
from torch.func import vmap

from corymb.algorithms import FedAvg
from corymb.core.client import Client, on_client
from corymb.core.driver import drive
from corymb.core.engine import TimeIsUp
from corymb.core.federation import Federation
from corymb.engines import VectorisedEngine
from corymb.engines.vectorised.engine import Need
from corymb.keys import root
from corymb.local import Descent, descend, loss
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression, Regression
from corymb.objectives.partial import completed
from corymb.trees import stack
from tests.tiny import DOUBLE, classification, farthest, regression

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


@on_client
def train(client: Client, model, *, how):
    return descend(client, model, how)


@on_client
def train_and_measure(client: Client, model, *, how):
    return descend(client, model, how), loss(client, model)


def largest_chunk(fn, models, memory: int) -> int:
    """The most clients that were run at once."""
    engine = VectorisedEngine(OBJECTIVE, regression([5] * MANY), DOUBLE, memory=memory)
    work, seen = engine._under_vmap, []

    def counted(call, ids, *rest):
        seen.append(len(ids))
        return work(call, ids, *rest)

    engine._under_vmap = counted
    Federation(engine).clients.map(fn, models)
    return max(seen)


MODEL = OBJECTIVE.init(torch.tensor(0))
MODELS = stack([MODEL] * 16)


def test_large_replies_make_small_chunks():
    assert largest_chunk(send_much, MODEL, 2**20) <= 3  # 160 kB and a copy each
    assert largest_chunk(send_much, MODEL, 2**30) == MANY


def test_memory_writes_count_towards_the_size_of_chunks():
    assert largest_chunk(keep_much, MODEL, 2**20) <= 3


def test_a_function_that_trains_k_models_takes_k_times_the_memory():
    engine = VectorisedEngine(OBJECTIVE, regression([5] * MANY), DOUBLE)
    budget = 12 * engine._bytes_of(5, Need())
    assert largest_chunk(train_one, MODELS, budget) > 8
    assert largest_chunk(train_every_model, MODELS, budget) == 1


@pytest.mark.parametrize(("batch", "chunks"), [(10, [4, 1]), (None, [1, 1, 1, 1])])  # then one is compared with its row
def test_clients_of_different_sizes_share_chunks_if_they_use_batches(batch, chunks):
    data, calls = regression([500, 1_500, 4_500, 13_500]), []
    engine = VectorisedEngine(OBJECTIVE, data, DOUBLE, memory=2**24)
    work = engine._under_vmap
    engine._under_vmap = lambda call, ids, *rest: (calls.append(len(ids)), work(call, ids, *rest))[1]
    Federation(engine).clients.map(train, MODEL, how=Descent(lr=0.01, steps=1, batch=batch))
    assert calls[1:] == chunks  # the first is one client, by which the need is seen


def test_a_chunk_on_a_cpu_is_not_mostly_padding():
    """One client a thousand times as large as the others would have them padded to its size, at every call."""
    engine, calls = VectorisedEngine(OBJECTIVE, regression([20] * 99 + [20_000]), DOUBLE), []
    work = engine._under_vmap
    engine._under_vmap = lambda call, ids, *rest: (calls.append(engine.sizes[ids].tolist()), work(call, ids, *rest))[1]
    Federation(engine).clients.map(train, MODEL, how=Descent(lr=0.01, epochs=1, batch=10))
    assert [20] * 99 in calls
    assert max(len(sizes) * max(sizes) / sum(sizes) for sizes in calls) == 1


@pytest.mark.parametrize(("batch", "chunks"), [(10, [4, 1]), (None, [1, 1, 1, 1])])
def test_on_a_gpu_clients_that_also_measure_all_examples_share_chunks(batch, chunks):
    sizes, calls = [500, 1_500, 4_500, 13_500], []
    objective = Classification(Network(mlp(4, [], 3), dtype=torch.float64), 3)
    how, model = Descent(lr=0.1, steps=1, batch=batch), objective.init(root(0))
    whole = Federation(VectorisedEngine(objective, classification(sizes), DOUBLE)).clients.map(
        train_and_measure, model, how=how
    )
    engine = VectorisedEngine(objective, classification(sizes), DOUBLE, memory=2**30)
    engine.kernels = replace(engine.kernels, device="cuda")
    work = engine._under_vmap
    engine._under_vmap = lambda call, ids, *rest: (calls.append(len(ids)), work(call, ids, *rest))[1]
    replies = Federation(engine).clients.map(train_and_measure, model, how=how)
    assert calls[1:] == chunks
    assert farthest(replies.value, whole.value) < 1e-12


def test_a_small_job_is_not_measured_first():
    calls = []
    engine = VectorisedEngine(OBJECTIVE, regression([5] * 3), DOUBLE)
    work = engine._under_vmap
    engine._under_vmap = lambda call, ids, *rest: (calls.append(len(ids)), work(call, ids, *rest))[1]
    Federation(engine).clients.map(train_one, MODELS)
    assert calls == [3, 1]  # the second is one client, whose answer is compared with its row


def test_need_is_measured_on_some_examples_of_a_client(monkeypatch):
    monkeypatch.setattr("corymb.engines.vectorised.engine.MAX_TRIAL", 30)
    seen = []
    engine = noting(seen)
    for batch, examples in ((None, None), (10, 10), (40, 40)):
        seen.clear()
        Federation(engine).clients.map(train, MODEL, how=Descent(lr=0.01, steps=3, batch=batch))
        assert seen[0] == (1 if batch else 30)
        assert seen[1] == (batch or 500)  # one step of the trial is enough
        assert list(engine._needs.values())[-1].examples == examples
        engine._needs.clear()
    seen.clear()
    Federation(noting(seen)).clients[:1].map(train, MODEL, how=Descent(lr=0.01, steps=1))
    assert min(seen) == 500  # alone, it is not tried first


def noting(seen):
    """An engine with two clients, and room for few of their examples at once."""
    engine = VectorisedEngine(OBJECTIVE, regression([500, 600]), DOUBLE, memory=2**14)
    engine.objective = Noting(OBJECTIVE, seen)
    return engine


def test_need_is_measured_on_fewer_examples_if_they_take_long():
    one = completed(Classification(Network(mlp(4, [100_000], 3)), 3))
    assert VectorisedEngine(one, classification([5] * 3))._trial_examples == 64
    assert VectorisedEngine(OBJECTIVE, regression([5] * 3), DOUBLE)._trial_examples == 1024


def test_a_timeout_while_measuring_the_need_ends_the_call():
    engine = VectorisedEngine(OBJECTIVE, regression([500, 600]), DOUBLE, memory=2**14)
    begun = []
    engine.host.on_begin = begun.append

    def tell(part):
        raise TimeIsUp

    engine.kernels.watch.report = tell
    with pytest.raises(TimeIsUp):
        Federation(engine).clients.map(train, MODEL, how=Descent(lr=0.01, steps=3))
    assert begun == []


class Noting:
    """An objective that records how many examples it is given at once."""

    def __init__(self, inner, seen) -> None:
        self.inner, self.seen = inner, seen

    def losses(self, params, on):
        self.seen.append(len(on.weight))
        return self.inner.losses(params, on)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Doubling(torch.nn.Module):
    """Writes into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x.mul_(2))


@pytest.mark.parametrize(("model", "writes"), [(Doubling, True), (lambda: torch.nn.Linear(3, 1), False)])
def test_examples_are_copied_only_for_models_that_write_into_them(model, writes):
    data = regression([5] * MANY)
    before = data.train.x.clone()
    engine = VectorisedEngine(Regression(Network(model, dtype=torch.float64)), data, DOUBLE)
    calls, table = [], engine.host.examples["train"]
    stack_of = table.stack
    table.stack = lambda ids, copy: (calls.append(copy), stack_of(ids, copy=copy))[1]
    next(FedAvg(rounds=1, local=Descent(lr=1e-3, steps=1)).run(Federation(engine)))
    assert calls == [writes]
    assert torch.equal(data.train.x, before)


def test_an_objective_that_cannot_be_scored_can_be_trained():
    class OnlyLosses:
        def init(self, key):
            return {"weight": torch.zeros(3, dtype=torch.float64)}

        def losses(self, params, examples):
            return (examples.x @ params["weight"] - examples.y).square()

    engine = VectorisedEngine(completed(OnlyLosses()), regression(), DOUBLE)
    *_, end = drive(FedAvg(rounds=3, local=Descent(lr=0.05, steps=2)), Federation(engine), seed=0)
    assert end.notes["train_loss"] > 0
