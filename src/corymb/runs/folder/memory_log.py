"""Client memory on disk: each commit writes the changes since the last one, or now and then everything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from corymb.core.engine import Pages
from corymb.runs.folder.checkpoints import digest, read_whole
from corymb.wire import pack, unpack

Chain = list[list[str]]
"""Files with their hashes: the first is complete, each of the others holds the changes since the previous one."""


class FolderJournal:
    """The journal of client memory in a run folder; a commit is written before its checkpoint's manifest is renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chains: dict[int, Chain] = {}
        self._now: Chain = []
        self._waiting: list[tuple[Path, bytes]] = []

    def commit(self, clock: int, keep: Collection[int], pages: Pages, whole: bool) -> None:
        """Add what clients wrote up to `clock`; afterwards only `clock` and the clocks in `keep` can be restored."""
        if pages:
            name, data = f"{clock:08d}.safetensors", pack(pages)
            self._waiting.append((self.folder / name, data))
            self._now = [*([] if whole else self._now), [name, digest(data)]]
        self.chains[clock] = self._now
        self.chains = {at: chain for at, chain in self.chains.items() if at == clock or at in keep}

    def hand_over(self) -> list[tuple[Path, bytes]]:
        """Return the pending files, which must be written before the checkpoint, and clear the list."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def read(self, clock: int) -> list[Pages]:
        """The pages that, applied in order, restore client memory at `clock`."""
        known = [at for at in self.chains if at <= clock]
        self._now = self.chains[max(known)] if known else []
        return [unpack(read_whole(self.folder / name, sha, "client memory")) for name, sha in self._now]


def files_of(chains: Sequence[Chain]) -> set[str]:
    """The names of the files that these chains need."""
    return {name for chain in chains for name, _ in chain}
