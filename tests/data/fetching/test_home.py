"""Published files and their cache."""

import errno
import gzip
import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import gaierror
from unittest.mock import Mock
from urllib.error import URLError

import numpy as np
import pytest

from corymb.data import DataUnavailable
from corymb.data.built_in.mnist import Images, read_packed, read_published
from corymb.data.built_in.sources import Source
from corymb.data.fetching.home import Home, Published, cache_folder
from corymb.settings import InvalidInput
from tests.data.fetching.server import server as server
from tests.data.readers.test_idx import idx

RNG = np.random.default_rng(0)
IMAGES = Images(
    RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8),
    np.arange(6, dtype=np.uint8),
    RNG.integers(0, 256, (2, 28, 28), dtype=np.uint8),
    np.arange(2, dtype=np.uint8),
)
CONTENTS = {f"{name}.gz": idx(array) for name, array in IMAGES._asdict().items()}
FILES = tuple(
    Published(name, len(data), hashlib.sha256(data).hexdigest(), unpacked=True) for name, data in CONTENTS.items()
)
BODY = bytes(range(256)) * 20


@pytest.fixture
def images(server):
    for name, data in CONTENTS.items():
        server.serve(f"good/{name}", gzip.compress(data, mtime=0))
    return server


def home(server, *folders, files=FILES):
    mirrors = tuple(f"{server.url}/{folder}/" for folder in folders)
    return Home(name="tiny", packed=("tiny/tiny.npz",), mirrors=mirrors, files=files)


def source(server, *folders):
    return Source(home=home(server, *folders), classes=(), read_packed=read_packed, read_published=read_published)


def cached():
    """The files in the cache, except for the lock and partial downloads."""
    names = (path.name for path in (cache_folder() / "tiny").iterdir())
    return sorted(name for name in names if name != ".lock" and ".part" not in name)


def same(images):
    return all((ours == theirs).all() for ours, theirs in zip(images, IMAGES, strict=True))


def test_downloads_once(images, capsys):
    assert same(source(images, "good").load())
    assert cached() == sorted(CONTENTS)
    assert same(source(images, "good").load())
    assert len(images.asked) == 4
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 1
    assert output[0].startswith(f"downloading tiny (4 files) from {images.url}/good/, x_train.gz: ")


def test_the_next_mirror_helps_out(images):
    assert same(source(images, "absent", "good").load())


@pytest.mark.parametrize(
    ("body", "how", "complaint"),
    [
        (gzip.compress(CONTENTS["x_train.gz"][:-1] + b"?", mtime=0), {}, "its contents have the SHA-256"),
        (gzip.compress(CONTENTS["x_train.gz"], mtime=0)[:-50], {}, "cannot be unpacked"),
        (b"not found, says the page", {}, "its contents have the SHA-256"),
        (b"short", {"claimed": 50}, "it broke off after 0.0 kB of 0.1 kB"),
        (bytes(2**21), {}, "got more than"),
        (None, {}, "HTTP Error 404"),
    ],
    ids=["another checksum", "truncated", "a page", "interrupted", "endless", "404"],
)
def test_nothing_wrong_gets_into_the_cache(server, body, how, complaint):
    if body is not None:
        server.serve("bad/x_train.gz", body, **how)
    with pytest.raises(DataUnavailable, match=complaint) as caught:
        source(server, "bad").load()
    assert "\n" not in str(caught.value)
    assert "x_train.gz" in str(caught.value)
    assert cached() == []


def test_a_broken_download_is_resumed_from_another_mirror(server):
    file = Published("file", len(BODY), hashlib.sha256(BODY).hexdigest())
    server.serve("one/file", BODY, breaks=(1000, *(0,) * 9))
    server.serve("two/file", BODY)
    (kept,) = home(server, "one", "two", files=(file,)).obtain()
    assert kept.contents == BODY
    assert server.asked == [("/one/file", 0), ("/one/file", 1000), ("/two/file", 1000)]
    assert cached() == ["file"]


def test_what_was_left_and_turns_out_wrong_is_downloaded_again(server):
    file = Published("file", len(BODY), hashlib.md5(BODY, usedforsecurity=False).hexdigest(), "md5")
    server.serve("one/file", BODY)
    folder = cache_folder() / "tiny"
    folder.mkdir(parents=True)
    (folder / "file.part").write_bytes(b"x" * 100)
    (kept,) = home(server, "one", files=(file,)).obtain()
    assert kept.contents == BODY
    assert kept.file.checksum == f"MD5 {file.digest}"
    assert [start for _, start in server.asked] == [100, 0]


def test_a_file_without_published_checksum_is_pinned_and_reported(server, capsys):
    file = Published("file", len(BODY))
    server.serve("one/file", BODY)
    place = home(server, "one", files=(file,))
    (kept,) = place.obtain()
    digest = hashlib.sha256(BODY).hexdigest()
    assert kept.file.digest == digest
    assert f"no checksum is published; SHA-256 {digest} is required" in capsys.readouterr().err
    assert cached() == ["file", "file.sha256"]
    kept.path.write_bytes(b"damaged")
    (again,) = place.obtain()
    assert again.contents == BODY
    server.serve("one/file", BODY + b"changed")
    kept.path.unlink()
    with pytest.raises(DataUnavailable, match="wanted " + digest[:12]):
        list(place.obtain())
    kept.path.with_name("file.sha256").unlink()
    kept.path.write_bytes(b"put there by hand")
    assert next(place.obtain()).contents == b"put there by hand"
    assert kept.path.with_name("file.sha256").read_text().endswith("  file\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no lock there")
