"""Without the rule that it checks, each law fails: otherwise it would prove nothing."""

import functools

import pytest
import torch

from corymb.core.client import Slot
from corymb.core.federation import Cohort, Federation, Replies
from corymb.core.intake import Intake
from corymb.engines import host as in_process
from corymb.engines.examples import ExampleTable
from corymb.engines.host import ClientHost
from corymb.engines.memory import MemoryStore
from corymb.objectives import Classification, LinearRegression
from corymb.testing import engines, wired
from corymb.testing.engines import ENGINES
from corymb.testing.laws import algorithms, calls, faults, memory, privacy, rounds, serving
from corymb.trees import map_tensors
from tests.contracts.cases import CASES

every_engine = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(autouse=True)
def _no_run_without_its_rules_is_kept(monkeypatch):
    """Runs that laws share are computed again: those of these tests must not be used by later ones."""
    monkeypatch.setattr(algorithms, "_whole_run", functools.cache(algorithms._whole_run.__wrapped__))


def broken(law, *args):
    """The law must not hold."""
    with pytest.raises(AssertionError):
        law(*args)


# ---- client memory


@pytest.mark.parametrize("name", memory.REMEMBERING)
@pytest.mark.parametrize("law", [memory.check_lost_replies, memory.check_lost_replies_after_resume])
def test_hosts_that_forget_nothing_keep_what_was_lost(monkeypatch, law, name):
    monkeypatch.setattr(ClientHost, "_forget_after", lambda self, version: None)
    broken(law, memory.REMEMBERING[name])


def test_a_server_that_goes_by_the_clock_alone_brings_lost_replies_back(monkeypatch):
    rewind = Federation.rewind
    monkeypatch.setattr(Federation, "rewind", lambda self, clock, versions=None: rewind(self, clock))
    broken(memory.check_lost_replies_after_resume, memory.REMEMBERING["keeper"])


@every_engine
def test_hosts_that_forget_nothing_answer_a_repeated_call_differently(monkeypatch, engine):
    for case in memory.REMEMBERING.values():
        algorithms.whole(case, engine)  # as it should be
    monkeypatch.setattr(ClientHost, "_forget_after", lambda self, version: None)
    broken(memory.check_repeated_calls, engine)


@every_engine
def test_an_abandoned_round_would_be_remembered(monkeypatch, engine):
    monkeypatch.setattr(ClientHost, "_forget_after", lambda self, version: None)
    broken(rounds.check_abandoned_round, engine)


@every_engine
def test_a_session_must_begin_with_empty_memory(monkeypatch, engine):
    begin = ClientHost._begin
    monkeypatch.setattr(ClientHost, "_begin", lambda self: None if hasattr(self, "memory") else begin(self))
    monkeypatch.setattr(ClientHost, "_forget_after", lambda self, version: None)
    broken(memory.check_open, engine)


@every_engine
@pytest.mark.parametrize("rule", ["cleared", "said", "replaced"])
def test_new_examples_must_be_there_and_slots_along_the_old_ones_cleared(monkeypatch, engine, rule):
    resize = MemoryStore.resize
    if rule == "cleared":
        monkeypatch.setattr(MemoryStore, "resize", lambda self, sizes, ids: resize(self, sizes, ids[:0]) or ["targets"])
    elif rule == "said":
        monkeypatch.setattr(MemoryStore, "resize", lambda self, *args: resize(self, *args) and [])
    else:
        monkeypatch.setattr(ExampleTable, "replace", lambda self, ids, rows: None)
    broken(memory.check_refresh, engine)


# ---- cohorts and replies


@pytest.mark.parametrize("rule", ["pick", "put", "where"])
def test_places_and_ids_must_not_be_mixed(monkeypatch, rule):
    places = {
        "pick": lambda self, values: map_tensors(lambda leaf: leaf[: len(self)], values),
        "put": lambda self, values, rows: map_tensors(lambda leaf: leaf.clone(), values),
        "where": lambda self, mask: self[mask[: len(self)]],
    }
    monkeypatch.setattr(Cohort, rule, places[rule])
    broken(calls.check_places_within_a_part, "loop")


@every_engine
def test_clients_must_stand_in_the_order_of_their_names(monkeypatch, engine):
    for module in (in_process, wired):
        monkeypatch.setattr(module, "in_order", lambda names: torch.arange(len(names)))
    broken(calls.check_order_of_names, engine)
    if engine != "wired":
        broken(algorithms.check_order_of_clients, CASES["keeper"], engine)


def test_rows_must_be_put_in_the_order_asked(monkeypatch):
    case = CASES["CFL"]
    algorithms.whole(case, "wired")  # as it should be
    monkeypatch.setattr(
        Federation,
        "_in_order_asked",
        lambda self, part, asked, verb, rejected: Replies(Cohort(self, asked), part.value, rejected),
    )
    broken(algorithms.check_order_of_arrival, case, "wired")


# ---- serving


def test_probabilities_are_mixed_not_logits(monkeypatch):
    monkeypatch.setattr(Classification, "mix", lambda self, said, weights: torch.tensordot(weights, said, dims=1))
    broken(serving.check_mixture, "mlp", "loop")


@every_engine
@pytest.mark.parametrize(("objective", "learner"), [(LinearRegression, "linear"), (Classification, "mlp")])
def test_predictions_are_mixed_by_weight(monkeypatch, engine, objective, learner):
    monkeypatch.setattr(objective, "mix", lambda self, said, weights: said.mean(0))
    broken(serving.check_mixture, learner, engine)


# ---- faults and privacy


@every_engine
def test_a_reply_that_is_not_checked_spoils_the_sums(monkeypatch, engine):
    from corymb.core import intake

    monkeypatch.setattr(intake, "row_faults", lambda rows, sizes, at_most: {})
    monkeypatch.setattr(intake, "sums_fault", lambda sums, sizes: None)
    broken(faults.check_worthless_reply, engine, (3,), "nan in value")


def test_a_host_must_not_keep_what_a_rejected_client_wrote(monkeypatch):
    strict = Intake.result

    def lenient(self):
        taken = strict(self)
        every = [
            (self._ids, {name: _for_all(slot, len(self._ids)) for name, slot in own.items()}) for _, own in taken.writes
        ]
        return taken._replace(writes=every)

    monkeypatch.setattr(Intake, "result", lenient)
    broken(faults.check_worthless_reply, "vectorised", (3,), "nan in value")


def _for_all(slot, n):
    return Slot(map_tensors(lambda leaf: leaf[:1].expand(n, *leaf.shape[1:]), slot.value), slot.present[:1], slot.along)


@every_engine
def test_a_spy_sees_memory_that_is_published(engine):
    case = CASES["CFL"]._replace(publishes=False)
    broken(privacy.check_nothing_else_crosses, case, engine)


def test_reordered_engines_use_different_orders():
    """The orders in which parts are made to arrive are really different ones."""
    case = CASES["FedAvg"]
    seen = set()
    for order in ("rising", "falling", "by chance"):
        spy = engines.Spy(engines.Reordered(case.engine("wired"), order))
        spy.engine.nodes = spy.engine.engine.nodes
        list(algorithms.run(case, Federation(spy)))
        seen.add(tuple(int(part.ids[0]) for part in spy.parts[0]))
    assert len(seen) == 3
