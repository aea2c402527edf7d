"""Kernels report their progress before every step."""

import pytest
import torch

from corymb.core.client import Client, on_client
from corymb.core.federation import Federation
from corymb.engines import VectorisedEngine
from corymb.engines.vectorised.kernels.watch import Watch
from corymb.keys import root
from corymb.local import Descent, descend, losses_of
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.trees import stack
from tests.tiny import DOUBLE, classification

OBJECTIVE = Classification(Network(mlp(4, [3], 3), dtype=torch.float64), 3)
MODEL = OBJECTIVE.init(root(0))


@on_client
def train(client: Client, model, *, how):
    return descend(client, model, how)


def told(kernel, fn, *args, **options):
    """The progress reported during a call to two clients, with six and eight examples."""
    engine, parts = VectorisedEngine(OBJECTIVE, classification([6, 8]), DOUBLE, kernel=kernel), []
    engine.kernels.watch.report = parts.append
    Federation(engine).clients.map(fn, *args, **options)
    return parts


@pytest.mark.parametrize("how", [Descent(steps=4), Descent(steps=4, momentum=0.5)], ids=["plain", "momentum"])
@pytest.mark.parametrize("kernel", ["fused", "foreach"])
def test_every_step_of_a_stack_is_reported(kernel, how):
    assert told(kernel, train, MODEL, how=how)[-5:] == [0, 0.25, 0.5, 0.75, 1]


@pytest.mark.parametrize(
    "how",
    [Descent(steps=2), Descent(steps=2, momentum=0.5), Descent(steps=2, safe=True)],
    ids=["plain", "slow", "safe"],
)
def test_every_step_of_every_client_is_reported(how):
    parts = told("serial", train, MODEL, how=how)
    assert sorted(set(parts)) == [0, 0.25, 0.5, 0.75, 1]
    assert parts[1:] == sorted(parts[1:])


def test_progress_of_epochs_is_counted_in_steps():
    parts = told("serial", train, MODEL, how=Descent(epochs=1, batch=3))  # two steps, and three
    assert sorted(set(parts)) == [0, 0.2, 0.4, 0.6, 0.8, 1]


@pytest.mark.parametrize("kernel", ["serial", "foreach"])
def test_measures_report_zero_progress(kernel):
    parts = told(kernel, losses_of, stack([MODEL] * 2))
    assert parts
    assert set(parts) == {0}


@pytest.mark.parametrize(
    ("how", "work"),
    [
        (None, [10, 20, 40]),
        (Descent(steps=3), [10, 20, 40]),
        (Descent(steps=3, batch=16), [10, 16, 16]),
        (Descent(epochs=3, batch=16), [10, 20, 40]),
    ],
)
def test_work_grows_with_the_examples_that_pass(how, work):
    watch = Watch()
    if how is not None:
        watch.descent(how)
    assert watch.work(torch.tensor([10, 20, 40])).tolist() == work
