"""Common mistakes in client functions, and their error messages."""

import pytest
import torch

from corymb.core.client import on_client
from corymb.core.federation import Federation
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.objectives import LinearRegression
from tests.tiny import DOUBLE, regression

ENGINES = pytest.mark.parametrize("engine", [LoopEngine, VectorisedEngine])


@on_client
def say(client):
    return {"rows": client.train.weight.sum(), "said": "done"}


def not_marked(client):
    return client.train.weight.sum()


def clients(engine):
    return Federation(engine(LinearRegression(3, dtype=torch.float64), regression([5, 4]), DOUBLE)).clients


@ENGINES
def test_a_reply_of_text_is_refused(engine):
    with pytest.raises(
        TypeError, match=r"test_host:say returned a value that cannot be sent: 'done' cannot be a tensor: wanted"
    ):
        clients(engine).map(say)


@ENGINES
@pytest.mark.parametrize("fn", [not_marked, lambda client: client.train.weight.sum()])
def test_a_plain_function_is_refused_as_a_client_function(engine, fn):
    with pytest.raises(
        TypeError, match=r"is not a client function: define it at module level, decorated with @on_client"
    ):
        clients(engine).map(fn)
