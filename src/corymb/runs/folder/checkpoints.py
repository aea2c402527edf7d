"""Checkpoints: snapshots in safetensors parts, each named by its hash, and a JSON manifest that is renamed into place.

A part that does not change between checkpoints is stored once. A manifest lists its parts, its files of client memory
and its own hash, so that a truncated or edited checkpoint, or one from another run, is detected.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from corymb.core.snapshot import Snapshot
from corymb.messages import snapshot_from_tree, snapshot_to_tree
from corymb.trees import map_tensors, nbytes
from corymb.wire import WireError, pack, unpack

FORMAT = 1
LARGE = 64 * 2**10
"""A piece of a snapshot of at least this many bytes becomes a separate part."""
KEPT = 2
"""How many of the latest checkpoints are kept, besides the best one."""


class Refused(ValueError):
    """A checkpoint that cannot be used, with the reason in one line."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a checkpoint."""

    run: str
    clock: int
    rounds: int
    """The number of lines of rounds.jsonl that belong to it."""
    audit: int
    """The number of lines of audit.jsonl that belong to it."""
    parts: dict[str, str]
    """Piece of the snapshot -> hash."""
    memory: list[list[str]] = field(default_factory=list)
    """Files of client memory with their hashes, in the order in which they are applied."""
    ledger: dict[str, int] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    """`Engine.describe`: everything that changes bits."""
    seconds: float = 0.0
    score: float | None = None
    """Test score of an evaluated round, negated where lower is better."""
    versions: dict[str, list[int]] = field(default_factory=dict)
    """For each remote host, the clock and number of the last call accepted from it."""
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """JSON that contains the hash of everything else in it."""
        plain = asdict(self)
        return json.dumps({**plain, "sha256": _digest_of(plain)}, indent=1, allow_nan=False).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Manifest:
        """Parse a manifest; raises `Refused` if it is truncated or edited."""
        try:
            plain = json.loads(data)
            recorded = plain.pop("sha256")
            if plain.get("format") != FORMAT:
                raise Refused(f"it has format {plain.get('format')}, but this version reads {FORMAT}")
            if recorded != _digest_of(plain):
                raise Refused("its manifest was changed")
            return Manifest(**plain)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise error if isinstance(error, Refused) else Refused("its manifest is incomplete or malformed") from None


def _digest_of(plain: Mapping[str, Any]) -> str:
    return digest(json.dumps(plain, sort_keys=True).encode())


def digest(data: bytes) -> str:
    """The sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


# ---- snapshots in pieces


def take_apart(snapshot: Snapshot, known: Container[str] = ()) -> dict[str, bytes]:
    """Split a snapshot into its large pieces, which may not change for many rounds, and the rest, without `known`."""
    tree = snapshot_to_tree(snapshot)
    pieces = {}
    if nbytes(tree["models"]) >= LARGE:
        pieces["models"] = pack(tree.pop("models"))
    large = [name for name, tensor in tree["carry"].items() if tensor.nbytes >= LARGE]
    for name in large:
        tensor = tree["carry"].pop(name)
        if f"carry/{name}" not in known:
            pieces[f"carry/{name}"] = pack(tensor)
    return {"rest": pack(tree), **pieces}


def put_together(pieces: Mapping[str, bytes]) -> Snapshot:
    """Reassemble the snapshot that `take_apart` split."""
    tree = unpack(pieces["rest"])
    if not isinstance(tree, dict) or not isinstance(tree.get("carry"), dict):
        raise WireError("the parts of the checkpoint do not form a snapshot")
    for name, data in pieces.items():
        if name == "models":
            tree["models"] = unpack(data)
        elif name.startswith("carry/"):
            # A tensor with memory of its own: safetensors' is that of `data`, which nobody may write into.
            tree["carry"][name.removeprefix("carry/")] = map_tensors(torch.clone, unpack(data))
    return snapshot_from_tree(tree)


# ---- in a folder


def manifest_path(folder: Path, clock: int) -> Path:
    """The manifest of the checkpoint at a clock."""
    return folder / f"{clock:08d}.json"


def part_path(folder: Path, sha256: str) -> Path:
    """The file of a part."""
    return folder / f"{sha256}.safetensors"


def clocks_in(folder: Path) -> list[int]:
    """The clocks of all checkpoints in a folder, latest first."""
    names = (path.stem for path in folder.glob("*.json"))
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def read_whole(path: Path, sha256: str, what: str) -> bytes:
    """Read a file; raises `Refused` if its hash does not match."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(f"its {what} cannot be read ({error.strerror})") from None
    if digest(data) != sha256:
        raise Refused(f"its {what} is incomplete or was changed")
    return data


def read_checkpoint(folder: Path, clock: int, run: str, rounds: int) -> tuple[Manifest, Snapshot]:
    """Read the checkpoint of a run at a clock, given the number of readable lines of rounds.jsonl.

    Raises `Refused` if it cannot be used. Files of client memory are checked, not read.
    """
    try:
        manifest = Manifest.from_bytes(manifest_path(folder, clock).read_bytes())
    except OSError as error:
        raise Refused(f"its manifest cannot be read ({error.strerror})") from None
    if manifest.run != run or manifest.clock != clock:
        raise Refused("it belongs to another run")
    if manifest.rounds > rounds:
        raise Refused(f"it needs {manifest.rounds} rounds of rounds.jsonl, but only {rounds} can be read")
    for name, sha256 in manifest.memory:
        read_whole(folder.parent / "memory" / name, sha256, "client memory")
    pieces = {name: read_whole(part_path(folder, sha), sha, "snapshot") for name, sha in manifest.parts.items()}
    try:
        snapshot = put_together(pieces)
    except (WireError, KeyError):
        raise Refused("its parts do not form a snapshot") from None
    return manifest, snapshot


def to_keep(manifests: Iterable[Manifest]) -> set[int]:
    """The clocks of the checkpoints to keep: the latest few, and the best."""
    last = sorted(manifests, key=lambda one: one.clock)
    scored = [one for one in last if one.score is not None and math.isfinite(one.score)]
    best = [max(scored, key=lambda one: (one.score, -one.clock)).clock] if scored else []
    return {one.clock for one in last[-KEPT:]} | set(best)