def test_two_at_once_download_once(server, capsys):
    file = Published("file", len(BODY), hashlib.sha256(BODY).hexdigest())
    server.serve("one/file", BODY)
    with ThreadPoolExecutor(4) as pool:
        places = [home(server, "one", files=(file,)) for _ in range(4)]
        assert all(kept.contents == BODY for kept in pool.map(lambda place: next(place.obtain()), places))
    assert len(server.asked) == 1


def test_a_damaged_file_in_the_cache_is_fetched_again(images, capsys):
    source(images, "good").load()
    (cache_folder() / "tiny" / "y_test.gz").write_bytes(b"damaged")
    assert same(source(images, "good").load())
    assert len(images.asked) == 5
    assert "y_test.gz: its contents have the SHA-256" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_reported(images):
    url = images.url
    images.close()
    with pytest.raises(DataUnavailable, match=f"{url}/good/x_train.gz: no connection: Connection refused") as caught:
        source(images, "good").load()
    assert "If this machine is offline, download all 4 files elsewhere and put them there" in str(caught.value)
    assert str(cache_folder() / "tiny") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_offline_in_plain_words(monkeypatch, server):
    away = Mock(side_effect=URLError(gaierror(-2, "Name or service not known")))
    monkeypatch.setattr("corymb.data.fetching.download.urlopen", away)
    with pytest.raises(DataUnavailable, match="no connection: the host name cannot be resolved") as caught:
        source(server, "good").load()
    assert "urlopen" not in str(caught.value)
    assert "Errno" not in str(caught.value)
    away.side_effect = TimeoutError("timed out")
    with pytest.raises(DataUnavailable, match="no connection: nothing received for 30 seconds"):
        source(server, "good").load()


@pytest.mark.parametrize("tag", ["", '"one"'])
@pytest.mark.parametrize("digest", ["", hashlib.sha256(BODY * 500).hexdigest()])
def test_the_bytes_received_before_a_connection_broke_are_reported(server, tag, digest):
    """A file that may have changed is downloaded from the start, so nothing of it is kept."""
    server.serve("one/file", BODY * 500, breaks=(100_000,) * 9, tag=tag)
    place = home(server, "one", files=(Published("file", len(BODY) * 500, digest),))
    with pytest.raises(DataUnavailable, match=r"it broke off after 0\.[15] MB of 2\.6 MB") as caught:
        list(place.obtain())
    goes_on = bool(tag or digest)
    assert ("0.5 MB are kept: run the command again" in str(caught.value)) is goes_on
    assert ("If this machine is offline" in str(caught.value)) is not goes_on


def test_a_full_disk_and_a_cache_that_is_not_a_folder_are_reported(images, monkeypatch, tmp_path):
    with monkeypatch.context() as full:
        full.setattr("corymb.data.fetching.download._copy", Mock(side_effect=OSError(errno.ENOSPC, "No space left")))
        with pytest.raises(DataUnavailable, match=r"cannot be stored in .*No space left.*: free some space") as caught:
            source(images, "good", "elsewhere").load()
    assert "offline" not in str(caught.value)
    assert len(images.asked) == 1  # no other mirror is tried
    (tmp_path / "file").touch()
    monkeypatch.setenv("CORYMB_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataUnavailable, match="set CORYMB_CACHE to a writable folder"):
        source(images, "good").load()


def test_a_bar_in_a_terminal(images, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert same(source(images, "good").load())
    output = capsys.readouterr().err
    assert "tiny: x_train.gz" in output
    assert "downloading" not in output


def test_packed_arrays_come_first(images, monkeypatch, tmp_path):
    (tmp_path / "tiny").mkdir()
    np.savez(tmp_path / "tiny" / "tiny.npz", **IMAGES._asdict())
    monkeypatch.setenv("CORYMB_DATA", str(tmp_path))
    assert same(source(images, "good").load())
    assert images.asked == []


def test_packed_arrays_that_are_wrong(images, monkeypatch, tmp_path):
    (tmp_path / "tiny").mkdir()
    packed = tmp_path / "tiny" / "tiny.npz"
    monkeypatch.setenv("CORYMB_DATA", str(tmp_path))
    objects = IMAGES._asdict() | {"x_test": np.array([None])}
    for write, complaint in (
        (lambda: packed.write_bytes(b"noise"), "tiny.npz cannot be read as npz: write it again"),
        (lambda: np.savez(packed, x_train=IMAGES.x_train), "has no array 'y_train'"),
        (lambda: np.savez(packed, **objects, allow_pickle=True), "save plain arrays, not Python objects"),
    ):
        write()
        with pytest.raises(DataUnavailable, match=complaint) as caught:
            source(images, "good").load()
        assert "allow_pickle" not in str(caught.value)
        assert str(caught.value).endswith("Pack it again, or unset CORYMB_DATA.")
    np.savez(packed, **(IMAGES._asdict() | {"x_test": np.zeros((2, 3, 3), dtype=np.uint8)}))
    with pytest.raises(InvalidInput, match="wanted uint8 images of 28 x 28"):
        source(images, "good").load()


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("CORYMB_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/corymb")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library/Caches/corymb"
