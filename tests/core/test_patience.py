"""Questions that a run asks once are put again to whoever was silent."""

import logging

import pytest
import torch

from corymb.core.client import Client, on_client
from corymb.core.federation import Federation
from corymb.core.patience import AGAIN, ask_again
from corymb.engines import LoopEngine
from corymb.faults import Fault, inject
from corymb.objectives import LinearRegression
from corymb.testing.engines import DOUBLE
from corymb.testing.small_data import SIZES, regression

N = len(SIZES)


@on_client
def examples(client: Client):
    return {"n": client.train.weight.sum()}


def federation(faults, seed=0):
    return Federation(inject(LoopEngine(LinearRegression(3), regression(), DOUBLE), faults, seed))


def asked(*faults, seed=0):
    """The replies, and how many clients each question went to."""
    fed, went_to = federation(faults, seed), []
    fed.asking = went_to.append

    def ask(clients):
        return clients.map(examples)

    return ask_again(fed.clients, ask(fed.clients), ask), went_to


def test_who_answers_at_once_is_asked_once():
    replies, went_to = asked()
    assert went_to == [N]
    assert replies.value["n"].tolist() == list(SIZES)


@pytest.mark.parametrize("seed", range(4))
def test_who_answers_later_stands_in_its_place(seed, caplog):
    with caplog.at_level(logging.WARNING):
        replies, went_to = asked(Fault("dropout", share=0.5, always=False), seed=seed)
    assert went_to == sorted(went_to, reverse=True)
    assert 1 < len(went_to) <= 1 + AGAIN
    assert len(replies.clients) > N - went_to[1]  # more than at first
    assert replies.clients.ids.tolist() == sorted(replies.clients.ids.tolist())
    assert replies.value["n"].tolist() == replies.clients.sizes.tolist()
    assert f"{went_to[1]} of {N} clients did not answer and were asked again" in caplog.text


def test_who_is_gone_is_asked_twice():
    replies, went_to = asked(Fault("dropout", clients=("client-1", "client-4")))
    assert went_to == [N, 2]
    assert replies.clients.ids.tolist() == [0, 2, 3, 5]


def test_who_was_refused_is_not_asked_again():
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
