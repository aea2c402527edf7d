"""Calls that a run makes only once are repeated for clients that did not answer."""

import logging
from dataclasses import replace

import pytest
import torch

from corymb.core.client import Client, on_client
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.patience import MAX_RETRIES, ask_again, ask_again_near
from corymb.engines import LoopEngine
from corymb.evaluate import evaluate
from corymb.faults import Fault, inject
from corymb.objectives import LinearRegression
from corymb.testing.cases import CASES
from corymb.testing.engines import DOUBLE
from corymb.testing.small_data import SIZES, regression
from corymb.trees import leaves

N = len(SIZES)


@on_client
def examples(client: Client):
    return {"n": client.train.weight.sum()}


def federation(faults, seed=0):
    return Federation(inject(LoopEngine(LinearRegression(3), regression(), DOUBLE), faults, seed))


def asked(*faults, seed=0):
    """The replies, and the number of clients asked in each call."""
    fed, went_to = federation(faults, seed), []
    fed.asking = went_to.append

    def ask(clients):
        return clients.map(examples)

    return ask_again(fed.clients, ask(fed.clients), ask), went_to


def test_clients_that_answer_at_once_are_asked_once():
    replies, went_to = asked()
    assert went_to == [N]
    assert replies.value["n"].tolist() == list(SIZES)


@pytest.mark.parametrize("seed", range(4))
def test_late_replies_are_in_the_order_of_clients(seed, caplog):
    with caplog.at_level(logging.WARNING):
        replies, went_to = asked(Fault("dropout", share=0.5, always=False), seed=seed)
    assert went_to == sorted(went_to, reverse=True)
    assert 1 < len(went_to) <= 1 + MAX_RETRIES
    assert len(replies.clients) > N - went_to[1]  # more than at first
    assert replies.clients.ids.tolist() == sorted(replies.clients.ids.tolist())
    assert replies.value["n"].tolist() == replies.clients.sizes.tolist()
    assert f"{went_to[1]} of {N} clients did not answer and were asked again" in caplog.text


def test_clients_that_never_answer_are_asked_twice():
    replies, went_to = asked(Fault("dropout", clients=("client-1", "client-4")))
    assert went_to == [N, 2]
    assert replies.clients.ids.tolist() == [0, 2, 3, 5]


def test_rejected_clients_are_not_asked_again():
    replies, went_to = asked(Fault("nan", clients=("client-2",)))
    assert went_to == [N]
    assert [name for name, _ in replies.rejected] == ["client-2"]
    assert torch.equal(replies.clients.ids, torch.tensor([0, 1, 3, 4, 5]))


def test_a_late_client_that_fails_does_not_end_the_run():
    fed = Federation(
        inject(LoopEngine(LinearRegression(3), regression(), DOUBLE), [Fault("nan", clients=("client-3",))])
    )
    first = fed.clients[[0, 1, 2, 4, 5]].map(examples)  # the third did not hear it
    replies = ask_again(fed.clients, first, lambda clients: clients.map(examples))
    assert replies.clients.ids.tolist() == [0, 1, 2, 4, 5]


class AwayAtFirst:
    """An engine that does not reach some clients in the first call of one client function."""

    def __init__(self, engine, clients, fn):
        self._engine, self._clients, self._fn, self._first = engine, clients, fn, True

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run(self, call, ids):
        if self._first and call.fn.name.endswith(self._fn):
            self._first = False
            here = torch.tensor([place for place, i in enumerate(ids.tolist()) if i not in self._clients])
            call, ids = call.of(here), ids[here]
        yield from self._engine.run(call, ids)


def away(fault=None, clients=(3,), fn="examples"):
    """A federation whose clients are away when first asked; the fault is that of `client-3`."""
    faults = [Fault(fault, clients=("client-3",))] if fault else []
    return Federation(AwayAtFirst(inject(LoopEngine(LinearRegression(3), regression(), DOUBLE), faults), clients, fn))


@pytest.mark.parametrize("clients", [(3,), (2, 3), (3, 4)])
@pytest.mark.parametrize("fault", ["shape", "missing-key", "extra-key", "dtype", "text", "nothing", "raises"])
def test_a_late_reply_must_have_the_form_of_the_others(fault, clients):
    fed = away(fault, clients)
    replies = ask_again(fed.clients, fed.clients.map(examples), lambda late: late.map(examples))
    assert {entry["client"] for entry in fed.ledger.rejected} == {"client-3"}
    assert replies.clients.ids.tolist() == [i for i in range(N) if i != 3]


@on_client
def moved(client: Client):
    return {"weight": torch.ones(3, dtype=torch.float64) * (1 + client.train.weight.sum() / 100)}


@pytest.mark.parametrize("clients", [(3,), (2, 3)])
def test_a_late_update_is_compared_with_the_others_in_length(clients):
    start = {"weight": torch.zeros(1, 3, dtype=torch.float64)}
    fed = away("large", clients, "moved")
    replies = ask_again_near(fed.clients, start, lambda some: some.map(moved))
    assert [entry["client"] for entry in fed.ledger.rejected] == ["client-3"]
    assert replies.clients.ids.tolist() == [i for i in range(N) if i != 3]
    honest = ask_again_near((fed := away(clients=clients, fn="moved")).clients, start, lambda some: some.map(moved))
    assert len(honest.clients) == N
    assert not fed.ledger.rejected


ONCE = {
    "one-shot": "publish_minimiser",
    "one-shot, networks": "publish_trained",
    "local k-means": "publish_minimiser",
    "Alone, with penalties": "solve_locally",
    "SR-FCA": "publish_own",
    "k-FED": "find_centres",
    "IFCA, from one shot": "publish_minimiser",
}
"""By algorithm, the client function that is called only once."""


@pytest.mark.parametrize("name", ONCE)
def test_clients_that_are_silent_once_take_part_as_usual(name):
    """The run equals one in which all clients answer at once, except for the random numbers of the second call."""
    case = CASES[name]
    fed = Federation(AwayAtFirst(case.engine("loop"), (1, 4), ONCE[name]))
    asked: list[int] = []
    fed.asking = asked.append
    *_, last = drive(case.algorithm, fed, seed=3)
    *_, usual = drive(case.algorithm, Federation(case.engine("loop")), seed=3)
    assert 2 in asked  # those two were asked again
    assert not fed.ledger.rejected
    assert torch.equal(last.labels < 0, usual.labels < 0)
    for value, wanted in zip(leaves(last.models), leaves(usual.models), strict=True):
        assert value.shape == wanted.shape


def test_a_client_that_misses_its_clusters_has_none_and_is_not_rejected():
    """k-FED's second call goes only to clients that answered the first."""
    case = CASES["k-FED"]
    fed = Federation(inject(case.engine("loop"), [Fault("dropout", clients=("client-2",))]))
    *_, last = drive(case.algorithm, fed, seed=3)
    assert not fed.ledger.rejected
    assert "test_log_density" in evaluate(fed, case.algorithm, last)


def test_restarts_restore_the_memory_of_clients_that_are_silent_once():
    """A client that misses which restart was best would be served from another one's memory."""
    case = CASES["UIFCA"]
    algorithm = replace(case.algorithm, restarts=2)
    fed = Federation(AwayAtFirst(case.engine("loop"), (1, 4), "keep_best"))
    asked: list[int] = []
    fed.asking = asked.append
    list(drive(algorithm, fed, seed=3))
    assert 2 in asked
