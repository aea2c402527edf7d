"""Published files: downloaded once into a cache folder, and compared with their checksum every time they are used."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Literal, NamedTuple
from urllib.request import Request, urlopen

from corymb.data.readers.idx import gunzip
from corymb.settings import InvalidInput, require

_CHUNK = 2**20


class DataUnavailable(OSError):
    """Data that are not here and could not be fetched: one line with what was tried and what to do."""


class Published(NamedTuple):
    """A published file: its name, the most bytes it can have, and its checksum."""

    name: str
    size: int
    digest: str
    algorithm: Literal["sha256", "md5"] = "sha256"
    unpacked: bool = False
    """Whether size and checksum are of the contents when gunzipped."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """A data set's public home."""

    name: str
    packed: tuple[str, ...]
    """Where it may lie under `CORYMB_DATA`: files or folders, the first of which that is there is read."""
    mirrors: tuple[str, ...] = ()
    """Addresses of the folder with the published files, tried in turn."""
    files: tuple[Published, ...] = ()

    @property
    def folder(self) -> Path:
        """Where published files are kept once they have been downloaded."""
        return cache_folder() / self.name

    @property
    def packed_here(self) -> Path | None:
        """The packed data under the folder that the environment variable `CORYMB_DATA` names, if they are there."""
        root = Path(os.environ.get("CORYMB_DATA") or os.devnull)
        return next((root / place for place in self.packed if (root / place).exists()), None)

    def contents(self, file: Published) -> bytes:
        """A published file's contents: from the cache if they are there and right, else from a mirror."""
        found = self.cached(file)
        return self._download(file) if found is None else found

    def cached(self, file: Published) -> bytes | None:
        """A published file's contents, if they are in the cache and right; a file that is wrong is removed."""
        place = self.folder / file.name
        if not place.is_file():
            return None
        try:
            return _verified(place, file)
        except InvalidInput:
            place.unlink()  # damaged, or left by an older version: as good as missing
            return None

    def _download(self, file: Published) -> bytes:
        problems = []
        for mirror in self.mirrors:
            try:
                return _fetch(mirror + file.name, file, self.folder / file.name)
            except (OSError, HTTPException, InvalidInput) as error:
                problems.append(f"{mirror}: {error}")
        raise DataUnavailable(
            f"{self.name}: {file.name} could not be downloaded ({'; '.join(problems)}). Put it into {self.folder}, or "
            f"set CORYMB_DATA to a folder with {self.packed[0]}."
        )


def cache_folder() -> Path:
    """Where downloads are kept: `CORYMB_CACHE`, or `corymb` in the user's cache folder."""
    if named := os.environ.get("CORYMB_CACHE"):
        return Path(named)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "corymb"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/corymb"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corymb"


def _verified(path: Path, file: Published) -> bytes:
    contents = gunzip(path, most=file.size) if file.unpacked else path.read_bytes()
    found = hashlib.new(file.algorithm, contents, usedforsecurity=False).hexdigest()
    kind = {"sha256": "SHA-256", "md5": "MD5"}[file.algorithm]
    require(found == file.digest, f"its contents have the {kind} {found[:12]}..., wanted {file.digest[:12]}...")
    return contents


def _fetch(url: str, file: Published, place: Path) -> bytes:
    """Download beside `place`, check, and only then rename into it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".download-") as folder:
        partial = Path(folder) / file.name
        with urlopen(Request(url, headers={"User-Agent": "corymb"}), timeout=30) as reply, partial.open("wb") as out:
            expected = reply.headers.get("Content-Length")
            received = _copy(reply, out, most=file.size + _CHUNK)
        if expected is not None and received != int(expected):
            raise DataUnavailable(f"got {received} of {expected} bytes")
        contents = _verified(partial, file)
        partial.replace(place)
    return contents


def _copy(reply: IO[bytes], out: IO[bytes], most: int) -> int:
    received = 0
    while chunk := reply.read(_CHUNK):
        received += len(chunk)
        if received > most:
            raise DataUnavailable(f"got more than the {most} bytes that the file can have")
        out.write(chunk)
    return received
