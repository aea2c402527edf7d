"""The published files of a data set, and the cache folder that they are downloaded into.

A file is verified against its checksum every time it is used. If its publisher gives none, the checksum of the first
download is stored next to it as `<name>.sha256`, so that later uses get the same file. Such a file must also have the
right format, so that the login page of a network is not cached in its place.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from socket import gaierror
from typing import Literal, NamedTuple
from urllib.error import HTTPError, URLError

from corymb.data.fetching.download import MIB, PATIENCE, download, resume_offset
from corymb.data.fetching.progress import DownloadProgress, megabytes, say
from corymb.data.readers.idx import gunzip
from corymb.settings import InvalidInput, require

_KINDS = {"sha256": "SHA-256", "md5": "MD5"}
_OUR_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
"""Errors of the local disk, for which no other mirror helps."""


class DataUnavailable(OSError):
    """Data that are not available locally and could not be downloaded, with a one-line explanation and remedy."""


class WrongFormat(InvalidInput):
    """A file whose format differs from that of the published one."""


class Form(NamedTuple):
    """A file format, recognised by its first and last bytes."""

    name: str
    begins: bytes
    ends: bytes

    def check(self, contents: bytes) -> None:
        """Reject contents of another format."""
        if contents.startswith(self.begins) and contents.endswith(self.ends):
            return
        page = contents.lstrip()[:1] == b"<"
        found = "is a web page, perhaps a login page" if page else f"begins with {contents[:8]!r} or is truncated"
        raise WrongFormat(f"it {found}: wanted a {self.name}")


PARQUET = Form("parquet file", b"PAR1", b"PAR1")


class Published(NamedTuple):
    """A published file: its name, its maximum size in bytes, and its checksum."""

    name: str
    size: int
    digest: str = ""
    """Empty if none is published; that of the first download is then stored."""
    algorithm: Literal["sha256", "md5"] = "sha256"
    unpacked: bool = False
    """Whether size and checksum refer to the gunzipped contents."""
    form: Form | None = None
    """The format that is checked for a file without a published checksum."""

    @property
    def checksum(self) -> str:
        """The checksum as text."""
        return f"{_KINDS[self.algorithm]} {self.digest}{' of its contents' if self.unpacked else ''}"


class CachedFile(NamedTuple):
    """A verified file in the cache."""

    path: Path
    contents: bytes
    file: Published
    """The file with its actual checksum."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """Where a data set is published, and how it is cached."""

    name: str
    packed: tuple[str, ...]
    """Its possible locations under `CORYMB_DATA`, files or folders; the first that exists is read."""
    mirrors: tuple[str, ...] = ()
    """URLs of the folder with the published files, tried in turn."""
    files: tuple[Published, ...] = ()
    instead: tuple[Published, ...] = ()
    """Files in another format that are read instead if they are in the cache."""
    licence: str = ""
    """The licence stated by the publisher."""
    needs: tuple[str, ...] = ()
    """Modules needed to read the files; checked before anything is downloaded."""
    extra: str = ""
    """The extra of this package that installs those modules."""

    @property
    def folder(self) -> Path:
        """The cache folder of the downloaded files."""
        return cache_folder() / self.name

    @property
    def packed_here(self) -> Path | None:
        """The packed data under the folder given by the environment variable `CORYMB_DATA`; None if there are none."""
        root = Path(os.environ.get("CORYMB_DATA") or os.devnull)
        return next((root / place for place in self.packed if (root / place).exists()), None)

    def obtain(self, *files: Published) -> Iterator[CachedFile]:
        """Yield published files (by default all), from the cache if they are valid there, else from a mirror."""
        wanted = files or self.files
        with DownloadProgress(self.name, len(wanted)) as progress:
            for file in wanted:
                yield self.cached(file) or self._fetch(file, progress)

    def cached(self, file: Published) -> CachedFile | None:
        """A published file, if it is valid in the cache; an invalid one is removed."""
        place = self.folder / file.name
        if not place.is_file():
            return None
        try:
            return _pinned(_verified(place, place, file), file)
        except InvalidInput as error:
            say(f"{place}: {error}; downloading it again")
            place.unlink()  # damaged, or left by an older version
            if isinstance(error, WrongFormat):
                _pin(place).unlink(missing_ok=True)  # the stored checksum is of a file with the wrong format
            return None

    def check_needs(self) -> None:
        """Raise if a module needed to read the files is missing."""
        missing = [module for module in self.needs if find_spec(module) is None]
        require(not missing, f"Reading {self.name} needs {' and '.join(missing)}: pip install 'corymb[{self.extra}]'.")

    def dropped(self, kept: CachedFile, error: Exception) -> DataUnavailable:
        """Remove an unreadable file and its stored checksum; returns the error to raise."""
        kept.path.unlink(missing_ok=True)
        _pin(kept.path).unlink(missing_ok=True)
        return DataUnavailable(
            f"{self.name}: the downloaded {kept.file.name} cannot be read ({_reason(error)}), so it was removed with "
            "its checksum: run the command again to download it again."
        )

    def _fetch(self, file: Published, progress: DownloadProgress) -> CachedFile:
        self.check_needs()
        problems = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(self.folder):
                if found := self.cached(file):  # downloaded by the process that held the lock
                    return found
                for mirror in self.mirrors:
                    try:
                        return self._fetch_from(mirror + file.name, file, progress)
                    except (OSError, HTTPException, InvalidInput) as error:
                        if getattr(error, "errno", None) in _OUR_DISK:
                            raise
                        problems.append(f"{mirror}{file.name}: {_reason(error)}")
        except OSError as error:
            raise DataUnavailable(
                f"{self.name}: {file.name} cannot be stored in {self.folder} ({_reason(error)}): free some space, or "
                "set CORYMB_CACHE to a writable folder."
            ) from None
        raise DataUnavailable(
            f"{self.name}: {file.name} is not in {self.folder} and could not be downloaded ({'; '.join(problems)}). "
            f"{self._what_to_do(file)}"
        )

    def _what_to_do(self, file: Published) -> str:
        """Advice on how to get a file that could not be downloaded."""
        if kept := resume_offset(_part(self.folder / file.name), checked=bool(file.digest)):
            return f"{megabytes(kept)} are kept: run the command again to continue."
        alone = len(self.files) == 1
        return (
            f"If this machine is offline, download {'it' if alone else f'all {len(self.files)} files'} elsewhere and "
            f"put {'it' if alone else 'them'} there, or set CORYMB_DATA to a folder with {self.packed[0]}."
        )

    def _fetch_from(self, url: str, file: Published, progress: DownloadProgress) -> CachedFile:
        """Download to a partial file, resuming an earlier attempt, then verify it and rename it."""
        place = self.folder / file.name
        part = _part(place)
        for _ in range(2):  # once more from the start, if a resumed download turns out to be wrong
            resumed = download(url, part, most=file.size + MIB, checked=bool(file.digest), progress=progress)
            try:
                kept = _verified(part, place, file)
            except InvalidInput:
                part.unlink()
                if not resumed:
                    raise
                continue
            part.replace(place)
            return _pinned(kept, file)
        raise AssertionError("a download that was not resumed ends above")


def cache_folder() -> Path:
    """The folder for downloads: `CORYMB_CACHE`, or `corymb` in the user's cache folder."""
    if named := os.environ.get("CORYMB_CACHE"):
        return Path(named)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "corymb"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/corymb"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corymb"


