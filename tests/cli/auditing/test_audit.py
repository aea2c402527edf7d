import json

import pytest

from corymb.cli.app import main
from tests.cli.malformed.files import ROWS


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A run in which one client is refused in every round."""
    place = tmp_path_factory.mktemp("audited")
    (place / "data.csv").write_text(ROWS)
    out = place / "run"
    line = ["run", str(place / "data.csv"), "fedavg", "--rounds", "3", "--faults", "nan@c1", "-q", "--out", str(out)]
    assert main(line) == 0
    return out


def rewritten(good, tmp_path, change):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(good, run)
    path = run / "audit.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    return run


def test_an_unmodified_log_is_valid(good, capsys):
    assert main(["audit", str(good)]) == 0
    assert "3 lines, verified (3 rejected)" in capsys.readouterr().out
    assert main(["audit", str(good), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"lines": 3, "sound": True, "rejected": 3}


def test_a_run_with_faults_by_client_continues_and_so_does_its_log(good, tmp_path, capsys):
    run = rewritten(good, tmp_path, list)
    assert main(["resume", str(run), "--rounds", "5", "-q"]) == 0
    capsys.readouterr()
    assert main(["audit", str(run)]) == 0
    assert "5 lines, verified (5 rejected)" in capsys.readouterr().out


CHANGES = {
    "a line is changed": (lambda rows: [rows[0], rows[1].replace(b"c1", b"c2"), rows[2]], "line 2"),
    "a line is left out": (lambda rows: [rows[0], rows[2]], "line 2"),
    "lines are exchanged": (lambda rows: [rows[1], rows[0], rows[2]], "line 1"),
    "a line is put in": (lambda rows: [rows[0], rows[0], *rows[1:]], "line 2"),
    "the end is cut off": (lambda rows: rows[:2], "its end is missing"),
    "a line is torn": (lambda rows: [rows[0], rows[1][:20] + b"\n", rows[2]], "line 2"),
    "a key comes twice": (lambda rows: [rows[0].replace(b"{", b'{"client": "c9", ', 1), *rows[1:]], "line 1"),
    "a blank is put in": (lambda rows: [*rows[:2], rows[2].replace(b": ", b":  ", 1)], "line 3"),
    "letters are written otherwise": (lambda rows: [rows[0].replace(b"c1", rb"\u0063\u0031"), *rows[1:]], "line 1"),
    "lines end otherwise": (lambda rows: [row.replace(b"\n", b"\r\n") for row in rows], "line 1"),
    "it is nested beyond all depth": (lambda rows: [b"[" * 100_000 + b"]" * 100_000 + b"\n", *rows], "line 1"),
    "a line has no link": (lambda rows: [b'{"clock": 0, "what": "rejected"}\n', *rows[1:]], "line 1"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_detected(name, good, tmp_path, capsys):
    change, where = CHANGES[name]
    assert main(["audit", str(rewritten(good, tmp_path, change))]) == 2
    assert where in capsys.readouterr().err
