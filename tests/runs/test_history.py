"""Whether losses grow, or no longer fall, is read from the history alone."""

import math

import pytest
import torch

from corymb.core.federation import Ledger
from corymb.core.objective import Examples
from corymb.core.smallest import BLOCK
from corymb.core.snapshot import Snapshot
from corymb.keys import root
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.runs.history import (
    Mark,
    converged,
    divergence,
    evaluated_loss,
    growth,
    noted_loss,
    record,
    unfinished,
)
from tests.allocations import LargeTensors


def rows(*noted, stage=""):
    return [{"stage": stage, "train_loss": loss} for loss in noted]


def evaluated(*losses, stage=""):
    """Rounds of an algorithm that notes no losses; None where a round was not evaluated."""
    known = [{} if loss is None else {"evaluated_loss": loss} for loss in losses]
    return [{"stage": stage, "train_loss": None, **one} for one in known]


@pytest.mark.parametrize(
    ("losses", "grown"),
    [
        ((1.0, 11.0, 12.0, 13.0), (1.0, 13.0)),
        ((1.0, 11.0, 12.0), None),
        ((1.0, 11.0, 9.0, 13.0, 14.0), None),
        ((1.0, 10.0, 10.0, 10.0), None),
        ((1.0, 11.0, math.nan, math.inf), (1.0, math.inf)),
        ((), None),
    ],
)
def test_a_run_diverges_when_its_loss_has_grown_three_times_running(losses, grown):
    assert growth(rows(*losses), noted_loss) == grown
    assert growth(evaluated(*losses), evaluated_loss) == grown


def test_rounds_between_evaluations_do_not_count():
    history = evaluated(1.0, None, 20.0, None, 30.0, None, 40.0)
    assert growth(history, evaluated_loss) == (1.0, 40.0)
    assert growth(history[:-1], evaluated_loss) is None  # nothing new is known after that round


def test_a_round_that_was_read_from_a_file_has_null_for_infinity():
    row = {"stage": "", "train_loss": None, "evaluated_loss": None}
    assert evaluated_loss(row) == math.inf
    assert growth([*evaluated(1.0), row, row, row], evaluated_loss) == (1.0, math.inf)


def test_evaluations_are_held_against_the_first_rounds_note():
    history = [
        {"stage": "", "train_loss": 1.0, "evaluated_loss": 50.0},
        *({"stage": "", "train_loss": 60.0, "evaluated_loss": 60.0} for _ in range(2)),
    ]
    assert growth(history, evaluated_loss) == (1.0, 60.0)


def test_starts_at_the_optimum_and_local_models_are_not_references():
    assert growth(rows(1e-12, 1e-3, 1e-3, 1e-3), noted_loss) is None
    history = [*rows(0.02, stage="alone"), *rows(1.0, 0.9, 0.8, stage="train")]
    assert growth(history, noted_loss) is None
    assert growth([*history, *rows(11, 12, 13, stage="train")], noted_loss) == (1.0, 13)


@pytest.mark.parametrize(
    ("losses", "unit", "grown"),
    [
        ((-50.0, -40.0, 5.0, 6.0, 7.0), 8.0, False),  # not ten times anything: the zero of a log-density is arbitrary
        ((0.3, 4.0, 5.0, 6.0), 8.0, False),
        ((-0.01, -300.0, 5.0, 5.0, 5.0), 8.0, False),
        ((-50.0, 900.0, 900.0, 900.0), 8.0, True),
        ((0.3, 100.0, 200.0, 300.0), 8.0, True),
        ((-50.0, math.inf, math.inf, math.nan), 8.0, True),
        ((0.3, 4.0, 5.0, 6.0), None, True),
        ((0.005, 0.44, 0.99, 0.73), math.log(2), False),  # clusters merge, and the loss is that of chance
    ],
)
def test_losses_without_a_zero_of_their_own_grow_by_their_size_and_unit(losses, unit, grown):
    history = [{**row, **({} if unit is None else {"loss_unit": unit})} for row in rows(*losses)]
    assert (growth(history, noted_loss) is not None) == grown


def test_the_setting_to_change_is_named():
    history = rows(1.2, 40, 340.0)
    settings = {"k": 2, "alone": {"lr": 0.5}, "local": {"lr": 0.1}}
    assert divergence(history, settings) == "training loss grew from 1.2 to 340: lower --local.lr (now 0.1)"
    assert "lower --inner.local.lr (now 3)" in divergence(history, {"inner": {"local": {"lr": 3.0}}})
    assert divergence(history, {}).endswith("to 340: use smaller steps")
    assert divergence(rows(1.2, 40, 3), settings) == ""
    assert "to infinity" in divergence(evaluated(1.2, math.inf), settings)


