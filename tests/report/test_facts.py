from dataclasses import replace

import pytest
import torch

from corymb.report.facts import clients, kept_rounds, moments, savings, shares_of
from corymb.report.sections.communication.savings import saving_text
from tests.report.reported import noted, runs, saving_run, soft_run


def test_the_path_of_labels_ends_at_the_result():
    run = runs()[0]
    path = moments(run)
    assert len(path) == len(kept_rounds(run)) == 8
    assert path[-1].labels.tolist() == run.snapshot.labels.tolist()
    assert moments(replace(run, history=[{"clock": 1, "stage": "", "churn": 1.0}])) == []


def test_the_best_restart_is_found_wherever_it_stands_in_the_stage():
    stages = ["start", "restart-0", "scored-0", "then/restart-1/ifca", "then/restart-1", "scored-1"]
    run = runs()[0]
    history = [{**run.history[0], "clock": clock, "stage": stage} for clock, stage in enumerate(stages)]
    kept = kept_rounds(replace(noted(run, best_restart=1), history=history))
    assert [row["clock"] for row in kept] == [0, 3, 4]


def test_savings_are_against_all_models_in_every_round():
    assert savings(runs()[0]).share == pytest.approx(0, abs=1e-3)
    assert 0.1 < savings(saving_run()).share < 0.5
    assert savings(runs()[1]) is None
    assert "less than the" in saving_text(saving_run())


def test_savings_are_seen_in_the_ledger_whatever_the_algorithm_is_called():
    run = saving_run()
    renamed = replace(run, config={"algorithm": "mine", "data": "arrays"})
    assert savings(renamed) == savings(run)._replace(possible=False)
    one_model = [{**row, "bytes_down": row["bytes_down"] // 2} for row in runs()[0].history]
    assert savings(replace(runs()[0], history=one_model)) is None


def test_shares_add_up_to_one_and_are_unknown_where_there_are_none():
    run = soft_run()
    assert shares_of(run).sum(1) == pytest.approx(1)
    empty = torch.cat([run.snapshot.shares[:-1], torch.zeros(1, 2)])
    assert not shares_of(replace(run, snapshot=replace(run.snapshot, shares=empty)))[-1].sum() >= 0
    assert shares_of(runs()[0]) is None


def test_labels_are_read_once_for_all_clients():
    run = replace(runs()[0])
    assert run.labels is run.labels  # building the mapping again for every client would take quadratic time
    assert [row["cluster"] for row in clients(run)] == run.snapshot.labels.tolist()
