"""What a node is: written by `corymb flower node`, read by its process. No torch is needed here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from corymb.settings import from_dict, to_dict

READY = "ready.json"
"""Says in a node's folder whether its process could read its data."""


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """A node, with its data and how it is reached."""

    name: str
    number: int
    of: int
    data: str
    folder: str
    """Where sessions and client memory are kept."""
    runtime: str = ""
    """The address of the SuperNode's runtime."""
    secret: str = ""
    """The file with the secret that the SuperNode was started with."""
    socket: str = ""
    """Where to listen for a ClientApp, for those who let Flower start one for every message."""
    allow: tuple[str, ...] = ()
    engine: str = "vectorised"
    device: str = "auto"
    precision: str = "float32"
    client_seconds: float | None = None


def read_settings(path: Path) -> NodeSettings:
    """The settings in a file."""
    return from_dict(NodeSettings, json.loads(path.read_text(encoding="utf-8")))


def report(settings: NodeSettings, problem: str) -> None:
    """Write down why a node cannot start, or nothing if it could."""
    path = Path(settings.folder).parent / READY
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"problem": problem}), encoding="utf-8")
    temporary.replace(path)


def how_it_is(state: Path) -> str | None:
    """Why a node cannot start: empty if it could, None if that is not known yet."""
    try:
        return str(json.loads((state / READY).read_text(encoding="utf-8"))["problem"])
    except FileNotFoundError:
        return None


def write_settings(path: Path, settings: NodeSettings) -> None:
    """Write settings to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_dict(settings), indent=1), encoding="utf-8")
