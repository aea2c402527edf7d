"""Where a data set's published files are, and the cache folder that they are downloaded into.

A file is compared with its checksum every time it is used. A file whose publisher gives none gets one when it is first
downloaded, kept beside it as `<name>.sha256`: what is used later is what was downloaded then. It must have the form of
such a file, so that the page of a network that wants a login first is not kept for ever.
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

from corymb.data.fetching.download import MIB, PATIENCE, download, kept_of
from corymb.data.fetching.progress import Shown, megabytes, say
from corymb.data.readers.idx import gunzip
from corymb.settings import InvalidInput, require

_KINDS = {"sha256": "SHA-256", "md5": "MD5"}
_OUR_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
"""What no other mirror helps against."""


class DataUnavailable(OSError):
    """Data that are not here and could not be fetched: one line with what was tried and what to do."""


class NotTheForm(InvalidInput):
    """A file that is of another kind than the one that is published."""


class Form(NamedTuple):
    """How files of a kind begin and end."""

    name: str
    begins: bytes
    ends: bytes

    def check(self, contents: bytes) -> None:
        """Refuse what is no such file."""
        if contents.startswith(self.begins) and contents.endswith(self.ends):
            return
        page = contents.lstrip()[:1] == b"<"
        found = "is a web page, such as one to log in" if page else f"begins with {contents[:8]!r} or is cut short"
        raise NotTheForm(f"it {found}: wanted a {self.name}")


PARQUET = Form("parquet file", b"PAR1", b"PAR1")


class Published(NamedTuple):
    """A published file: its name, the most bytes it can have, and its checksum."""

    name: str
    size: int
    digest: str = ""
    """Empty where none is published: then the first download's is kept."""
    algorithm: Literal["sha256", "md5"] = "sha256"
    unpacked: bool = False
    """Whether size and checksum are of the contents when gunzipped."""
    form: Form | None = None
    """What is checked of a file without a published checksum before it is kept."""

    @property
    def said(self) -> str:
        """The checksum, in words."""
        return f"{_KINDS[self.algorithm]} {self.digest}{' of its contents' if self.unpacked else ''}"


