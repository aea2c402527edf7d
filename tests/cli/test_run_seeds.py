"""`--seeds`: several runs in one folder; what a run keeps for its report."""

import pytest

from corymb.cli.app import main
from corymb.cli.run import seeds_in
from corymb.runs.run import Run
from corymb.settings import InvalidInput


def test_a_run_for_each_seed_in_one_folder(tmp_path, capsys):
    out = tmp_path / "group"
    words = ["run", "digits-inverted", "ifca", "--k", "2", "--rounds", "2", "-q", "--json"]
    assert main([*words, "--seeds", "0,2", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["seed-0", "seed-2"]
    assert len(capsys.readouterr().out.splitlines()) == 2
    runs = [Run.load(out / name) for name in ("seed-0", "seed-2")]
    assert [run.seed for run in runs] == [0, 2]
    assert runs[0].scores is not None
    assert runs[0].scores.mean().item() == pytest.approx(runs[0].metrics["test_accuracy"])
    assert runs[0].history[0]["notes"] == {"unused_models": 0}


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-2-x", "0,,2"])
def test_seeds_that_cannot_be_read(text):
    with pytest.raises(InvalidInput, match="cannot be read"):
        seeds_in(text)


def test_a_group_does_not_go_into_a_folder_that_is_used(tmp_path, capsys):
    (tmp_path / "something").write_text("here")
    words = ["run", "digits-inverted", "ifca", "--k", "2", "--rounds", "1", "-q", "--seeds", "0-1", "--out"]
    assert main([*words, str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_run_writes_its_own_report(tmp_path):
    pytest.importorskip("plotly")
    assert main(["run", "digits-inverted", "fedavg", "--rounds", "1", "-q", "--out", str(tmp_path / "run")]) == 0
    page = Run.load(tmp_path / "run").report(path=tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert "digits-inverted" in page.read_text(encoding="utf-8")
