"""One algorithm after another."""

from dataclasses import replace

import pytest
import torch

from corymb.algorithms import IFCA, Alone, FedAvg, FedX, LocalKMeans, MomentDescent, OneShot, Restarts, Then
from corymb.core.driver import drive
from corymb.core.snapshot import planned_rounds
from corymb.settings import InvalidInput
from tests.contracts.cases import CASES, LINE
from tests.tiny import farthest


def last(algorithm, seed=0):
    *_, at = drive(algorithm, CASES["IFCA"].federation("loop"), seed=seed)
    return at


@pytest.mark.parametrize("k", [2, 3])
def test_the_second_takes_its_number_of_clusters_from_the_first(k):
    algorithm = Then(first=LocalKMeans(k=k), second=IFCA(k=None, rounds=2, local=LINE, repair=False))
    got = list(drive(algorithm, CASES["IFCA"].federation("loop")))
    assert [(at.stage, at.round, at.k) for at in got] == [("first", 1, k), ("second", 1, k), ("second", 2, k)]
    assert planned_rounds(algorithm) == 3


def test_a_start_of_ifcas_own_is_the_same_as_one_algorithm_after_another():
    ifca = IFCA(k=2, rounds=2, local=LINE, repair=False)
    one = last(replace(ifca, init="one-shot"))
    other = last(Then(first=LocalKMeans(k=2), second=ifca))
    assert one.stage == "rounds"
    assert farthest(one.models, other.models) == 0


def test_restarts_of_ifcas_own_are_the_same_as_the_wrapper():
    ifca = IFCA(k=2, rounds=2, local=LINE)
    one, other = last(replace(ifca, restarts=3)), last(Restarts(inner=ifca, times=3))
    assert farthest(one.models, other.models) == 0
    assert one.notes == other.notes


@pytest.mark.parametrize("second", [IFCA(k=2, rounds=1), FedX(k=2, rounds=1)])
def test_another_number_of_models_than_k_is_refused(second):
    with pytest.raises(InvalidInput, match="The start has 1 models, but k = 2: give k=1"):
        last(Then(first=FedAvg(rounds=1, local=LINE), second=second))


def test_no_models_and_no_k_are_refused():
    with pytest.raises(InvalidInput, match="k is missing, and there are no models to start from"):
        last(IFCA(k=None, rounds=1))


def test_serving_and_memory_follow_from_both_algorithms():
    both = Then(first=Alone(rounds=1), second=IFCA(k=1, rounds=1))
    assert both.serve is IFCA.serve
    assert both.keeps_memory
    assert not Then(first=FedAvg(), second=FedAvg()).keeps_memory
    scores = [Restarts(inner=inner, times=2) for inner in (both, Then(first=FedAvg(rounds=1), second=FedAvg(rounds=1)))]
    assert all(torch.isfinite(torch.tensor(last(algorithm).notes["restart_losses"])).all() for algorithm in scores)


def test_stages_must_have_two_names():
    for names in (("a", "a"), ("a", "b/c"), ("", "b")):
        with pytest.raises(InvalidInput, match="two different names"):
            Then(first=FedAvg(), second=FedAvg(), names=names)


# ---- more rounds of what runs last make a run longer, not another one


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (CASES["moment descent"].algorithm, lambda a: replace(a, then=FedX(rounds=4))),
        (OneShot(k=2, inner=FedAvg(rounds=2, local=LINE)), lambda a: replace(a, inner=FedAvg(rounds=4, local=LINE))),
        (
            Then(first=LocalKMeans(k=2), second=IFCA(k=None, rounds=2, local=LINE)),
            lambda a: replace(a, second=IFCA(k=None, rounds=4, local=LINE)),
        ),
    ],
    ids=["then", "inner", "second"],
)
def test_a_run_can_be_made_longer(short, long):
    fed = CASES["FedX"].federation("loop")
    *_, at = drive(short, fed)
    assert [snapshot.round for snapshot in drive(long(short), fed, at)] == [3, 4]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MomentDescent(k=2, then=FedX()), MomentDescent(k=2, then=FedX(refinement="fedprox"))),
        (Then(first=FedAvg(rounds=1), second=FedAvg()), Then(first=FedAvg(rounds=2), second=FedAvg())),
        (Restarts(inner=FedAvg(rounds=1)), Restarts(inner=Alone(rounds=1))),
    ],
)
def test_but_nothing_else_may_differ(one, other):
    from corymb.core.driver import fingerprint_of

    assert fingerprint_of(one, "") != fingerprint_of(other, "")
