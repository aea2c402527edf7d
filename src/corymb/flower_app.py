"""Corymb as a Flower app, for `flwr run`: a ClientApp without torch, and a ServerApp.

Flower starts a ClientApp for every message, with the app code that was sent to the node. The ClientApp forwards the
message to the process that holds the node's clients (`corymb flower node … --stock`) over a unix socket, and returns
its answer. Nodes started without `--stock` need none of this and load no code.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from corymb.local_socket import receive, send
from corymb.settings import InvalidInput

app = ClientApp()
server = ServerApp()


@app.query("corymb")
def answer(message: Message, context: Context) -> Message:
    """The answer of the node's own process."""
    record = message.content.array_records["corymb"]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(context.node_config["socket"]))
        send(connection, bytes(record["message"].data))
        data = receive(connection)
    content = RecordDict({"corymb": ArrayRecord({"message": Array("uint8", (len(data),), "corymb", data)})})
    return Message(content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the algorithm that the app's config names on the nodes that are online, and write the report."""
    try:
        _run(grid, context)
    except InvalidInput as problem:  # Flower logs a traceback: of this file it need not say more than the line
        raise InvalidInput(str(problem)) from None


def _run(grid: Grid, context: Context) -> None:
    import corymb
    from corymb.engines.flower.grid import FlowerTransport
    from corymb.engines.remote import RemoteEngine
    from corymb.objectives.null import NullObjective
    from corymb.runs.learners import imported
    from corymb.runs.remote.engine import FEDERATION

    config: Any = context.run_config
    algorithm = imported(str(config["algorithm"]), "the algorithm")()
    transport = FlowerTransport(grid, poll=1.0)
    engine = RemoteEngine(transport, expect=config.get("nodes")).open(NullObjective())
    engine.allow_from(algorithm)
    engine.remembers_from(algorithm)
    out = Path(str(config.get("out", "runs/flwr"))) / str(context.run_id)
    run = corymb.fit(algorithm, engine, config.get("model"), out=out, progress=True)
    print(f"{FEDERATION}: {run.metrics} in {out.resolve()}")
    with suppress(ModuleNotFoundError):  # reports need the extra [report]
        print(run.report(path=out / "report.html"))
