"""Figures 1 to 3 of the moment descent paper. The ten-seed runs carry the marker `paper`."""

import json

import pytest
import torch

from corymb.algorithms.moment_descent import MomentDescent
from corymb.algorithms.parts import moments
from corymb.cli import reproduce
from corymb.cli.reproduce import Chosen
from corymb.core.driver import drive
from corymb.recipes.moment_descent import recipe
from corymb.settings import InvalidInput

SEEDS = range(10)


@pytest.mark.paper
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("setting", recipe.SETTINGS)
def test_both_phases_reach_the_oracle(setting):
    trials = [recipe.trial(setting, seed) for seed in SEEDS]
    ratios = [one["second"][-1] / one["oracle"][-1] for one in trials]
    groups = [one["groups"] for one in trials]
    near = [one["farthest_anchor" if setting == "balanced" else "median_anchor"] for one in trials]
    print(f"\n{setting}: groups {groups}, anchors / half separation {near}, final / oracle {ratios}")
    assert sum(number == 3 for number in groups) >= 8
    assert max(near) <= 1
    assert sum(ratio <= 1.05 for ratio in ratios) >= 9


@pytest.mark.paper
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("broken", ["one pair a client", "no sign rule"])
def test_the_test_of_both_phases_can_fail(broken, monkeypatch):
    if broken == "no sign rule":
        monkeypatch.setattr(moments, "oriented", lambda direction, towards: direction)
    how = {"pairs": 1} if broken == "one pair a client" else {}
    monkeypatch.setattr(recipe, "FIRST", MomentDescent(k=3, anchors=recipe.ANCHORS, then=None, **how))
    trials = [recipe.trial("balanced", seed) for seed in range(3)]
    print(f"\n{broken}: final / oracle {[one['second'][-1] / one['oracle'][-1] for one in trials]}")
    for one in trials:
        assert one["groups"] != 3 or one["farthest_anchor"] > 1
        assert one["second"][-1] > 1.05 * one["oracle"][-1]


def test_the_first_phase_of_a_recipe_starts_from_one_random_model():
    here = recipe.world("balanced", 3)
    errors, at = recipe.first_phase(here)
    assert len(errors) == recipe.ITERATIONS + 1
    assert errors[-1] < errors[0] / 2
    first = next(iter(drive(recipe.FIRST, here.fed, seed=3))).carry["estimates"]
    assert torch.equal(first, first[:1].expand_as(first))
    assert here.error(at) == errors[-1]


def test_a_run_that_no_longer_moves_ends(monkeypatch):
    here = recipe.world("balanced", 0)
    monkeypatch.setattr(recipe, "STILL", 10.0)
    assert len(recipe.follow(here, recipe.second(k=3))) == 2


def fake_results(oracle=0.04, ours=0.041, rival=0.4):
    falling = [1.0, 0.5, ours]
    trial = {"groups": 3, "farthest_anchor": 0.9, "median_anchor": 0.5, "first": [1.4, 0.3], "second": falling}
    results = {}
    for setting in recipe.SETTINGS:
        results |= {f"trial/{setting}/{seed}": trial | {"oracle": [0.0, oracle]} for seed in range(2)}
        results[f"variants/{setting}/0"] = {"s = 1": [1.0, 0.5, 0.4, ours], "s = 10": falling, "FedProx": falling}
        results[f"rivals/{setting}/0"] = {"FedAvg": [1.0, rival], "IFCA": [1.0, rival], "one-shot": [1.0, 0.9, rival]}
    return results


def test_every_claim_is_about_a_measure_that_there_is():
    measures = recipe.measures(fake_results())
    claims = [claim for claim in reproduce.expected("moment-descent") if not claim.quick]
    assert {claim.measure for claim in claims} <= set(measures)
    assert all((claim.at_least is None) != (claim.at_most is None) for claim in claims)
    assert measures["balanced.share_within_5_percent_of_oracle"] == 1
    assert measures["skewed.one_shot_ratio"] == pytest.approx(10)
    assert measures["balanced.s5_speed_up"] == pytest.approx(3 / 2)
    assert recipe.measures(fake_results(ours=0.05))["balanced.share_within_5_percent_of_oracle"] == 0


def test_jobs_are_all_there_is_to_do():
    names = recipe.jobs(10)
    assert len(names) == len(set(names)) == 3 + 9 + 30
    assert set(fake_results()) <= set(names)


def test_a_reproduction_writes_numbers_table_and_figures(monkeypatch, tmp_path, capsys):
    results = fake_results()
    monkeypatch.setattr(recipe, "jobs", lambda seeds: list(results))
    monkeypatch.setattr(recipe, "work", results.__getitem__)
    reproduce.reproduce("moment-descent", out=tmp_path / "new", seeds=2, workers=1)
    table = (tmp_path / "new" / "table.md").read_text()
    assert table.count("\n") == 2 + sum(not claim.quick for claim in reproduce.expected("moment-descent"))
    assert "**no**" in table
    assert table in capsys.readouterr().out
    numbers = json.loads((tmp_path / "new" / "numbers.json").read_text())
    assert numbers["measures"]["balanced.error"] == 0.041
    assert numbers["about"]["seeds"] == 2
    assert json.loads((tmp_path / "new" / "curves.json").read_text()) == results
    assert (tmp_path / "new" / "figures.png").stat().st_size > 10_000
    monkeypatch.setattr(recipe, "work", None)  # nothing is run again
    again = reproduce.run_recipe("moment-descent", tmp_path / "new", Chosen(seeds=2), workers=1)
    assert again.table == table
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        reproduce.run_recipe("moment-descent", tmp_path / "other", Chosen(seeds=2), workers=1)


def test_unknown_reproductions_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no recipe for 'moment-decent'"):
        reproduce.run_recipe("moment-decent", tmp_path)
    with pytest.raises(InvalidInput, match="seeds must be at least 1"):
        reproduce.run_recipe("moment-descent", tmp_path, Chosen(seeds=0))
    with pytest.raises(InvalidInput, match="no recipe"):
        reproduce.expected("no-such-paper")
