"""A node's settings: written by `corymb flower node` and read by its process. Does not import torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from corymb.settings import from_dict, to_dict

READY = "ready.json"
"""The file in a node's folder that records whether its process could read its data."""


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """A node: its data, and how it is reached."""

    name: str
    number: int
    of: int
    data: str
    folder: str
    """The folder for sessions and client memory."""
    runtime: str = ""
    """The address of the SuperNode's runtime."""
    secret: str = ""
    """The file with the secret that the SuperNode was started with."""
    socket: str = ""
    """Where to listen for a ClientApp, if Flower starts one for every message."""
    allow: tuple[str, ...] = ()
    engine: str = "vectorised"
    device: str = "auto"
    precision: str = "float32"
    memory: int | str = "auto"
    """Bytes of memory for the clients that run at once."""
    client_seconds: float | None = None


def read_settings(path: Path) -> NodeSettings:
    """The settings in a file."""
    return from_dict(NodeSettings, json.loads(path.read_text(encoding="utf-8")))


def report(settings: NodeSettings, problem: str) -> None:
    """Record why a node cannot start; an empty `problem` if it could."""
    path = Path(settings.folder).parent / READY
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"problem": problem}), encoding="utf-8")
    temporary.replace(path)


def startup_problem(state: Path) -> str | None:
    """Why a node could not start: empty if it did, None if that is not known yet."""
    try:
        return str(json.loads((state / READY).read_text(encoding="utf-8"))["problem"])
    except FileNotFoundError:
        return None


def write_settings(path: Path, settings: NodeSettings) -> None:
    """Write settings to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_dict(settings), indent=1), encoding="utf-8")
