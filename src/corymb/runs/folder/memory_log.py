"""Client memory on disk: a file for what changed since the last commit, now and then one with everything."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from corymb.core.engine import Pages
from corymb.runs.folder.checkpoints import digest, read_whole
from corymb.wire import pack, unpack

Chain = list[list[str]]
"""Files and their hashes; the first one holds everything, the others what changed, in order."""


class FolderJournal:
    """The journal of a run folder. Commits are handed over as bytes and written before their checkpoint is renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.chains: dict[int, Chain] = {}
        self._now: Chain = []
        self._waiting: list[tuple[Path, bytes]] = []

    def commit(self, clock: int, keep: Collection[int], pages: Pages, whole: bool) -> None:
        """What was written up to `clock` is ready for its checkpoint; only the clocks in `keep` stay reachable."""
        if pages:
            name, data = f"{clock:08d}.safetensors", pack(pages)
            self._waiting.append((self.folder / name, data))
            self._now = [*([] if whole else self._now), [name, digest(data)]]
        self.chains[clock] = self._now
        self.chains = {at: chain for at, chain in self.chains.items() if at == clock or at in keep}

    def hand_over(self) -> list[tuple[Path, bytes]]:
        """The files that must be there before the checkpoint is."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def read(self, clock: int) -> list[Pages]:
        """What leads to the state at `clock`."""
        known = [at for at in self.chains if at <= clock]
        self._now = self.chains[max(known)] if known else []
        return [unpack(read_whole(self.folder / name, sha, "client memory")) for name, sha in self._now]


def files_of(chains: Sequence[Chain]) -> set[str]:
    """The names of the files that some chains need."""
    return {name for chain in chains for name, _ in chain}
