"""The report's tables: every claim has a measure, tables are made from the cells that exist, figures are drawn."""

import pytest

from corymb.cli import reproduce
from corymb.recipes.uifca import cells, recipe


def fake_results(purity=1.0):
    """A result of the right form for every cell."""
    metrics = {"purity": purity, "test_purity": purity - 0.1}
    found = {}
    for name in recipe.jobs(2):
        if name.startswith("ablation"):
            found[name] = {"train": purity, "test": purity - 0.1}
        elif name.startswith("curve"):
            found[name] = {"purity": [0.5, purity]}
        elif name.startswith("one_cluster_round"):
            found[name] = {"start": 0.5, "purity": [0.5, purity]}
        elif name.startswith("overfitting"):
            found[name] = {"losses": [[1.0, 2.0, 3.0, 4.0]] * 2, "columns": list("abcd")}
        elif "/encoder" in name:
            found[name] = {"methods": dict.fromkeys(cells.REPRESENTED, metrics)}
        else:
            found[name] = {"metrics": metrics}
    return found


def test_every_claim_is_about_a_measure_that_there_is():
    found = recipe.measures(fake_results())
    claims = reproduce.expected("uifca")
    assert {claim.measure for claim in claims} <= set(found)
    assert found["subspace.affine-best-of-3.recovered"] == 1
    assert found["digits.kfed.above_report_kfed"] == pytest.approx(100 - (57.0 + 59.1 + 53.3 + 51.6 + 62.3) / 5)
    assert recipe.measures(fake_results(0.9))["subspace.affine-best-of-3.recovered"] == 0


def test_tables_are_made_of_what_there_is():
    assert recipe.measures({}) == {}
    empty = recipe.tables({})
    assert "not run" in empty
    assert "34.2" in empty
    full = recipe.tables(fake_results())
    assert "not run" not in full
    assert "| cyclic | 99 | 100.0 (2) | 90.0 (2) |" in full
    assert full.count("\n") == empty.count("\n")


def test_figures_are_drawn_of_some_cells_or_none(tmp_path):
    recipe.draw(fake_results(), tmp_path / "all.png")
    recipe.draw({}, tmp_path / "none.png")
    assert (tmp_path / "all.png").stat().st_size > (tmp_path / "none.png").stat().st_size


def test_cells_have_names_of_their_own_and_the_claims_come_first():
    names = recipe.jobs(10)
    assert len(names) == len(set(names))
    assert names[0] == "subspace-0/affine-best-of-3/0"
    assert names.index("digits-0/realnvp/2") < names.index("digits-0/realnvp-kfed/0")
    assert sum(name.startswith("subspace-") for name in names) == 150


def test_a_cell_of_synthetic_data_gives_its_purity():
    found = recipe.work("gaussians-0.5/kfed/0")
    assert found["metrics"]["purity"] == 1
    assert found["images"] == 4000


def test_models_that_train_too_long_on_few_points_fit_the_wrong_ones():
    """Figure 4.6: with 800 points wrong members stay, with 4000 they are likelier under the other model."""
    few, many = (recipe.work(f"overfitting/two-gaussians/m{m}/0")["losses"][-1] for m in (800, 4000))
    assert few[2] < few[3]
    assert many[2] > many[3]