class Kept(NamedTuple):
    """A file in the cache that was compared with its checksum."""

    path: Path
    contents: bytes
    file: Published
    """With the checksum that was found."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """A data set's public home."""

    name: str
    packed: tuple[str, ...]
    """Where it may lie under `CORYMB_DATA`: files or folders, the first of which that is there is read."""
    mirrors: tuple[str, ...] = ()
    """Addresses of the folder with the published files, tried in turn."""
    files: tuple[Published, ...] = ()
    instead: tuple[Published, ...] = ()
    """Files of another form that are read instead where they lie in the cache."""
    licence: str = ""
    """What the publisher says."""
    needs: tuple[str, ...] = ()
    """Modules without which the files cannot be read: they are asked for before anything is downloaded."""
    extra: str = ""
    """The extra of this package that installs them."""

    @property
    def folder(self) -> Path:
        """Where published files are kept once they have been downloaded."""
        return cache_folder() / self.name

    @property
    def packed_here(self) -> Path | None:
        """The packed data under the folder that the environment variable `CORYMB_DATA` names, if they are there."""
        root = Path(os.environ.get("CORYMB_DATA") or os.devnull)
        return next((root / place for place in self.packed if (root / place).exists()), None)

    def obtain(self, *files: Published) -> Iterator[Kept]:
        """Published files (all, if none is named), from the cache if they are there and right, else from a mirror."""
        wanted = files or self.files
        with Shown(self.name, len(wanted)) as shown:
            for file in wanted:
                yield self.cached(file) or self._fetch(file, shown)

    def cached(self, file: Published) -> Kept | None:
        """A published file, if it is in the cache and right; one that is wrong is removed."""
        place = self.folder / file.name
        if not place.is_file():
            return None
        try:
            return _pinned(_verified(place, place, file), file)
        except InvalidInput as error:
            say(f"{place}: {error}; it is downloaded again")
            place.unlink()  # damaged, or left by an older version: as good as missing
            if isinstance(error, NotTheForm):
                _pin(place).unlink(missing_ok=True)  # it has the checksum that was kept: that was of no such file
            return None

    def check_needs(self) -> None:
        """Refuse to go on without what the files are read with."""
        missing = [module for module in self.needs if find_spec(module) is None]
        require(not missing, f"Reading {self.name} needs {' and '.join(missing)}: pip install 'corymb[{self.extra}]'.")

    def dropped(self, kept: Kept, error: Exception) -> DataUnavailable:
        """What to raise when a file cannot be read whose checksum is that of the first download: both are removed."""
        kept.path.unlink(missing_ok=True)
        _pin(kept.path).unlink(missing_ok=True)
        return DataUnavailable(
            f"{self.name}: what was downloaded as {kept.file.name} cannot be read ({_reason(error)}): it and its "
            "checksum are removed; run the command again to download it anew."
        )

    def _fetch(self, file: Published, shown: Shown) -> Kept:
        self.check_needs()
        problems = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _one_at_a_time(self.folder):
                if found := self.cached(file):  # by whom we waited for
                    return found
                for mirror in self.mirrors:
                    try:
                        return self._fetch_from(mirror + file.name, file, shown)
                    except (OSError, HTTPException, InvalidInput) as error:
                        if getattr(error, "errno", None) in _OUR_DISK:
                            raise
                        problems.append(f"{mirror}{file.name}: {_reason(error)}")
        except OSError as error:
            raise DataUnavailable(
                f"{self.name}: {file.name} cannot be kept in {self.folder} ({_reason(error)}): make room there, or set "
                "CORYMB_CACHE to a folder that can be written to."
            ) from None
        raise DataUnavailable(
            f"{self.name}: {file.name} is not in {self.folder} and could not be downloaded ({'; '.join(problems)}). "
            f"{self._what_to_do(file)}"
        )

    def _what_to_do(self, file: Published) -> str:
        """How to come by a file that could not be downloaded."""
        if kept := kept_of(_part(self.folder / file.name), checked=bool(file.digest)):
            return f"{megabytes(kept)} are kept: run the command again to go on with them."
        alone = len(self.files) == 1
        return (
            f"If this machine is offline, download {'it' if alone else f'all {len(self.files)} files'} elsewhere and "
            f"put {'it' if alone else 'them'} there, or set CORYMB_DATA to a folder with {self.packed[0]}."
        )

    def _fetch_from(self, url: str, file: Published, shown: Shown) -> Kept:
        """Download beside the file's place, going on with what an earlier attempt left; check, and rename."""
        place = self.folder / file.name
        part = _part(place)
        for _ in range(2):  # once more from the beginning, if what was gone on with turns out to be wrong
            resumed = download(url, part, most=file.size + MIB, checked=bool(file.digest), shown=shown)
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
    """Where downloads are kept: `CORYMB_CACHE`, or `corymb` in the user's cache folder."""
    if named := os.environ.get("CORYMB_CACHE"):
        return Path(named)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local") / "corymb"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/corymb"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "corymb"


def _verified(path: Path, place: Path, file: Published) -> Kept:
    """What lies at `path`, to be kept at `place`, compared with its checksum, or with the one kept at first."""
    contents = gunzip(path, most=file.size) if file.unpacked else path.read_bytes()
    pin = _pin(place)
    wanted = file.digest or (pin.read_text(encoding="ascii").split(" ")[0] if pin.is_file() else "")
    found = hashlib.new(file.algorithm, contents, usedforsecurity=False).hexdigest()
    kind = _KINDS[file.algorithm]
    require(not wanted or found == wanted, f"its contents have the {kind} {found[:12]}..., wanted {wanted[:12]}...")
    if not file.digest and file.form is not None:
        file.form.check(contents)
    return Kept(place, contents, file._replace(digest=found))


def _pinned(kept: Kept, file: Published) -> Kept:
    """The same; of a file whose checksum is not published, the one found is kept if it is the first."""
    pin = _pin(kept.path)
    if not file.digest and not pin.is_file():
        pin.write_text(f"{kept.file.digest}  {file.name}\n", encoding="ascii")
        say(f"{file.name}: no checksum is published; {kept.file.said} is kept from here on")
    return kept


def _pin(place: Path) -> Path:
    """Where the checksum of a file's first version is kept."""
    return place.with_name(f"{place.name}.sha256")


def _part(place: Path) -> Path:
    """Where a file is downloaded to before it is checked."""
    return place.with_name(f"{place.name}.part")


def _reason(error: Exception) -> str:
    """What went wrong, on one line."""
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        cause = error.reason
        said = "the address cannot be looked up" if isinstance(cause, gaierror) else getattr(cause, "strerror", None)
        return f"no connection: {said or cause}"
    if isinstance(error, TimeoutError):
        return f"no connection: nothing came for {PATIENCE} seconds"
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Wait until no other process downloads into a folder."""
    try:
        import fcntl
    except ImportError:  # not Unix: two at once may spoil each other's part of a file, which its checksum tells
        yield
        return
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"waiting for another process that downloads into {folder}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
