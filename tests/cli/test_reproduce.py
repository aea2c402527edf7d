"""`corymb reproduce`: parts of papers, the quick versions of all of them, and the files written."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from corymb.cli import Exit, reproduce
from corymb.cli.app import main
from corymb.cli.reproduce import RECIPES, Chosen
from corymb.data import DataUnavailable
from corymb.recipes.cells import write_cell
from corymb.settings import InvalidInput


@pytest.mark.parametrize("paper", RECIPES)
@pytest.mark.timeout(600)
def test_the_small_version_of_every_paper_has_the_effects_of_the_paper(paper, tmp_path, capsys):
    reproduce.reproduce(paper, quick=True, out=tmp_path / "new", workers=1)
    table = (tmp_path / "new" / "table.md").read_text()
    assert "**no**" not in table
    assert "not run" not in table
    assert table.count("| yes |") >= 3
    said = capsys.readouterr().out
    assert "Quick version:" in said
    assert "claims hold" in said
    assert "<table>" in (tmp_path / "new" / "report.html").read_text()
    assert json.loads((tmp_path / "new" / "numbers.json").read_text())["about"]["paper"] == paper


@pytest.mark.parametrize("paper", RECIPES)
def test_claims_and_tables_are_about_cells_that_there_are(paper):
    recipe = reproduce.recipe_for(paper)
    claims = reproduce.expected(paper)
    assert {claim.quick for claim in claims} == {True, False}
    assert all((claim.at_least is None) != (claim.at_most is None) for claim in claims)
    for table in recipe.TABLES:
        assert reproduce.jobs_of(paper, Chosen(table))
    small = {job for table in recipe.TABLES for job in recipe.quick_jobs() if _in_part(paper, table, job)}
    assert small == set(recipe.quick_jobs())


def _in_part(paper, table, job):
    with suppress(InvalidInput):  # no small version of this part
        return job in reproduce.jobs_of(paper, Chosen(table, quick=True))
    return False


def test_a_part_has_its_own_small_cells_or_says_that_there_are_none():
    methods = [job.split("/")[1] for job in reproduce.jobs_of("ifca", Chosen("table-1", quick=True))]
    assert methods == ["ifca", "global", "local"]
    assert len(reproduce.jobs_of("ifca", Chosen("figure-4", quick=True))) == 1
    said = "ifca/table-2 has no quick version: leave out --quick, or choose from table-1, figure-4."
    with pytest.raises(InvalidInput, match=said):
        reproduce.jobs_of("ifca", Chosen("table-2", quick=True))
    assert len(reproduce.jobs_of("moment-descent", Chosen("figure-1", seeds=2))) == 5


def test_a_figure_of_moment_descent_can_be_made_by_itself(tmp_path, monkeypatch):
    curve = [1.0, 0.5, 0.04]
    trial = {"groups": 3, "farthest_anchor": 0.9, "median_anchor": 0.5, "first": [1.4, 0.3], "second": curve}
    given = {"trial": trial | {"oracle": curve}, "variants": dict.fromkeys(("s = 1", "s = 10", "FedProx"), curve)}
    given["rivals"] = dict.fromkeys(("FedAvg", "IFCA", "one-shot"), curve)
    monkeypatch.setattr(reproduce.recipe_for("moment-descent"), "work", lambda name: given[name.split("/")[0]])
    chosen = Chosen("figure-2", seeds=2)
    outcome = reproduce.run_recipe("moment-descent", tmp_path / "out", chosen, workers=1)
    assert {claim.figure[0] for claim, value in outcome.claims if value is not None} == {"2"}
    assert (tmp_path / "out" / "figures.png").stat().st_size > 10_000


def test_parts_and_cells_are_chosen_by_name(tmp_path, capsys):
    everything = reproduce.jobs_of("ifca", Chosen())
    assert len(set(everything)) == len(everything)
    some = reproduce.jobs_of("ifca", Chosen("table-1", ("rmnist-1200x200/*/0",)))
    assert some == [f"rmnist-1200x200/{method}/0" for method in ("ifca", "global", "local")]
    with pytest.raises(InvalidInput, match="has no part 'table-9'"):
        reproduce.jobs_of("ifca", Chosen("table-9"))
    with pytest.raises(InvalidInput, match="No cell of ifca matches nothing"):
        reproduce.jobs_of("ifca", Chosen(cells=("nothing", "rmnist-1200x200/ifca/0")))
    with pytest.raises(InvalidInput, match="No cell of ifca/table-2 matches rmnist-1200x200/ifca/0"):
        reproduce.jobs_of("ifca", Chosen("table-2", ("rmnist-1200x200/ifca/0",)))
    with pytest.raises(InvalidInput, match="names no part of the paper after the slash"):
        reproduce.reproduce("ifca/", left=True, out=tmp_path)
    with pytest.raises(InvalidInput, match="seconds must be 0 or more"):
        reproduce.reproduce("ifca", quick=True, seconds=-1, out=tmp_path / "quick")
    reproduce.reproduce("ifca/table-2", cells=("*/0",), left=True, out=tmp_path)
    assert "femnist/ifca-2/0" in capsys.readouterr().out.splitlines()
    assert not any(tmp_path.iterdir())


def test_several_names_of_cells_follow_one_option_or_several(tmp_path, capsys):
    names = ["rmnist-1200x200/ifca/0", "femnist/ifca-2/0"]
    for cells in (["--cells", *names], [word for name in names for word in ("--cells", name)]):
        assert main(["reproduce", "ifca", *cells, "--left", "--out", str(tmp_path)]) == Exit.OK
        assert capsys.readouterr().out.split() == names
    main(["reproduce", "--help"])
    assert "empty" not in capsys.readouterr().out.replace("new, empty", "")


@pytest.mark.parametrize(("whose", "quick"), [("ifca", True), ("uifca", False), ("ifca", False)])
def test_a_folder_of_another_paper_or_version_is_refused(tmp_path, whose, quick, monkeypatch, capsys):
    """Also when it was left with cells alone, as by a process that was killed, or as they are kept under papers/."""
    monkeypatch.setattr(reproduce.recipe_for("ifca"), "work", lambda name: {"accuracy": 50.0})
    out = tmp_path / "out"
    reproduce.run_recipe("ifca", out, Chosen(cells=("rmnist-1200x200/ifca/0",)), workers=1)
    asked = ["reproduce", whose, *(["--quick"] if quick else []), "--seconds", "0", "--out", str(out)]
    own = (whose, quick) == ("ifca", False)
    before = (out / "table.md").read_text()
    for numbers in (True, False):
        if not numbers:
            (out / "numbers.json").unlink()
        for more in ([], ["--left"]):
            assert main([*asked, *more]) == (Exit.OK if own else Exit.BAD_INPUT)
            said = capsys.readouterr().err.splitlines()[-1:]
            if not own:
                has = "ifca (in full)" if quick or numbers else "another paper"
                asked_for = "ifca --quick" if quick else "uifca (in full)"
                wanted = f"{out} holds the results of {has}, not of {asked_for}: give a new or empty folder with --out."
                assert said == [f"corymb: {wanted}"]
    assert (out / "table.md").read_text() == before


@pytest.mark.parametrize("paper", RECIPES)
def test_the_kept_cells_of_a_paper_are_its_own_and_no_others(paper):
    kept = Path(__file__).parents[2] / "papers" / paper / "results"
    assert reproduce.own_folder(kept, paper, quick=False) == kept
    for other in RECIPES:
        for quick in {True, other == paper}:
            with pytest.raises(InvalidInput, match="holds the results of"):
                reproduce.own_folder(kept, other, quick=quick)


def test_cells_of_other_parts_that_are_there_are_tabled_too(tmp_path, monkeypatch):
    recipe = reproduce.recipe_for("ifca")
    monkeypatch.setattr(recipe, "work", lambda name: {"accuracy": 50.0, "ari": 1.0})
    write_cell(tmp_path / "out" / "cells", "rmnist-1200x200/ifca/0", {"result": {"accuracy": 50.0}})
    chosen = Chosen(cells=("rmnist-4800x50/global/1",))
    outcome = reproduce.run_recipe("ifca", tmp_path / "out", chosen, workers=1)
    assert "| rmnist-1200x200 | ifca | 95.25 ± 0.40 | 50.00 (1) |" in outcome.table
    assert "| rmnist-4800x50 | global | 86.74 ± 0.04 | 50.00 (1) |" in outcome.table
    assert (tmp_path / "out" / "figures.svg").stat().st_size > 1000


def test_without_data_the_command_fails_and_says_what_to_do(tmp_path, monkeypatch, capsys):
    def work(name):
        raise DataUnavailable("mnist is not here: set CORYMB_DATA.")

    recipe = reproduce.recipe_for("ifca")
    monkeypatch.setattr(recipe, "work", work)
    monkeypatch.setattr(recipe, "draw", lambda results, path: path.write_text("<svg></svg>"))
    code = main(["reproduce", "ifca", "--cells", "rmnist-*/ifca/0", "--out", str(tmp_path / "out"), "--workers", "1"])
    said = capsys.readouterr()
    assert code == Exit.FILES
    line = said.err.splitlines()[-1]
    assert "3 cells failed (rmnist-4800x50/ifca/0: mnist is not here: set CORYMB_DATA.). --quick runs a small" in line
    assert "0 of 0 claims hold, 19 are not measured yet" in said.out
    assert main(["reproduce", "ifca", "--workers", "0", "--out", str(tmp_path / "new")]) == Exit.BAD_INPUT
    assert not (tmp_path / "new").exists()


def test_missing_data_are_reported_once_with_the_number_of_cells(tmp_path, monkeypatch, capsys):
    looked = []

    def work(name):
        looked.append(name)
        raise DataUnavailable(f"{'mnist' if name.startswith('rmnist') else 'cifar10'} is not here.")

    recipe = reproduce.recipe_for("ifca")
    monkeypatch.setattr(recipe, "work", work)
    monkeypatch.setattr(recipe, "draw", lambda results, path: path.write_text("<svg></svg>"))
    assert main(["reproduce", "ifca/table-1", "--out", str(tmp_path / "out"), "--workers", "1"]) == Exit.FILES
    line = capsys.readouterr().err.splitlines()[-1]
    assert looked == ["rmnist-4800x50/ifca/0", "rcifar-200x500/ifca/0"]
    wanted = "75 cells failed (rmnist-4800x50/ifca/0: mnist is not here.). 15 of them failed for other reasons"
    assert wanted in line


@pytest.mark.parametrize("paper", RECIPES)
def test_cells_that_need_data_say_which(paper):
    needed = reproduce.data_needed(reproduce.recipe_for(paper))
    by_setting = {job.split("/")[0]: needed(job) for job in reproduce.jobs_of(paper, Chosen())}
    known = {"ifca": 3, "moment-descent": 0, "sr-fca": 4, "uifca": 1}
    assert len(set(by_setting.values()) - {""}) == known[paper]
    made = ("success", "trial", "variants", "rivals", "gaussians", "subspace", "curve", "overfitting")
    assert all(setting.startswith(made) for setting, data in by_setting.items() if not data)


def test_ctrl_c_reports_what_is_saved(tmp_path, monkeypatch, capsys):
    def work(name):
        if name.endswith("global/0"):
            raise KeyboardInterrupt
        return {"accuracy": 50.0}

    monkeypatch.setattr(reproduce.recipe_for("ifca"), "work", work)
    out = ["--out", str(tmp_path / "out"), "--workers", "1"]
    assert main(["reproduce", "ifca", "--cells", "rmnist-1200x200/*/0", *out]) == Exit.INTERRUPTED
    line = capsys.readouterr().err.splitlines()[-1]
    assert (
        line
        == f"corymb: Stopped: 1 of 3 cells are saved in {tmp_path / 'out' / 'cells'}; repeat the command to continue."
    )


HEARING = """if __name__ == "__main__":
    import signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background would not hear it
    from corymb.cli.app import main
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent otherwise there")
def test_ctrl_c_ends_all_processes_without_a_traceback(tmp_path):
    command = [sys.executable, "-c", HEARING, "reproduce", "moment-descent", "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    end = time.monotonic() + 120
    while not (tmp_path / "out" / "cells").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1)  # processes are still importing, or at their first cells
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    try:
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()  # which ends its processes too
    assert process.returncode == Exit.INTERRUPTED
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("corymb: Stopped: 0 of 42 cells are saved")
