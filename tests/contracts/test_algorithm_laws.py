"""Every algorithm of the table satisfies the laws of `corymb.testing.laws` on every engine."""

import pytest

from corymb import algorithms
from corymb.core.snapshot import ends_early
from corymb.testing.engines import ENGINES, IN_PROCESS
from corymb.testing.laws import algorithms as laws
from corymb.testing.laws import rounds, stages
from tests.contracts.cases import CASES

every_case = pytest.mark.parametrize("name", CASES)
every_engine = pytest.mark.parametrize("engine", ENGINES)


REMEMBER = [name for name in CASES if CASES[name].remembers]
FEW = ["IFCA, restarts", "keeper", "SR-FCA"]
ON_LOOP = [*FEW, "keeper of networks", "restarts of the keeper", "Alone, the best kept", "UIFCA, Gaussians"]


def cases_on(*engines, of=CASES):
    """Every case vectorised; on other engines a few, and all of them in `make soak`.

    What the loop does, the vectorised engine is compared with, and both keep what clients remember in the same way;
    over the wire `test_remote_laws` has every case.
    """
    kept = {"vectorised": CASES, "loop": ON_LOOP, "wired": FEW}
    return pytest.mark.parametrize(
        ("name", "engine"),
        [
            pytest.param(name, engine, marks=[] if name in kept[engine] else [pytest.mark.soak])
            for name in of
            for engine in engines
        ],
    )


who_remembers = cases_on(*ENGINES, of=dict.fromkeys([*FEW, *REMEMBER]))


def test_every_algorithm_is_in_the_table():
    known = {type(case.algorithm) for case in CASES.values()}
    public = {getattr(algorithms, name) for name in algorithms.__all__}
    assert {kind for kind in public if hasattr(kind, "run")} <= known


@cases_on(*ENGINES)
def test_snapshots_are_in_order(name, engine):
    laws.check_snapshots(CASES[name], engine)


@every_case
def test_the_plan_is_kept(name):
    laws.check_plan(CASES[name])


@cases_on("vectorised", "wired")
def test_every_engine_gives_the_same_run(name, engine):
    laws.check_same_run(CASES[name], engine)


@cases_on("vectorised", "wired")
def test_every_engine_sends_the_same_bytes(name, engine):
    laws.check_same_bytes(CASES[name], engine)


@cases_on(*ENGINES)
def test_the_same_seed_gives_the_same_bits_however_often_one_looks(name, engine):
    laws.check_looking_changes_nothing(CASES[name], engine)


@cases_on("vectorised", "wired")
def test_every_engine_gives_the_same_metrics(name, engine):
    laws.check_evaluation(CASES[name], engine)


@who_remembers
def test_an_engine_that_has_run_before_gives_the_same_bits(name, engine):
    laws.check_used_engine(CASES[name], engine)


@pytest.mark.parametrize("name", ["FedAvg", "IFCA, gradients", "keeper", "Alone"])
def test_another_seed_is_another_run(name):
    laws.check_other_seed(CASES[name], "loop")


@cases_on(*ENGINES)
def test_continuing_from_any_snapshot_is_the_uninterrupted_run(name, engine):
    case = CASES[name]
    passed = [at.stage for at in laws.whole(case, engine)]
    middle = max(0, len(passed) // 2 - 1)
    places = None
    if ends_early(case.algorithm):  # many rounds: a few of them, in different stages
        places = sorted({passed.index(stage) for stage in passed})[::3]
    elif engine == "loop":  # what an algorithm needs in a snapshot, the vectorised engine shows from all
        places = [0, middle]
    if engine == "wired":  # messages take long
        places = [0, middle] if case.remembers and not ends_early(case.algorithm) else [middle]
    laws.check_resume(case, engine, places=places)


@who_remembers
def test_stopping_in_the_middle_of_a_round_and_going_on_changes_nothing(name, engine):
    laws.check_stop_in_a_round(CASES[name], engine)


@pytest.mark.parametrize(
    ("name", "engine"),
    [*((name, "vectorised") for name in CASES), *((name, other) for name in FEW for other in ("loop", "wired"))],
)
def test_the_order_in_which_clients_are_given_changes_nothing(name, engine):
    laws.check_order_of_clients(CASES[name], engine)


@pytest.mark.parametrize("name", ["FedAvg", "FedSoft", "keeper", "CFL"])
def test_the_order_in_which_replies_arrive_changes_nothing(name):
    laws.check_order_of_arrival(CASES[name], "wired")


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].learns == "classes" or CASES[name].remembers])
def test_the_size_of_chunks_changes_nothing_beyond_rounding(name):
    laws.check_size_of_chunks(CASES[name])


# ---- one after another


@every_engine
@pytest.mark.parametrize("learns", ["line", "classes"])
def test_ifca_with_one_cluster_is_fedavg(engine, learns):
    stages.check_one_cluster_is_fedavg(engine, learns)


@pytest.mark.parametrize(("losses", "best"), [((1.0, 1.0, 1.0), 0), ((3.0, 2.0, 2.0), 1), ((3.0, 4.0, 2.0), 2)])
def test_of_equal_restarts_the_first_is_kept_and_named(losses, best):
    stages.check_equal_restarts("loop", losses, best)


@every_engine
@pytest.mark.parametrize(
    "law",
    [
        stages.check_restarts,
        stages.check_snapshot_of_another_run,
        stages.check_handover,
        stages.check_handover_to_restarts,
        stages.check_stages,
        rounds.check_abandoned_round,
        rounds.check_abandoned_first_round,
        rounds.check_three_abandoned_rounds,
        rounds.check_min_replies,
    ],
    ids=lambda law: law.__name__,
)
def test_stages_and_rounds(law, engine):
    law(engine)


def test_engines_are_what_the_laws_are_tested_on():
    assert set(ENGINES) == {*IN_PROCESS, "wired"} == {"loop", "vectorised", "wired"}
