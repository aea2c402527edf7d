"""Checks all laws in one call, for any algorithm or engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from corymb.algorithms.parts.then import keeps_memory
from corymb.core.snapshot import Algorithm, packages_of
from corymb.testing.bad_clients import NAN, ODD, ODD_ROWS, WORTHLESS, always_raises, raises_late
from corymb.testing.cases import CASES, Case, Learns
from corymb.testing.engines import ENGINES, AnyEngine, MakeEngine, wired
from corymb.testing.laws import algorithms, calls, engines, faults, memory, privacy, rounds, serving, stages
from corymb.testing.laws.engines import HOWS

EACH_ENGINE: tuple[Callable[[Case, AnyEngine], None], ...] = (
    algorithms.check_snapshots,
    algorithms.check_plan,
    algorithms.check_same_run,
    algorithms.check_same_bytes,
    algorithms.check_evaluation,
    algorithms.check_looking_changes_nothing,
    algorithms.check_resume,
    algorithms.check_used_engine,
    algorithms.check_order_of_clients,
)
"""Laws of any algorithm on any engine."""
ANY_CALL: tuple[Callable[[AnyEngine], None], ...] = (
    calls.check_rows_by_label,
    calls.check_wrong_number_of_rows,
    calls.check_missing_row,
    calls.check_plain_values,
    calls.check_draws,
    calls.check_order_of_names,
    calls.check_places_within_a_part,
    memory.check_open,
    memory.check_refresh,
    memory.check_repeated_calls,
)
"""Laws of any engine, given by name or by factory."""
CALLS: tuple[Callable[[AnyEngine], None], ...] = (
    *ANY_CALL,
    calls.check_rows_of_each,
    engines.check_further_client,
    engines.check_no_examples,
    faults.check_bytes_of_good_replies,
    faults.check_meddling,
    faults.check_too_few_good_replies,
    faults.check_nobody_is_asked_twice,
    faults.check_common_error_ends_a_run,
    faults.check_common_error_of_a_few,
    rounds.check_abandoned_round,
    rounds.check_min_replies,
    stages.check_handover,
)
"""All laws of calls that `check_engine` checks."""
ALGORITHMS = ("IFCA, soft", "CFL", "keeper")
"""The algorithms that an engine is tested with."""


def check_algorithm(algorithm: Algorithm, *, learns: Learns = "line", remembers: bool | None = None) -> None:
    """Check an algorithm against the laws on every engine: loop, vectorised and over the wire.

    It runs with seven clients in two clusters, in float64: `learns="line"` is linear regression on three features,
    `"classes"` a small network on four features and three classes. Keep its rounds few. An algorithm whose client
    functions write client memory has `keeps_memory = True`; set `remembers` if that depends on its settings. The first
    law that is broken raises an `AssertionError` that names the law and the engine.

    >>> from corymb.algorithms import FedAvg
    >>> check_algorithm(FedAvg(rounds=2))
    """
    case = Case(algorithm, learns, keeps_memory(algorithm) if remembers is None else remembers)
    table = {**ENGINES, "wired": wired(*packages_of(algorithm))}
    with _named(check_memory, "loop"):
        check_memory(case, "loop")
    for name, engine in table.items():
        for law in EACH_ENGINE:
            with _named(law, name):
                law(case, engine)
    with _named(algorithms.check_order_of_arrival, "wired"):
        algorithms.check_order_of_arrival(case, table["wired"])


def check_memory(case: Case, engine: AnyEngine) -> None:
    """`remembers` says whether clients write client memory."""
    spy, _ = privacy.watched_run(case, engine)
    wrote = any(spy.kept)
    fix = "set keeps_memory = True in the class: restarts, refresh and nodes that lost their memory rely on it"
    assert keeps_memory(case.algorithm) or not wrote, f"clients wrote into their memory, so {fix}"
    assert wrote == case.remembers, f"clients {'wrote' if wrote else 'did not write'} into their memory"


def check_engine(make_engine: MakeEngine) -> None:
    """Check an engine against the laws; `make_engine(objective, data, placement)` creates one that has never run.

    `data` is a `corymb.testing.small_data.SmallData`, and `placement` sets the precision, float64. The engine is
    compared with the loop engine. The first law that is broken raises an `AssertionError` that names it.

    >>> from corymb.engines import LoopEngine
    >>> check_engine(LoopEngine)  # doctest: +SKIP
    """
    for learner in ("linear", "mlp"):
        with _named(engines.check_measures, learner):
            engines.check_measures(learner, make_engine)
        for how in HOWS if learner == "linear" else ("epochs", "momentum"):
            with _named(engines.check_descends, f"{learner}, {how}"):
                engines.check_descends(learner, make_engine, how)
        for law in (engines.check_order_and_company, engines.check_weights_of_examples, calls.check_own_vmap):
            with _named(law, learner):
                law(learner, make_engine)
        for law in (serving.check_mixture, serving.check_one_model):
            with _named(law, learner):
                law(learner, make_engine)
    for check in CALLS:
        with _named(check, "this engine"):
            check(make_engine)
    _check_faults(make_engine)
    for name in ALGORITHMS:
        for rule in EACH_ENGINE:
            with _named(rule, name):
                rule(CASES[name], make_engine)


def _check_faults(engine: MakeEngine) -> None:
    who = (0, 3)
    for fault in WORTHLESS:
        with _named(faults.check_worthless_reply, fault):
            faults.check_worthless_reply(engine, who, fault)
    for fault in ODD:
        with _named(faults.check_odd_reply, fault):
            faults.check_odd_reply(engine, who, fault)
    for fault in ODD_ROWS:
        with _named(faults.check_odd_row, fault):
            faults.check_odd_row(engine, who, fault)
    with _named(faults.check_worthless_row, "NaN"):
        faults.check_worthless_row(engine, who, NAN)
    for fn, kind in ((always_raises, ArithmeticError), (raises_late, RuntimeError)):
        with _named(faults.check_common_error, fn.name):
            faults.check_common_error(engine, fn, kind, "map")


@contextmanager
def _named(law: Callable[..., Any], where: str) -> Iterator[None]:
    """Add the law's name and title, and where it was checked, to a failed assertion."""
    try:
        yield
    except AssertionError as error:
        title = (law.__doc__ or "").strip().splitlines()[0]
        raise AssertionError(f"{law.__name__} ({where}): {title} {error}".rstrip()) from error
