"""A federation of three nodes satisfies the laws: every algorithm over real Flower messages, without a network."""

import pytest

from corymb.testing.bad_clients import NAN, ODD, WORTHLESS, always_raises
from corymb.testing.laws import algorithms as laws
from corymb.testing.laws import engines, faults, memory, rounds, serving
from corymb.testing.remote import flower, remote
from corymb.testing.suite import ANY_CALL
from tests.contracts.cases import CASES

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
FEW = ["keeper", "CFL", "IFCA, soft"]
CALLS = [law for law in ANY_CALL if law is not memory.check_refresh]  # nodes hold their data: see below
WHO = (3,)
"""Not the only one at its node, nor the first there: of two that differ, a node believes the first."""


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_gives_the_same_run_and_sends_the_same_bytes(name):
    laws.check_same_run(CASES[name], flower)
    laws.check_same_bytes(CASES[name], flower)


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize(
    "law",
    [laws.check_snapshots, laws.check_evaluation, laws.check_used_engine, laws.check_order_of_clients],
    ids=lambda law: law.__name__,
)
def test_whole_runs(law, name):
    law(CASES[name], flower)


@pytest.mark.parametrize("name", FEW)
def test_continuing_from_a_snapshot_is_the_uninterrupted_run(name):
    laws.check_resume(CASES[name], flower, places=[0, 1])


@pytest.mark.parametrize("law", CALLS, ids=lambda law: law.__name__)
def test_calls_and_memory(law):
    law(remote)


@pytest.mark.parametrize("learner", ["linear", "dropout"])
def test_nodes_measure_and_descend_like_the_loop(learner):
    engines.check_measures(learner, flower)
    engines.check_descends(learner, flower, "momentum")
    serving.check_mixture("linear", remote)


SEEN = [fault for fault in ODD if fault != "slot of another form"]  # which the law takes for one of hosts of one client


@pytest.mark.parametrize("fault", [*WORTHLESS, *SEEN])
def test_a_bad_client_is_dropped_and_named(fault):
    check = faults.check_worthless_reply if fault in WORTHLESS else faults.check_odd_reply
    check(remote, WHO, fault)


@pytest.mark.parametrize(
    "law",
    [
        faults.check_bytes_of_good_replies,
        faults.check_too_few_good_replies,
        faults.check_common_error_ends_a_run,
        rounds.check_abandoned_round,
        rounds.check_min_replies,
    ],
    ids=lambda law: law.__name__,
)
def test_faults_and_rounds(law):
    law(remote)


def test_an_error_of_every_client_is_raised():
    faults.check_common_error(remote, always_raises, ArithmeticError, "map")
    faults.check_worthless_row(remote, WHO, NAN)
