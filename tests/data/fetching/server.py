"""A server on the loopback address that can drop connections, resume downloads and change its files."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest


class Reply(NamedTuple):
    """What is served at an address."""

    body: bytes
    status: int = 200
    claimed: int | None = None
    """The length that the header claims, if it is not the true one."""
    ranges: bool = True
    """Whether the rest of the body can be asked for."""
    breaks: tuple[int, ...] = ()
    """After how many bytes the first connections break off."""
    tag: str = ""


class Server:
    """Serves `replies`, by path, and keeps what was asked for, with the bytes it was asked from."""

    def __init__(self):
        self.replies = {}
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                wanted = self.headers.get("Range", "")
                start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                outer.asked.append((self.path, start))
                reply = outer.replies.get(self.path, Reply(b"", 404))
                same = self.headers.get("If-Range", reply.tag) == reply.tag
                start = start if reply.ranges and same else 0
                if start and start >= len(reply.body):
                    self.send_error(416)
                    return
                body = reply.body[start:]
                self.send_response(206 if start else reply.status)
                self.send_header("Content-Length", str(len(body) if reply.claimed is None else reply.claimed))
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(reply.body) - 1}/{len(reply.body)}")
                if reply.tag:
                    self.send_header("ETag", reply.tag)
                self.end_headers()
                if reply.breaks:
                    outer.replies[self.path] = reply._replace(breaks=reply.breaks[1:])
                    body = body[: reply.breaks[0]]
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def serve(self, path, body, **how):
        self.replies[f"/{path}"] = Reply(body, **how)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("CORYMB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CORYMB_DATA", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    running = Server()
    yield running
    running.close()