def _verified(path: Path, place: Path, file: Published) -> CachedFile:
    """Verify the file at `path`, to be stored at `place`, against its published or stored checksum."""
    contents = gunzip(path, most=file.size) if file.unpacked else path.read_bytes()
    pin = _pin(place)
    wanted = file.digest or (pin.read_text(encoding="ascii").split(" ")[0] if pin.is_file() else "")
    found = hashlib.new(file.algorithm, contents, usedforsecurity=False).hexdigest()
    kind = _KINDS[file.algorithm]
    require(not wanted or found == wanted, f"its contents have the {kind} {found[:12]}..., wanted {wanted[:12]}...")
    if not file.digest and file.form is not None:
        file.form.check(contents)
    return CachedFile(place, contents, file._replace(digest=found))


def _pinned(kept: CachedFile, file: Published) -> CachedFile:
    """Return `kept`, and store its checksum if none is published or stored yet."""
    pin = _pin(kept.path)
    if not file.digest and not pin.is_file():
        pin.write_text(f"{kept.file.digest}  {file.name}\n", encoding="ascii")
        say(f"{file.name}: no checksum is published; {kept.file.checksum} is required from now on")
    return kept


def _pin(place: Path) -> Path:
    """The file that stores the checksum of the first download."""
    return place.with_name(f"{place.name}.sha256")


def _part(place: Path) -> Path:
    """The partial file of a download that is not verified yet."""
    return place.with_name(f"{place.name}.part")


def _reason(error: Exception) -> str:
    """The error as one line."""
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        cause = error.reason
        known = "the host name cannot be resolved" if isinstance(cause, gaierror) else getattr(cause, "strerror", None)
        return f"no connection: {known or cause}"
    if isinstance(error, TimeoutError):
        return f"no connection: nothing received for {PATIENCE} seconds"
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other process downloads into a folder."""
    try:
        import fcntl
    except ImportError:  # not Unix: two processes may corrupt a partial file, which its checksum detects
        yield
        return
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"waiting for another process that is downloading into {folder}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
