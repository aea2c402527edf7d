"""A client that never returns is killed and named; the others' replies and memory are unaffected."""

import sys
import time
from pathlib import Path

import torch

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.engines import LoopEngine
from corymb.engines.guarded import Guarded, serve_pipe
from corymb.engines.node import Node
from corymb.local import one_hot
from corymb.objectives import LinearRegression
from corymb.testing.engines import DOUBLE
from corymb.testing.remote import InProcess, joined
from corymb.testing.small_data import regression

COMMAND = [sys.executable, "-c", "from tests.engines.test_guarded import main; main()"]
OBJECTIVE = LinearRegression(3, dtype=torch.float64)


@on_client
def count_or_hang(client: Client, *, hang: int):
    """How often the client was asked; clients with `hang` examples never return."""
    visits = client.memory.get("visits", torch.zeros(())) + 1
    client.memory.set("visits", visits)
    while hang and len(client.train.y) == hang:
        time.sleep(0.05)
    return Share({"x": visits}, one_hot(torch.tensor(0), 1), torch.tensor(0), visits)


def main():
    engine = LoopEngine(OBJECTIVE, regression((2, 3, 4, 5)), DOUBLE)
    serve_pipe(lambda: Node(engine, "site", allow=["tests"], folder=Path(sys.argv[-1])))


def test_a_client_that_never_answers_is_named_and_no_other_memory_is_lost(tmp_path):
    guarded = Guarded([*COMMAND, str(tmp_path)], 1.0, ["corymb", "tests"])
    try:
        engine = joined(InProcess({"site": guarded.answer}), OBJECTIVE)
        engine._allow = (*engine._allow, "tests")
        fed = Federation(engine)
        assert fed.clients.sum(count_or_hang, hang=0).value.note.tolist() == [1.0] * 4
        replies = fed.clients.sum(count_or_hang, hang=4)
        assert replies.clients.names == ["client-0", "client-1", "client-3"]
        assert replies.value.note.tolist() == [2.0] * 3
        assert replies.rejected == [("client-2", "took longer than 1 s")]
        assert fed.clients.sum(count_or_hang, hang=0).value.note.tolist() == [3.0, 3.0, 2.0, 3.0]
    finally:
        guarded.close()
