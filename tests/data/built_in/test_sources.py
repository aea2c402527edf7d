"""Downloads, from a server of our own on the loopback address."""

import gzip
import hashlib
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from corymb.data import FASHION_MNIST, MNIST, DataUnavailable
from corymb.data.built_in.fetching import Home, Published, cache_folder
from corymb.data.built_in.mnist import Images, read_packed, read_published
from corymb.data.built_in.sources import Source
from corymb.settings import InvalidInput
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


class Server:
    """Serves `replies`: path to (status, body, length that the header claims)."""

    def __init__(self):
        self.replies = {}
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                status, body, claimed = outer.replies.get(self.path, (404, b"", 0))
                self.send_response(status)
                self.send_header("Content-Length", str(claimed))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def serve(self, folder, name, body, claimed=None):
        self.replies[f"/{folder}/{name}"] = (200, body, len(body) if claimed is None else claimed)


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("CORYMB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CORYMB_DATA", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    running = Server()
    for name, data in CONTENTS.items():
        running.serve("good", name, gzip.compress(data, mtime=0))
    yield running
    running.server.shutdown()
    running.server.server_close()


def source(server, *folders):
    mirrors = tuple(f"{server.url}/{folder}/" for folder in folders)
    home = Home(name="tiny", packed=("tiny/tiny.npz",), mirrors=mirrors, files=FILES)
    return Source(home=home, classes=(), read_packed=read_packed, read_published=read_published)


def cached():
    return sorted(path.name for path in (cache_folder() / "tiny").iterdir())


def same(images):
    return all((ours == theirs).all() for ours, theirs in zip(images, IMAGES, strict=True))


def test_downloads_once(server):
    assert same(source(server, "good").load())
    assert cached() == sorted(CONTENTS)
    assert same(source(server, "good").load())
    assert len(server.asked) == 4


def test_the_next_mirror_helps_out(server):
    assert same(source(server, "absent", "good").load())


@pytest.mark.parametrize(
    ("body", "claimed", "complaint"),
    [
        (gzip.compress(CONTENTS["x_train.gz"][:-1] + b"?", mtime=0), None, "its contents have the SHA-256"),
        (gzip.compress(CONTENTS["x_train.gz"], mtime=0)[:-50], None, "cannot be unpacked"),
        (b"not found, says the page", None, "its contents have the SHA-256"),
        (b"short", 50, "got 5 of 50 bytes|IncompleteRead"),
        (bytes(2**21), None, "got more than"),
        (None, None, "HTTP Error 404"),
    ],
    ids=["another checksum", "truncated", "a page", "interrupted", "endless", "404"],
)
def test_nothing_wrong_gets_into_the_cache(server, body, claimed, complaint):
    if body is not None:
        server.serve("bad", "x_train.gz", body, claimed)
    with pytest.raises(DataUnavailable, match=complaint) as caught:
        source(server, "bad").load()
    assert "\n" not in str(caught.value)
    assert "x_train.gz" in str(caught.value)
    assert cached() == []


def test_a_damaged_file_in_the_cache_is_fetched_again(server):
    source(server, "good").load()
    (cache_folder() / "tiny" / "y_test.gz").write_bytes(b"damaged")
    assert same(source(server, "good").load())
    assert len(server.asked) == 5


def test_nobody_answers(server):
    url = server.url
    server.server.shutdown()
    server.server.server_close()
    with pytest.raises(DataUnavailable, match=f"{url}/good/: .*Connection refused"):
        source(server, "good").load()


def test_packed_arrays_come_first(server, monkeypatch, tmp_path):
    (tmp_path / "tiny").mkdir()
    np.savez(tmp_path / "tiny" / "tiny.npz", **IMAGES._asdict())
    monkeypatch.setenv("CORYMB_DATA", str(tmp_path))
    assert same(source(server, "good").load())
    assert server.asked == []


def test_packed_arrays_that_are_wrong(server, monkeypatch, tmp_path):
    (tmp_path / "tiny").mkdir()
    packed = tmp_path / "tiny" / "tiny.npz"
    monkeypatch.setenv("CORYMB_DATA", str(tmp_path))
    packed.write_bytes(b"noise")
    with pytest.raises(DataUnavailable, match="cannot be read"):
        source(server, "good").load()
    np.savez(packed, **(IMAGES._asdict() | {"x_test": np.zeros((2, 3, 3), dtype=np.uint8)}))
    with pytest.raises(InvalidInput, match="wanted uint8 images of 28 x 28"):
        source(server, "good").load()


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("CORYMB_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/corymb")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library/Caches/corymb"


@pytest.mark.parametrize("known", [MNIST, FASHION_MNIST], ids=lambda one: one.name)
def test_public_homes(known):
    assert all(mirror.startswith("http") and mirror.endswith("/") for mirror in known.home.mirrors)
    assert [file.size for file in known.home.files] == [47040016, 60008, 7840016, 10008]
    assert len(known.classes) == 10


@pytest.mark.paper
@pytest.mark.skipif("CORYMB_DATA" not in os.environ, reason="needs MNIST under CORYMB_DATA")
@pytest.mark.parametrize("known", [MNIST, FASHION_MNIST], ids=lambda one: one.name)
def test_packed_arrays_are_the_published_ones(known):
    for array, file in zip(known.load(), known.home.files, strict=True):
        assert hashlib.sha256(idx(array)).hexdigest() == file.sha256
