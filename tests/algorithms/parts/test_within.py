"""An algorithm inside given clusters, one of which stops answering."""

import logging
from dataclasses import replace

import pytest
import torch

from corymb.algorithms import IFCA, FedAvg, Oracle
from corymb.algorithms.parts.within import within
from corymb.core.driver import drive
from corymb.core.federation import Federation, TooFewReplies
from corymb.core.snapshot import Snapshot
from corymb.engines import VectorisedEngine
from corymb.faults import Fault, inject
from corymb.objectives import LinearRegression
from corymb.testing.cases import LINE
from corymb.trees import take
from tests import tiny

GROUPS = torch.tensor([0, 0, 0, 0, 0, 1, 1])
SILENT = [Fault("dropout", clients=("client-5", "client-6"))]
EVERYBODY = [Fault("dropout", share=1.0)]


def run(faults, inner):
    engine = VectorisedEngine(
        LinearRegression(3, dtype=torch.float64), tiny.regression((16, 19, 22, 17, 16, 18, 20)), tiny.DOUBLE
    )
    fed = Federation(inject(engine, faults))
    fed.set_clock(seed=0, clock=0)
    start = replace(Snapshot.fresh(fed, 2), labels=GROUPS)
    return start, list(within(fed, GROUPS, inner, start))


def test_a_cluster_of_which_nobody_answers_keeps_its_model(caplog):
    with caplog.at_level(logging.WARNING):
        start, found = run(SILENT, FedAvg(rounds=3, local=LINE))
    assert len(found) == 3
    assert torch.equal(take(found[-1].models, 1)["weight"], take(start.models, 1)["weight"])
    assert not torch.equal(take(found[-1].models, 0)["weight"], take(start.models, 0)["weight"])
    assert "cluster 1 keeps its model for a round: 0 of 2 clients gave a usable reply" in caplog.text


def test_a_cluster_of_which_nobody_ever_answers_has_a_model_all_the_same():
    engine = VectorisedEngine(
        LinearRegression(3, dtype=torch.float64), tiny.regression((16, 19, 22, 17, 16, 18, 20)), tiny.DOUBLE
    )
    fed = Federation(inject(engine, SILENT))
    *_, last = drive(Oracle(groups=tuple(GROUPS.tolist()), inner=FedAvg(rounds=3, local=LINE)), fed)
    assert last.round == 3
    assert last.k == 2
    assert not fed.ledger.abandoned


@pytest.mark.parametrize("kind", ["raises", "shape", "extra-key", "dtype", "text"])
def test_all_members_of_a_cluster_may_be_bad(kind):
    """No other clients are asked there, so neither their error nor their form stands for all clients."""
    bad = [Fault(kind, clients=("client-5", "client-6"))]
    start, found = run(bad, FedAvg(rounds=2, local=LINE))
    assert len(found) == 2
    assert torch.equal(take(found[-1].models, 1)["weight"], take(start.models, 1)["weight"])
    assert not torch.equal(take(found[-1].models, 0)["weight"], take(start.models, 0)["weight"])


def test_a_round_in_which_nobody_answers_is_abandoned():
    with pytest.raises(TooFewReplies, match=r"0 of 5 clients .* wanted 1 \(no answer from the others"):
        run(EVERYBODY, FedAvg(rounds=4, local=LINE))


def test_stages_cannot_be_left_out():
    with pytest.raises(TooFewReplies):
        run(SILENT, IFCA(k=None, rounds=2, restarts=2, local=LINE))
