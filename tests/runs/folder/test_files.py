"""Output files are complete or absent, and never replace a device."""

import errno
import os
import threading

import pytest

import corymb
from corymb.cli.app import main
from corymb.runs.folder.files import whole
from tests.runs import small


@pytest.fixture
def run(tmp_path):
    return corymb.fit(corymb.FedAvg(rounds=1), small.arrays(), out=tmp_path / "run")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    place = tmp_path / "a.csv"
    place.write_bytes(b"before")
    with (
        pytest.raises(OSError, match=r"The disk is full: .*a\.csv cannot be written\. Free some space"),
        whole(place) as file,
    ):
        file.write(full("half"))
    with pytest.raises(KeyboardInterrupt), whole(place) as file:
        raise KeyboardInterrupt
    assert place.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["a.csv"]


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as error, whole(tmp_path / "no" / "a.csv"):
        pass
    assert error.value.filename == str(tmp_path / "no" / "a.csv")
    with pytest.raises(OSError, match=r"too large: .*a\.csv"), whole(tmp_path / "a.csv"):
        raise OSError(errno.EFBIG, "File too large")


@pytest.mark.parametrize("command", ["report run --out pipe", "export run --cluster 0 --out pipe"])
def test_a_pipe_is_written_into_and_not_replaced(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    got = list[bytes]()
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    assert main(command.split()) == 0
    reader.join(timeout=20)
    assert got
    assert len(got[0]) > 100
    assert (tmp_path / "pipe").is_fifo()


def test_links_are_followed_when_writing(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with whole(tmp_path / "link") as file:
        file.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"


def test_a_table_of_predictions_is_whole_or_not_there(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text("a,b\n" + "50,2500\n" * 20)
    monkeypatch.setattr("corymb.cli.predict.csv_cell", full)
    assert main(["predict", "run", "new.csv", "--cluster", "0", "--out", "p.csv"]) == 4
    assert "The disk is full: p.csv cannot be written" in capsys.readouterr().err
    assert not (tmp_path / "p.csv").exists()


def full(cell):
    if cell.startswith("p_"):
        return cell
    raise OSError(errno.ENOSPC, "No space left on device")
