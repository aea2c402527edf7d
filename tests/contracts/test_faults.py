"""One bad client can neither end a run nor corrupt a model: the laws of `corymb.testing.laws.faults` and `door`."""

import pytest

from corymb.core.client import on_client
from corymb.testing.bad_clients import INF, NAN, ODD, ODD_ROWS, WHO, WORTHLESS, always_raises, raises_late
from corymb.testing.engines import ENGINES
from corymb.testing.laws import door
from corymb.testing.laws import faults as laws
from tests.contracts.cases import CASES

every_engine = pytest.mark.parametrize("engine", ENGINES)
whoever = pytest.mark.parametrize(
    ("engine", "who"),
    [
        pytest.param(engine, who, id=f"{engine}, {name}")
        for engine in ENGINES
        for name, who in WHO.items()
        if engine != "wired" or name in ("the first", "several")  # a host of its own has no first and no last
    ],
)
FULL = ["FedAvg", "FedProx", "IFCA", "IFCA, by examples", "IFCA, momentum", "IFCA, shared layer", "IFCA, soft"]


@whoever
@pytest.mark.parametrize("fault", WORTHLESS)
def test_a_worthless_reply_is_dropped_and_named(engine, who, fault):
    laws.check_worthless_reply(engine, who, fault)


@every_engine
@pytest.mark.parametrize("fault", WORTHLESS)
def test_a_worthless_value_for_every_sum_is_dropped_and_named(engine, fault):
    laws.check_worthless_shares(engine, fault)


@whoever
@pytest.mark.parametrize("wrong", [NAN, INF])
def test_a_worthless_row_is_dropped_and_named(engine, who, wrong):
    laws.check_worthless_row(engine, who, wrong)


@whoever
@pytest.mark.parametrize("fault", ODD)
def test_an_odd_reply_is_dropped_and_named(engine, who, fault):
    laws.check_odd_reply(engine, who, fault)


@whoever
@pytest.mark.parametrize("fault", ODD_ROWS)
def test_an_odd_row_is_dropped_and_named(engine, who, fault):
    laws.check_odd_row(engine, who, fault)


@every_engine
@pytest.mark.parametrize(
    "law",
    [
        laws.check_bytes_of_good_replies,
        laws.check_meddling,
        laws.check_too_few_good_replies,
        laws.check_nobody_is_asked_twice,
        laws.check_common_error_ends_a_run,
        laws.check_common_error_of_a_few,
    ],
    ids=lambda law: law.__name__,
)
def test_a_call(law, engine):
    law(engine)


# ---- whole runs


@every_engine
@pytest.mark.parametrize("name", FULL)
def test_a_whole_run_with_bad_clients_is_the_run_without_them(engine, name):
    laws.check_run_with_bad_clients(CASES[name], engine)


@pytest.mark.parametrize("name", [name for name in CASES if name not in FULL])
def test_no_algorithm_ends_over_a_bad_client(name):
    engine = "loop" if CASES[name].remembers else "vectorised"
    labelled = "Oracle" in name or "CFL" in name  # these begin with everybody's label
    laws.check_bad_client_ends_no_run(CASES[name], engine, labelled=labelled)


@pytest.mark.parametrize("name", ["SR-FCA", "keeper", "IFCA, restarts"])
def test_no_algorithm_ends_over_a_bad_client_on_the_wire(name):
    laws.check_bad_client_ends_no_run(CASES[name], "wired", labelled=False)


# ---- everybody's fault


@every_engine
@pytest.mark.parametrize(("fn", "kind"), [(always_raises, ArithmeticError), (raises_late, RuntimeError)])
@pytest.mark.parametrize("verb", ["map", "sum"])
def test_an_error_of_every_client_is_raised_as_it_is(engine, fn, kind, verb):
    laws.check_common_error(engine, fn, kind, verb)


def test_a_client_function_must_be_defined_at_module_level():
    def inside(client):
        return 0

    with pytest.raises(TypeError, match="module level"):
        on_client(inside)


# ---- the door, with engines that are not to be trusted


@pytest.mark.parametrize(
    ("name", "first"),
    # Who comes first is believed.
    [(name, first) for name in door.BAD_PARTS for first in (True, False) if not (first and "another part" in name)],
)
def test_a_bad_part_is_refused_at_the_door(name, first):
    door.check_bad_part(name, first=first)


@pytest.mark.parametrize(
    "law",
    [door.check_votes, door.check_rejections, door.check_order_asked, door.check_no_part],
    ids=lambda law: law.__name__,
)
def test_the_door(law):
    law()