def steady(losses, stage="", churn=0.0):
    return [{"stage": stage, "train_loss": loss, "churn": churn} for loss in losses]


def test_noisy_losses_that_happen_to_be_equal_have_not_converged():
    noisy = [0.5 + 0.05 * (-1) ** place for place in range(20)]
    assert not converged(steady(noisy))  # a standard error of a fiftieth: more rounds are wanted
    assert converged(steady(noisy * 32))
    fallen = [1.0 - 0.003 * place for place in range(140)]
    assert not converged(steady([*fallen, *noisy]))  # a hundred and sixty rounds show what twenty do not


def test_a_run_has_converged_when_its_loss_and_its_clusters_stay():
    falling = [0.9**t for t in range(20)]
    assert not converged(steady(falling))
    assert converged(steady(falling) + steady([0.1] * 20))
    assert not converged(steady([0.1] * 19))  # too few rounds to say
    assert not converged(steady([0.1] * 19) + steady([0.1], churn=0.1))
    assert not converged(steady([0.1] * 15, stage="first") + steady([0.1] * 15, stage="second"))
    assert not converged(steady([0.1] * 19 + [math.nan]))
    assert not converged(steady([None] * 20))


def test_negative_losses_converge_and_examples_that_move_do_not():
    history = [{**row, "notes": {"moved": 0.0}} for row in steady([-3.0] * 20)]
    assert converged(history)
    assert not converged([*history[:-1], {**history[-1], "notes": {"moved": 0.1}}])


def test_a_loss_without_refused_clients_is_not_compared_with_that_of_all():
    """A large client is refused in every round: its loss is among the evaluated ones from the first on."""
    history = [{**row, "evaluated_loss": 16.0, "rejected": 1} for row in rows(0.9, 0.8, 0.8, 0.8)]
    assert growth(history, evaluated_loss) is None
    assert growth([*history, *({**row, "evaluated_loss": 900.0} for row in history[:3])], evaluated_loss) == (16, 900)
    assert growth([{**row, "rejected": 0} for row in history], evaluated_loss) == (0.9, 16)


def test_the_unit_of_a_classifiers_loss_is_that_of_random_guessing():
    objective = Classification(Network(mlp(3, [], 5)), 5)
    params = {name: torch.zeros_like(value) for name, value in objective.init(root(0)).items()}
    on = Examples(torch.ones(2, 3), torch.tensor([0, 4]), torch.ones(2))
    assert objective.losses(params, on).tolist() == pytest.approx([objective.loss_unit] * 2)


@pytest.mark.parametrize(("floor", "batch", "short"), [(0.0, None, True), (0.5, None, False), (0.0, 8, False)])
def test_steps_that_became_short_before_the_loss_settled_are_reported(floor, batch, short):
    travelled = [3 * (1 - 0.94**t) / 0.06 for t in range(80)]  # the sum of steps: no loss falls after it has ended
    history = [{"stage": "", "train_loss": floor + 1 / (1 + way)} for way in travelled]
    config = {"until": "rounds", "rounds": 80, "local": {"lr": 3.0, "decay": 0.94, "batch": batch}}
    said = unfinished(history, config)
    assert ("steps became short" in said and said.endswith("try --rounds 320 --local.decay 0.985")) == short
    assert unfinished(history, {**config, "local": {"decay": 1.0}}) == ""
    assert unfinished(history[:30], {**config, "rounds": 30}) == ""  # steps are long still: rounds that were asked for
    stages = [{**row, "stage": "a"} for row in history[:50]] + history[50:]
    assert unfinished(stages, config) == ""  # steps began anew


def test_labels_are_compared_in_blocks():
    n = 9 * BLOCK + 7
    before = torch.arange(n) % 3
    now = before.clone()
    now[[5, BLOCK, n - 1]] = 4
    ledger, snapshot = Ledger(), Snapshot(models={"w": torch.zeros(5, 1)}, labels=now)
    marks = Mark.of(ledger, before), Mark.of(ledger, now)
    with LargeTensors(n) as large:
        row = record(snapshot, *marks, 0.0)
    first = record(snapshot, Mark.of(ledger, None), marks[1], 0.0)
    assert row["moves"] == {"5": 4, str(BLOCK): 4, str(n - 1): 4}
    assert row["churn"] == float((before != now).float().mean())
    assert (row["clusters"], first["clusters"]) == (4, 4)
    assert (len(first["moves"]), first["churn"]) == (n, 1.0)
    assert large.found == []
