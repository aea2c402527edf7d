"""Download a file over HTTP, resuming an interrupted download."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from corymb.data.fetching.progress import DownloadProgress, megabytes

MIB = 2**20
TRIES = 5
"""The most connections for one file, as long as each receives something."""
PATIENCE = 30
"""Seconds without data after which a connection counts as broken."""


class ConnectionLost(OSError):
    """A connection ended before the file did."""


class TooLarge(OSError):
    """More bytes than the file can have."""


class CannotResume(OSError):
    """The server did not send the requested rest of a file."""


def download(url: str, part: Path, *, most: int, checked: bool, progress: DownloadProgress) -> bool:
    """Download into `part`; returns whether an earlier download was resumed.

    If the server can send the rest of a file, the contents of `part` are kept; otherwise it is downloaded from the
    start. A file with an unknown checksum (`checked` false) is only resumed if the server confirms that it has not
    changed. If a connection breaks, `part` keeps what was received, for the next attempt.
    """
    tag = part.with_name(f"{part.name}.tag")
    for attempt in range(TRIES):
        condition = {} if checked else _same_as(tag)
        if condition is None:
            part.unlink(missing_ok=True)
        before = _size(part)
        try:
            resumed = _receive(url, part, tag, before, condition or {}, most, progress)
        except (HTTPError, TooLarge, CannotResume) as error:
            if before and isinstance(error, CannotResume):
                part.unlink()  # not the beginning of the server's file
                continue
            if isinstance(error, TooLarge):
                part.unlink()
            raise
        except (OSError, HTTPException):
            if _size(part) <= before or attempt == TRIES - 1:
                raise
            continue
        tag.unlink(missing_ok=True)
        return resumed or attempt > 0
    raise ConnectionLost("the server sends neither the file nor the rest of it")


def resume_offset(part: Path, *, checked: bool) -> int:
    """The number of bytes from which the next attempt resumes."""
    return _size(part) if checked or _same_as(part.with_name(f"{part.name}.tag")) else 0


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _same_as(tag: Path) -> dict[str, str] | None:
    """A header that requests the rest only if the file is unchanged; None if its version is unknown."""
    return {"If-Range": tag.read_text(encoding="ascii")} if tag.is_file() else None


def _receive(
    url: str, part: Path, tag: Path, before: int, condition: dict[str, str], most: int, progress: DownloadProgress
) -> bool:
    """Receive data over one connection; returns whether the server resumed at the end of `part`."""
    with _opened(url, before, condition) as reply:
        goes_on = before > 0 and reply.status == 206
        if goes_on and not reply.headers.get("Content-Range", "").startswith(f"bytes {before}-"):
            raise CannotResume(f"requested the bytes from {before}, got {reply.headers.get('Content-Range')}")
        start = before if goes_on else 0
        length = reply.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        if not goes_on:
            _note(reply, tag)
        progress.begin(url, start, total)
        with part.open("ab" if goes_on else "wb") as out:
            received = start + _copy(reply, out, most - start, progress)
    if total is not None and received < total:
        raise ConnectionLost(f"it broke off after {megabytes(received)} of {megabytes(total)}")
    return goes_on


def _opened(url: str, before: int, condition: dict[str, str]) -> Any:
    headers = {"User-Agent": "corymb"} | ({"Range": f"bytes={before}-"} | condition if before else {})
    try:
        return urlopen(Request(url, headers=headers), timeout=PATIENCE)
    except HTTPError as error:
        if error.code == 416:
            raise CannotResume(f"there are no bytes from {before} on") from None
        raise


def _note(reply: Any, tag: Path) -> None:
    """Store the server's ETag of the file."""
    name = reply.headers.get("ETag", "")
    if name.startswith('"') and name.isascii():
        tag.write_text(name, encoding="ascii")
    else:
        tag.unlink(missing_ok=True)


def _copy(reply: IO[bytes], out: IO[bytes], most: int, progress: DownloadProgress) -> int:
    received = 0
    while chunk := reply.read(MIB):
        received += len(chunk)
        if received > most:
            raise TooLarge(f"got more than the {most} bytes that the file can have")
        out.write(chunk)
        progress.advance(len(chunk))
    return received
