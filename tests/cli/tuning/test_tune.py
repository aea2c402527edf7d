import json

import pytest

from corymb.cli.app import main
from tests.runs import small

pytest.importorskip("optuna")


def test_the_command_searches_and_ends_with_the_run_to_make(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small.folder(tmp_path / "clinic")
    line = (
        "tune clinic fedavg --label outcome --rounds 1 --local.steps 3 --trials 2 --param local.lr=log:0.01:1 --out st"
    )
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert [row.split()[:2] for row in err.splitlines()] == [["trial", "1/2"], ["trial", "2/2"]]
    first, second, command = out.splitlines()
    assert first.startswith("Best of 2 trials: local.lr 0.")
    assert "held-out training examples; test examples were not used" in second
    assert command.startswith("corymb run clinic fedavg --rounds 1 --local.steps 3 --local.lr 0.")
    assert command.endswith("--label outcome")
    assert main([*line.split(), "--json", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = json.loads(out)
    assert found["command"] == command
    assert len(found["trials"]) == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tune", "Give the data and the algorithm: corymb tune DATA ALGORITHM"),
        ("tune digits fedagv", "Did you mean 'fedavg'"),
        ("tune digits fedavg --param local.lr", "wanted NAME=RANGE"),
        ("tune digits fedavg --param local.lr=lg:0:1", "is not a range"),
        ("tune digits fedavg --trials 0", "trials must be at least 1"),
    ],
)
def test_bad_input_is_one_line(line, says, capsys):
    assert main(line.split()) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_help_names_the_options(capsys):
    for line in ("tune --help", "tune digits ifca --help"):
        assert main(line.split()) == 0
        out = capsys.readouterr().out
        assert "--trials" in out
        assert "--param" in out


def test_ctrl_c_suggests_how_to_resume(monkeypatch, capsys, tmp_path):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("corymb.cli.tuning.search.tune", stopped)
    for line, says in (
        ("", "use --out to be able to continue"),
        (f" --out {tmp_path}", "repeat the command to continue"),
    ):
        assert main(f"tune digits fedavg{line}".split()) == 130
        assert capsys.readouterr().err == f"corymb: stopped; {says}.\n"
