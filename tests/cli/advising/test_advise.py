import csv
import json

import pytest

from corymb.cli.app import main
from corymb.runs.advising import trials
from tests.report.reported import Page
from tests.runs.advising.advised import DATA


@pytest.fixture
def table(tmp_path):
    """The clients of one data set, as a user's table."""
    data = DATA["clusters"]()
    place = tmp_path / "table.csv"
    with place.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["site", "a", "b", "c", "d", "out come"])
        for client, name in enumerate(data.names):
            x, y = data.train.of(client)
            rows.writerows([name, *features, target] for features, target in zip(x.tolist(), y.tolist(), strict=True))
    return place


@pytest.mark.parametrize("refined", [False, True])
def test_a_users_table_to_json_and_a_page(refined, table, tmp_path, capsys, monkeypatch):
    """Where SR-FCA is tried too, its clusters are trained on for 300 rounds, as on any table."""
    if not refined:
        monkeypatch.setattr(trials, "MOST_CROSS_LOSSES", 11)  # the table has twelve clients
    own = ["--client", "site", "--label", "out come", "--rounds", "6", "--local.lr", "0.1", "--threads", "1"]
    line = ["advise", str(table), *own, "--json", "-q", "--out", str(tmp_path / "new")]
    assert main(line) == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert (told["verdict"], told["clusters"]) == ("clusters", 2)
    assert printed.err == ""
    assert set(told["evidence"]["candidates"]) == {"fedavg", "ifca", "alone", *(["sr-fca"] if refined else [])}
    assert list(told["evidence"]["left_out"]) == ([] if refined else ["sr-fca"])
    wanted = f"corymb run {table} ifca --k auto --rounds 6 --local.lr 0.1 --client site --label 'out come' --threads 1"
    assert told["command"] == wanted
    assert json.loads((tmp_path / "new" / "advice.json").read_text()) == told
    text = (tmp_path / "new" / "advice.html").read_text()
    page = Page(text)
    words = " ".join(" ".join(page.texts).split())
    assert told["sentences"][0] in words
    assert "IFCA: 2 clusters" in words
    assert "closest pair kept apart" in words
    assert not [values for _, values in page.elements if values.get("src", "").startswith("http")]
    assert main(line) == 2  # the folder is taken
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [
        ([], 2, "corymb advise DATA"),
        (["digit"], 2, "Did you mean"),
        (["digits", "--metric", "auk"], 2, "no metric 'auk'"),
        (["digits", "--seeds", "x"], 2, "--seeds x cannot be read"),
        (["digits", "--k", "3"], 2, "--k"),
    ],
)
def test_errors_are_one_line(line, code, expected, capsys):
    assert main(["advise", *line, "-q"]) == code
    error = capsys.readouterr().err
    assert expected in error
    assert error.strip().count("\n") == 0


def test_if_everything_diverges_the_exit_code_tells(table, capsys):
    own = ["--client", "site", "--label", "out come", "--rounds", "4", "--local.lr", "1e9", "--threads", "1"]
    assert main(["advise", str(table), *own, "-q"]) == 5
    error = capsys.readouterr().err
    assert "smaller --local.lr" in error
    assert error.strip().count("\n") == 0


def test_a_setting_of_one_algorithm_is_refused(tmp_path, capsys):
    (tmp_path / "of-a-run.toml").write_text('data = "digits"\nk = 4\n')
    assert main(["advise", "--config", str(tmp_path / "of-a-run.toml")]) == 2
    assert "advise has no setting 'k'" in capsys.readouterr().err
