"""`corymb data get`: download data sets, verify their checksums, and print where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from corymb.data import NAMES
from corymb.data.built_in.sources import Source
from corymb.data.fetching.progress import megabytes
from corymb.settings import InvalidInput, did_you_mean

NOTHING = "included in the library or generated: nothing to download"
FEW = 4
"""Files that are listed individually."""


def get(*names: str) -> None:
    """Download data sets that are not cached yet, and verify them.

    Parameters
    ----------
    names
        Names listed by `corymb list data`.
    """
    for name in names:
        if name not in NAMES:
            raise InvalidInput(f"There is no data set {name!r}. {did_you_mean(name, NAMES)}")
    if not names:
        raise InvalidInput("Give the name of a data set: corymb list data lists them.")
    for name in names:
        source = NAMES[name].source
        for line in [NOTHING] if source is None else obtain_lines(source):
            print(f"{name}: {line}", flush=True)


def obtain_lines(source: Source[object]) -> Iterator[str]:
    """Obtain and check a data set's files; yields a line of output for each step."""
    home = source.home
    try:
        yield from _files(source)
        source.load()
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Stopped: the partial download is kept; repeat the command to continue it.") from None
    yield "read successfully"
    if home.licence:
        yield f"licence: {home.licence}"


def _files(source: Source[object]) -> Iterator[str]:
    home = source.home
    if packed := home.packed_here:
        yield f"{packed.parent}, {megabytes(_bytes(packed))}, a packed copy under CORYMB_DATA: nothing to download"
        return
    if (home.folder / "train").is_dir():
        yield f"{home.folder}, {megabytes(_bytes(home.folder / 'train'))}, in LEAF's format: nothing to download"
        return
    kept = [found for file in home.instead if (found := home.cached(file))] or list(home.obtain())
    for one in kept[:FEW]:
        yield f"{one.path}, {megabytes(one.path.stat().st_size)}, {one.file.checksum}: verified"
    if rest := kept[FEW:]:
        total = megabytes(sum(one.path.stat().st_size for one in rest))
        yield f"{len(rest)} more files in the same folder, {total}, each with the expected SHA-256"


def _bytes(place: Path) -> int:
    """The total size of all files in the folder that contains `place`."""
    return sum(file.stat().st_size for file in place.parent.rglob("*") if file.is_file())
