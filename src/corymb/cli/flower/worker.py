"""The process that holds a node's clients: `python -m corymb.cli.flower.worker NODE.json`, started by `flower node`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from corymb.cli.flower.node_settings import NodeSettings, read_settings, report, startup_problem
from corymb.data import as_dataset
from corymb.engines.guarded import Guarded, serve_pipe
from corymb.engines.host import one_line
from corymb.engines.node import Node
from corymb.engines.remote import HELLO
from corymb.local_socket import serve_socket
from corymb.messages import OURS
from corymb.runs.learners import imported
from corymb.runs.plan import make_engine, placement_for
from corymb.runs.settings import RunSettings
from corymb.settings import InvalidInput, first_line, require

log = logging.getLogger(__name__)
PIPE = "--pipe"


def node_of(settings: NodeSettings) -> Node:
    """The node, with its data in memory."""
    same = ("engine", "device", "precision", "memory")
    run = RunSettings(**{name: getattr(settings, name) for name in same})
    give: Any = imported(settings.data, "the data")
    data = as_dataset(give(node=settings.name, number=settings.number, of=settings.of), 0).in_order()
    require(len(data) > 0, f"{settings.data} gave node {settings.name!r} no clients.")
    log.info("node %s holds %d clients: %s", settings.name, len(data), data)
    engine: Any = make_engine(data, run, placement_for(run))
    return Node(engine, settings.name, allow=settings.allow, folder=Path(settings.folder))


def reported(settings: NodeSettings) -> Node:
    """The node; whether it could be created is recorded for `flower up` and `flower status`."""
    try:
        node = node_of(settings)
    except Exception as error:
        if not isinstance(error, InvalidInput):
            log.exception("%s failed", settings.data)
        why = first_line(error) if isinstance(error, InvalidInput) else one_line(error)
        log.error("node %s cannot start: %s", settings.name, why)
        report(settings, why)
        raise SystemExit(2) from None
    report(settings, "")
    return node


def main(path: Path, *, pipe: bool = False) -> None:
    """Serve messages until the process is ended."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    for noisy in ("httpx", "httpcore", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    settings = read_settings(path)
    if pipe:
        return serve_pipe(lambda: reported(settings))
    if settings.client_seconds is None:
        answer = reported(settings).answer
    else:
        command = [sys.executable, "-m", __spec__.name, str(path), PIPE]
        answer = Guarded(command, settings.client_seconds, (*OURS, *settings.allow)).answer
        answer(HELLO)  # starts the process, which records whether it can read its data
        if startup_problem(Path(settings.folder).parent):
            raise SystemExit(2)
    if settings.socket:
        return serve_socket(answer, Path(settings.socket))
    from corymb.engines.flower.executor import serve
    from corymb.engines.flower.private import Link

    return serve(answer, Link(settings.runtime, secret=Path(settings.secret).read_bytes()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), pipe=PIPE in sys.argv[2:])
