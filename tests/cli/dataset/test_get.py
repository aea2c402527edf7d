"""`corymb data get`, from a local server."""

import gzip
import hashlib
import json
from dataclasses import replace

import pytest

from corymb.cli import Exit
from corymb.cli.app import DATA, main
from corymb.data.built_in import sources
from corymb.data.fetching.home import Published, cache_folder
from tests.data.built_in.test_shakespeare import PLAY, SPEECHES
from tests.data.fetching.server import server as server
from tests.data.readers.test_leaf import write_shard


@pytest.fixture
def plays(server, monkeypatch):
    """The data set `shakespeare` with six small plays."""
    files = []
    for number in range(6):
        body = PLAY.replace("king", f"king {number}").encode()
        server.serve(f"plays/{number}.txt", body)
        files.append(Published(f"{number}.txt", 2**18, hashlib.sha256(body).hexdigest()))
    whole = sources.SHAKESPEARE
    home = replace(whole.home, mirrors=(f"{server.url}/plays/",), files=tuple(files))
    monkeypatch.setattr(sources, "SHAKESPEARE", replace(whole, home=home))
    return server


def test_where_it_lies_how_large_it_is_and_that_it_is_right(plays, capsys):
    assert main(["data", "get", "shakespeare", "digits"]) == 0
    output = capsys.readouterr()
    lines = output.out.splitlines()
    place = cache_folder() / "shakespeare"
    digest = hashlib.sha256((place / "0.txt").read_bytes()).hexdigest()
    assert lines[0] == f"shakespeare: {place / '0.txt'}, 0.5 kB, SHA-256 {digest}: verified"
    assert lines[4] == "shakespeare: 2 more files in the same folder, 0.9 kB, each with the expected SHA-256"
    assert lines[5:] == [
        "shakespeare: read successfully",
        "shakespeare: licence: public domain (the repository: Apache-2.0)",
        "digits: included in the library or generated: nothing to download",
    ]
    assert output.err.startswith("downloading shakespeare (6 files) from ")
    assert main(["data", "get", "shakespeare"]) == 0
    assert capsys.readouterr().err == ""
    assert len(plays.asked) == 6


def test_data_available_in_another_format_are_not_downloaded(plays, capsys, monkeypatch, tmp_path):
    text = "so shaken as we are, so wan with care, " * 9
    for part in ("train", "test"):
        write_shard(cache_folder() / "shakespeare", part, "0", {"A": ([text[:80]], [text[80]])})
    assert main(["data", "get", "shakespeare"]) == 0
    assert "in LEAF's format: nothing to download" in capsys.readouterr().out
    (tmp_path / "shakespeare").mkdir()
    packed = tmp_path / "shakespeare" / "moby_roles.json.gz"
    packed.write_bytes(gzip.compress(json.dumps({"one": SPEECHES}).encode()))
    monkeypatch.setenv("CORYMB_DATA", str(tmp_path))
    assert main(["data", "get", "shakespeare"]) == 0
    assert f"{packed.parent}, 0.2 kB, a packed copy under CORYMB_DATA" in capsys.readouterr().out
    assert plays.asked == []


def test_offline(plays, capsys):
    plays.close()
    assert main(["data", "get", "shakespeare"]) == Exit.FILES
    (line,) = capsys.readouterr().err.splitlines()
    assert "0.txt is not in" in line
    assert "If this machine is offline" in line


def test_stopped(plays, capsys, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("corymb.data.fetching.home.download", stop)
    assert main(["data", "get", "shakespeare"]) == Exit.INTERRUPTED
    assert "the partial download is kept" in capsys.readouterr().err


def test_an_unknown_name_is_refused(capsys):
    for line, complaint in (
        ("data get femnis", "Did you mean 'femnist'?"),
        ("data get", "corymb list data lists them"),
    ):
        assert main(line.split()) == Exit.BAD_INPUT
        assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("command", DATA)
def test_help_has_three_examples(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["data", command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert len(DATA[command].examples) == 3
    assert all(example in printed for example in DATA[command].examples)
