"""The process that holds a node's clients: `python -m corymb.cli.flower.worker NODE.json`, started by `flower node`."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corymb.data import as_dataset
from corymb.engines.guarded import Guarded, serve_pipe
from corymb.engines.node import Node
from corymb.local_socket import serve_socket
from corymb.messages import OURS
from corymb.runs.learners import imported
from corymb.runs.plan import make_engine, placement_for
from corymb.runs.settings import RunSettings
from corymb.settings import from_dict, require, to_dict

PIPE = "--pipe"


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """What a node is: written by `corymb flower node`, read by its process."""

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


def write_settings(path: Path, settings: NodeSettings) -> None:
    """Write settings to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_dict(settings), indent=1), encoding="utf-8")


def node_of(settings: NodeSettings) -> Node:
    """The node, with its data in memory."""
    run = RunSettings(engine=settings.engine, device=settings.device, precision=settings.precision)  # type: ignore[arg-type]
    give: Any = imported(settings.data, "the data")
    data = as_dataset(give(node=settings.name, number=settings.number, of=settings.of), 0).in_order()
    require(len(data) > 0, f"{settings.data} gave node {settings.name!r} no clients.")
    logging.getLogger(__name__).info("node %s holds %d clients: %s", settings.name, len(data), data)
    engine: Any = make_engine(data, run, placement_for(run))
    return Node(engine, settings.name, allow=settings.allow, folder=Path(settings.folder))


def main(path: Path, *, pipe: bool = False) -> None:
    """Serve until ended."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    for noisy in ("httpx", "httpcore", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    settings = read_settings(path)
    if pipe:
        return serve_pipe(lambda: node_of(settings))
    if settings.client_seconds is None:
        answer = node_of(settings).answer
    else:
        command = [sys.executable, "-m", __spec__.name, str(path), PIPE]
        answer = Guarded(command, settings.client_seconds, (*OURS, *settings.allow)).answer
    if settings.socket:
        return serve_socket(answer, Path(settings.socket))
    from corymb.engines.flower.executor import serve
    from corymb.engines.flower.private import Link

    return serve(answer, Link(settings.runtime, secret=Path(settings.secret).read_bytes()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), pipe=PIPE in sys.argv[2:])
