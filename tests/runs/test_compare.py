import json
from dataclasses import replace

import pytest
import torch
from scipy import stats

from corymb.cli.app import main
from corymb.report.text import as_markdown
from corymb.runs.compare import compare, confusion, group
from corymb.settings import InvalidInput
from tests.report.reported import runs


def labelled(labels, seed=0, **metrics):
    """A run with these labels, this seed and these metrics."""
    run = runs()[0]
    snapshot = replace(run.snapshot, labels=torch.tensor(labels), seed=seed)
    return replace(run, snapshot=snapshot, metrics={**run.metrics, **metrics})


def alone(run):
    return group("one", [run])


def test_clusters_are_matched_whatever_they_are_called():
    a, b = labelled([0] * 6 + [1] * 6), labelled([1] * 6 + [0] * 5 + [1])
    found = confusion(a, b)
    assert (found.rows, found.columns) == ([0, 1], [1, 0])
    assert found.counts == [[6, 0], [1, 5]]
    assert found.same == pytest.approx(11 / 12)
    assert confusion(a, a).ari == 1


def test_clusters_without_a_partner_come_last():
    found = confusion(labelled([0] * 12), labelled([2, 0, 0, 1] * 3))
    assert found.columns == [0, 1, 2]
    assert found.counts == [[6, 3, 3]]


def test_runs_of_other_clients_are_compared_by_their_metrics():
    a = labelled([0] * 12)
    b = replace(a, names=tuple(f"other-{number}" for number in range(12)))
    found = compare(alone(a), alone(b))
    assert found.confusion is None
    assert {delta.name for delta in found.deltas} >= {"test_accuracy", "bytes_down", "seconds"}


def test_differences_over_seeds_come_with_paired_tests():
    ours, theirs = [0.80, 0.82, 0.79, 0.85, 0.81, 0.80], [0.83, 0.84, 0.83, 0.86, 0.86, 0.82]
    a = group("a", [labelled([0] * 12, seed, test_accuracy=value) for seed, value in enumerate(ours)])
    b = group("b", [labelled([0] * 12, seed, test_accuracy=value) for seed, value in enumerate(theirs)])
    found = compare(a, b)
    delta = next(delta for delta in found.deltas if delta.name == "test_accuracy")
    assert found.seeds == list(range(6))
    assert delta.difference == pytest.approx(sum(theirs) / 6 - sum(ours) / 6)
    assert delta.t_test == pytest.approx(stats.ttest_rel(theirs, ours).pvalue)
    assert delta.wilcoxon == pytest.approx(stats.wilcoxon(theirs, ours).pvalue)
    same = next(delta for delta in found.deltas if delta.name == "bytes_up")
    assert (same.spread, same.t_test, same.wilcoxon) == (0, 1, 1)


def test_only_seeds_that_both_have_are_pairs():
    a = group("a", [labelled([0] * 12, seed) for seed in (0, 1, 2)])
    b = group("b", [labelled([0] * 12, seed) for seed in (1, 2, 5)])
    assert compare(a, b).seeds == [1, 2]
    with pytest.raises(InvalidInput, match="no seed in common"):
        compare(a, group("c", [labelled([0] * 12, 9), labelled([0] * 12, 8)]))
    with pytest.raises(InvalidInput, match="two runs with seed 0"):
        group("d", [labelled([0] * 12), labelled([0] * 12)])


def test_the_command_prints_tables_or_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    a, b = (str(run.save(tmp_path / name)) for run, name in zip(runs()[::3], "ab", strict=True))
    assert main(["compare", a, b]) == 0
    printed = capsys.readouterr().out
    assert "B − A" in printed
    assert "100.0% of clients are in the same cluster" in printed
    assert main(["compare", a, b, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["confusion"]["ari"] == 1
    assert found["deltas"]["bytes_down"]["difference"] < 0


def test_folders_of_runs_are_groups(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for name, value in (("a", 0.7), ("b", 0.9)):
        for seed in range(3):
            labelled([0] * 12, seed, test_accuracy=value + seed / 100).save(tmp_path / name / f"seed-{seed}")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    printed = capsys.readouterr().out
    assert "Means over 3 seeds" in printed
    assert "paired t-test, Wilcoxon" in printed
    assert main(["compare", str(tmp_path), str(tmp_path / "b")]) == 2
    assert "contains none" in capsys.readouterr().err


def test_the_metric_that_leads_comes_first_and_says_who_is_better(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    a, b = labelled([0] * 12, test_auc=0.8, test_log_loss=0.5), labelled([0] * 12, test_auc=0.7, test_log_loss=0.4)
    found = compare(alone(a), alone(b))
    assert (found.metric, found.better, found.deltas[0].name) == ("accuracy", None, "test_accuracy")
    found = compare(alone(a), alone(b), "auc")
    assert [delta.name for delta in found.deltas[:2]] == ["test_auc", "trivial_auc"]
    assert found.better == "A"
    assert not [delta.name for delta in found.deltas if delta.name.startswith("trivial_") and "auc" not in delta.name]
    assert compare(alone(a), alone(b), "log_loss").better == "B"
    chosen = replace(a, config={**a.config, "metric": "log_loss"})
    assert compare(alone(chosen), alone(b)).metric == "log_loss"
    with pytest.raises(InvalidInput, match="Not all runs have the metric 'r2': choose accuracy, balanced_accuracy, "):
        compare(alone(a), alone(b), "r2")
    folders = [str(run.save(tmp_path / name)) for run, name in ((a, "a"), (b, "b"))]
    assert main(["compare", *folders, "--metric", "auc"]) == 0
    printed = capsys.readouterr().out
    assert "A has the better test AUC: A 0.8, B 0.7; giving every example the same chance: 0.5." in printed
    assert main(["compare", *folders, "--metric", "auc", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["metric"], output["better"]) == ("auc", "A")


def test_rounds_are_those_that_a_run_tells_of():
    run = runs()[0]
    assert run.ledger.rounds > len(run.history)  # the ledger also counts what standardises
    found = {delta.name: delta.a for delta in compare(alone(run), alone(run)).deltas}
    assert found["rounds"] == len(run.history)
    summary = f"{len(run.history)} rounds, "
    assert summary in repr(run)
    assert summary in as_markdown([run]).decode()
