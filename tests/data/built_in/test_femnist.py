import hashlib
import io
import sys
from dataclasses import replace

import numpy as np
import pytest

from corymb.data import DataUnavailable
from corymb.data.built_in import femnist
from corymb.data.built_in.writers import Writers
from corymb.data.fetching.home import cache_folder
from corymb.settings import InvalidInput
from tests.data.fetching.server import server as server
from tests.data.readers.test_leaf import write_shard

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8)
LABELS = np.array([0, 61, 3, 10, 36])
WRITER = ["f0000_14", "f0000_14", "f0001_41", "f0001_41", "f0001_41"]


def floats(*rows):
    return (IMAGES[list(rows)].reshape(len(rows), -1) / 255).tolist()


def leaf(folder):
    write_shard(folder, "train", "all_0", {"f0000_14": (floats(0), [0]), "f0001_41": (floats(2, 3), [3, 10])})
    # the first writer's test image is one to train on once more
    write_shard(folder, "test", "all_0", {"f0000_14": (floats(0, 1), [0, 61]), "f0001_41": (floats(4), [36])})


def test_leaf_without_its_repeats(tmp_path):
    leaf(tmp_path)
    read = femnist.read_leaf(tmp_path)
    assert np.array_equal(read.images, IMAGES[[0, 2, 3, 1, 4]])
    assert read.labels.tolist() == [0, 3, 10, 61, 36]
    assert read.writer.tolist() == [0, 1, 1, 0, 1]
    assert read.names == ("f0000_14", "f0001_41")
    assert read.test.tolist() == [False, False, False, True, True]
    assert read.notes == ("1 duplicate images of writers are dropped",)


def test_the_same_picture_of_two_writers_or_classes_is_no_repeat():
    twice = np.stack([IMAGES[0]] * 4)
    writers = Writers(twice, np.array([1, 1, 2, 1]), np.array([0, 300, 0, 0]), tuple(map(str, range(301))))
    assert femnist.without_repeats(writers).labels.tolist() == [1, 1, 2]


def test_packed_or_leaf_under_a_folder(tmp_path):
    np.savez(
        tmp_path / "femnist.npz",
        images=IMAGES,
        labels=LABELS,
        writer=np.array([0, 0, 1, 1, 1], np.uint16),
        writer_ids=np.array(["f0000_14", "f0001_41"]),
        test=np.array([False, True, False, False, True]),
    )
    read = femnist.read_packed(tmp_path / "femnist.npz")
    assert read.names == ("f0000_14", "f0001_41")
    assert np.array_equal(read.images, IMAGES)
    leaf(tmp_path)
    assert len(femnist.read_packed(tmp_path / "train").labels) == 5


def test_complaints(tmp_path):
    write_shard(tmp_path, "test", "0", {"a": (floats(0), [0])})
    for x, y, complaint in (
        ([[0.5] * 784], [0], "not bytes divided by 255"),
        ([[0.0] * 783], [0], "not 28 x 28"),
        (floats(0), [62], "labels from 0 to 61"),
    ):
        write_shard(tmp_path, "train", "0", {"a": (x, y)})
        with pytest.raises(InvalidInput, match=complaint):
            femnist.read_leaf(tmp_path)


def parquet():
    """A file with the columns of the published one."""
    arrow, writing = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    drawing = pytest.importorskip("PIL.Image")

    def png(image):
        held = io.BytesIO()
        drawing.fromarray(image).save(held, "png")
        return {"bytes": held.getvalue(), "path": None}

    columns = {"image": [png(image) for image in IMAGES], "writer_id": WRITER, "hsf_id": [0] * 5, "character": LABELS}
    held = io.BytesIO()
    writing.write_table(arrow.table(columns), held)
    return held.getvalue()


PLACE = "data/train-00000-of-00001.parquet"
LOGIN = b"\n<!DOCTYPE html><html><title>Please log in</title></html>\n"


@pytest.fixture
def home(server):
    return replace(femnist.FEMNIST, mirrors=(f"{server.url}/data/",))


def test_a_page_to_log_in_is_not_kept(server, home, capsys):
    body = parquet()
    server.serve(PLACE, LOGIN)
    with pytest.raises(DataUnavailable, match="it is a web page, perhaps a login page: wanted a parquet file"):
        femnist.read_published(home)
    assert "is required from now on" not in capsys.readouterr().err
    server.serve(PLACE, body[:-9])
    with pytest.raises(DataUnavailable, match="truncated: wanted a parquet file"):
        femnist.read_published(home)
    server.serve(PLACE, body)
    assert np.array_equal(femnist.read_published(home).images, IMAGES)


def test_a_page_that_an_earlier_version_kept_is_downloaded_again(server, home, capsys):
    server.serve(PLACE, parquet())
    home.folder.mkdir(parents=True)
    kept = home.folder / home.files[0].name
    kept.write_bytes(LOGIN)
    kept.with_name(f"{kept.name}.sha256").write_text(f"{hashlib.sha256(LOGIN).hexdigest()}  {kept.name}\n")
    assert np.array_equal(femnist.read_published(home).images, IMAGES)
    assert "is a web page, perhaps a login page" in capsys.readouterr().err


def test_a_damaged_file_does_not_cost_its_checksum(server, home):
    server.serve(PLACE, parquet())
    femnist.read_published(home)
    kept = home.folder / home.files[0].name
    kept.write_bytes(LOGIN)
    server.serve(PLACE, parquet() + b"PAR1")
    with pytest.raises(DataUnavailable, match="its contents have the SHA-256"):
        femnist.read_published(home)


@pytest.mark.parametrize("inside", [b"not what it looks like", None])
def test_an_unreadable_file_is_removed_with_its_checksum(server, home, inside):
    arrow, writing = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    held = io.BytesIO()
    writing.write_table(arrow.table({"other": [1]}), held)
    body = held.getvalue() if inside is None else b"PAR1" + inside + b"PAR1"
    server.serve(PLACE, body)
    with pytest.raises(DataUnavailable, match="so it was removed with its checksum: run the command again") as caught:
        femnist.read_published(home)
    assert "\n" not in str(caught.value)
    assert list(home.folder.glob("train-*")) == []
    server.serve(PLACE, parquet())
    assert len(femnist.read_published(home).labels) == 5


def test_what_reads_it_is_asked_for_before_the_download(server, home, monkeypatch):
    server.serve(PLACE, parquet())
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InvalidInput, match=r"Reading femnist needs PIL: pip install 'corymb\[pictures\]'"):
        list(home.obtain())
    assert server.asked == []


def test_the_published_file_is_unpacked_once(server, home, capsys):
    body = parquet()
    server.serve(PLACE, body)
    for _ in range(2):
        read = femnist.read_published(home)
        assert np.array_equal(read.images, IMAGES)
        assert read.labels.tolist() == LABELS.tolist()
        assert [read.names[place] for place in read.writer] == WRITER
        assert read.test is None
    assert len(server.asked) == 1
    output = capsys.readouterr().err
    assert output.count("unpacking") == 1
    assert hashlib.sha256(body).hexdigest() in output
    leaf(cache_folder() / "femnist")
    assert femnist.read_published(home).test is not None  # LEAF's own, where it lies there
