"""The paper's tables: every claim has a measure, tables are made from the cells that exist, the figure is drawn."""

from fnmatch import fnmatch

import pytest

from corymb.cli import reproduce
from corymb.recipes.sr_fca import recipe
from corymb.recipes.sr_fca.cells import METHODS
from corymb.recipes.sr_fca.settings import SETTINGS


def fake_results(accuracy=90.0, rival=80.0):
    """A result of the right form for every cell."""
    found = {}
    for name in (*recipe.jobs(2), *recipe.quick_jobs()):
        setting, method, _ = name.split("/")
        own = method in ("sr-fca", "as-published")
        found[name] = {"accuracy": accuracy if own else rival, "clusters": 2, "seconds": 1.0, "device": "cpu"}
        if method not in ("local", "global") and setting not in recipe.REAL:
            found[name]["misclustering"] = 0.0 if own else 0.25
        if own:
            found[name] |= {
                "stages": [70.0, 89.0, accuracy],
                "distances": {"distance_counts": [1, 2], "distance_edges": [0.0, 1.0, 2.0], "threshold": 1.0},
                "costs": {"models": 10.0, "steps": 100, "losses": 30, "losses_one_shot": 10},
            }
        if method == "ifca":
            found[name]["costs"] = {"models": 20.0, "steps": 200, "losses": 60}
    return found


def test_every_claim_is_about_a_measure_that_there_is():
    found = recipe.measures(fake_results())
    assert {claim.measure for claim in reproduce.expected("sr-fca")} <= set(found)
    assert found["inverted.sr-fca.above_local"] == 10
    assert found["femnist.sr-fca.above_best"] == 10
    assert found["rotated.gain_of_first_refine"] == 19
    assert found["largest_gain_of_second_refine"] == 1
    assert found["rotated.losses_ifca_over_sr-fca"] == 3
    assert found["rotated.cfl.worst_misclustering"] == 0.25
    assert recipe.measures(fake_results(70.0))["rotated.sr-fca.above_best"] == -10


def test_nothing_is_the_best_of_rivals_that_have_not_all_been_run():
    some = {name: value for name, value in fake_results().items() if not name.startswith("femnist/cfl")}
    assert "femnist.sr-fca.above_best" not in recipe.measures(some)


def test_tables_are_made_of_what_there_is():
    assert recipe.measures({}) == {}
    empty, full = recipe.tables({}), recipe.tables(fake_results())
    assert "| cifar-labels | global | 81.48 ± 3.55 | not run | – | – |" in empty
    assert "not run" not in full
    assert "| rotated | cfl | 14.00 | 25.00 ± 0.00 (2) | +11.00 | – |" in full
    assert "| inverted | sr-fca after 1st REFINE | 91.88 ± 0.39 | 89.00 ± 0.00 (2) | -2.88 | -7.4 |" in full
    assert "| rotated | oracle | 80.00 ± 0.00 (2) | 25.0 ± 0.0 (2) | 2, 2 |" in full


def test_the_figure_is_drawn_of_some_cells_or_none(tmp_path):
    some = {name: value for name, value in fake_results().items() if name.startswith(("inverted", "femnist"))}
    recipe.draw(some, tmp_path / "all.png")
    recipe.draw(some, tmp_path / "all.svg")
    recipe.draw({}, tmp_path / "none.png")
    assert (tmp_path / "all.png").stat().st_size > (tmp_path / "none.png").stat().st_size
    assert (tmp_path / "all.svg").is_file()


def test_cells_have_names_of_their_own_that_can_be_run():
    names = [*recipe.jobs(5), *recipe.quick_jobs()]
    assert len(names) == len(set(names))
    assert all(name.split("/")[0] in SETTINGS and name.split("/")[1] in METHODS for name in names)
    assert (
        names.index("shakespeare/one-shot-ifca/0") < names.index("inverted/oracle/0") < names.index("inverted/sr-fca/1")
    )


@pytest.mark.parametrize("table", recipe.TABLES)
def test_a_table_has_all_cells_that_the_paper_prints_in_it(table):
    chosen = reproduce.jobs_of("sr-fca", reproduce.Chosen(table=table, seeds=1))
    printed = {
        (one.setting, one.method.split(" ")[0]) for one in recipe.FIGURES if one.table.lower() == f"table {table[-1]}"
    }
    assert chosen
    assert table == "figure-3" or printed <= {tuple(name.split("/")[:2]) for name in chosen}
    assert all(any(fnmatch(name, pattern) for pattern in recipe.TABLES[table]) for name in chosen)
