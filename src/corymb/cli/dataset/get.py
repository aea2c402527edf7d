"""`corymb data get`: download data sets, compare them with their checksums, and say where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from corymb.data import NAMES
from corymb.data.built_in.sources import Source
from corymb.data.fetching.progress import megabytes
from corymb.settings import InvalidInput, did_you_mean

NOTHING = "it comes with the library, or is made: there is nothing to download"
FEW = 4
"""Files that are named one by one."""


def get(*names: str) -> None:
    """Download data sets, if they are not here yet, and check them.

    Parameters
    ----------
    names
        Names that `corymb list data` gives.
    """
    for name in names:
        if name not in NAMES:
            raise InvalidInput(f"There is no data set {name!r}. {did_you_mean(name, NAMES)}")
    if not names:
        raise InvalidInput("Give the name of a data set: corymb list data has them.")
    for name in names:
        source = NAMES[name].source
        for line in [NOTHING] if source is None else said(source):
            print(f"{name}: {line}", flush=True)


def said(source: Source[object]) -> Iterator[str]:
    """Obtain a data set's files; what they are, a line each."""
    home = source.home
    try:
        yield from _files(source)
        source.load()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Stopped: what was downloaded is kept, and gone on with the next time.") from None
    yield "it can be read"
    if home.licence:
        yield f"licence: {home.licence}"


def _files(source: Source[object]) -> Iterator[str]:
    home = source.home
    if packed := home.packed_here:
        yield f"{packed.parent}, {megabytes(_bytes(packed))}, packed under CORYMB_DATA: nothing is downloaded"
        return
    if (home.folder / "train").is_dir():
        yield f"{home.folder}, {megabytes(_bytes(home.folder / 'train'))}, as LEAF wrote it: nothing is downloaded"
        return
    kept = [found for file in home.instead if (found := home.cached(file))] or list(home.obtain())
    for one in kept[:FEW]:
        yield f"{one.path}, {megabytes(one.path.stat().st_size)}, {one.file.said}: right"
    if rest := kept[FEW:]:
        total = megabytes(sum(one.path.stat().st_size for one in rest))
        yield f"{len(rest)} more files beside it, {total}, each with the SHA-256 it should have"


def _bytes(place: Path) -> int:
    """The bytes of a file or folder and of all that lies beside it."""
    return sum(file.stat().st_size for file in place.parent.rglob("*") if file.is_file())
