"""`corymb flower node`: one node of a federation, where its data are. Ends with Ctrl-C or SIGTERM."""

# No postponed annotations here: cyclopts reads them.
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

from cyclopts import Parameter

from corymb.cli.flower.folder import free_port, make_secret, program
from corymb.cli.flower.processes import Process, alive, began, end, quiet_environment, remember, remembered
from corymb.cli.flower.worker import NodeSettings, write_settings
from corymb.settings import require

RESTART = 2.0
STEADY = 60.0
"""Seconds before a process that has ended is started again, doubled each time up to the second."""


def node(
    name: Annotated[str, Parameter(help="The node's name in the federation: it must be its alone, and stay the same.")],
    *,
    superlink: Annotated[str, Parameter(help="The federation's address, HOST:PORT.")],
    data: Annotated[str, Parameter(help="The function that gives this node its clients: package.module:function.")],
    number: Annotated[int, Parameter(help="Which of the nodes this is, from 0; handed to the data function.")] = 0,
    of: Annotated[int, Parameter(help="How many nodes there are; handed to the data function.")] = 1,
    state: Annotated[Path, Parameter(help="Where the node keeps client memory, its token and its secret.")],
    allow: Annotated[
        list[str] | None, Parameter(help="A package whose client functions and models may run here, besides Corymb's.")
    ] = None,
    ca: Annotated[
        Path | None, Parameter(help="The federation's CA certificate; without one, nothing is encrypted.")
    ] = None,
    key: Annotated[Path | None, Parameter(help="This node's private key, registered at the SuperLink.")] = None,
    engine: Annotated[str, Parameter(help="vectorised or loop.")] = "vectorised",
    device: Annotated[str, Parameter(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    precision: Annotated[str, Parameter(help="float32, tf32, bfloat16 or float64; all nodes alike.")] = "float32",
    client_seconds: Annotated[float | None, Parameter(help="End a client's work after so many seconds.")] = None,
    stock: Annotated[
        bool,
        Parameter(help="Let Flower start a ClientApp for every message: it runs code from the app, and is slower."),
    ] = False,
) -> int:
    """Start a SuperNode and the process that holds the clients, and keep both running."""
    require(key is None or ca is not None, "A node's key needs TLS: give --ca too.")
    state = state.resolve()
    state.mkdir(parents=True, exist_ok=True)
    end([process for process in remembered(state / "processes.json") if process.pid != os.getpid()])
    port = free_port()
    secret = make_secret(state / "secret")
    settings = NodeSettings(
        name=name,
        number=number,
        of=of,
        data=data,
        folder=str(state / "sessions"),
        runtime=f"127.0.0.1:{port}",
        secret=str(secret),
        allow=tuple(allow or ()),
        engine=engine,
        device=device,
        precision=precision,
        client_seconds=client_seconds,
    )
    if stock:
        settings = replace(settings, socket=str(state / "node.sock"))
    write_settings(state / "node.json", settings)
    secure = ["--insecure"] if ca is None else ["--root-certificates", str(ca.resolve())]
    signed = [] if key is None else ["--auth-supernode-private-key", str(key.resolve())]
    config = ["--node-config", f"socket={json.dumps(settings.socket)}"] if stock else []
    isolation = [] if stock else ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    supernode = [program("flower-supernode"), *secure, *signed, "--superlink", superlink, *config, *isolation]
    supernode += ["--host", "127.0.0.1", "--port", str(port)]
    worker = [sys.executable, "-m", "corymb.cli.flower.worker", str(state / "node.json")]
    keep_running({"supernode": supernode, "worker": worker}, state)
    return 0


def keep_running(commands: dict[str, Sequence[str]], state: Path) -> None:
    """Run processes until told to end; one that ends by itself is started again."""
    stopped = threading.Event()
    _on_signals(lambda: stopped.set())
    environment = quiet_environment(state / "flower", PYTHONPATH=os.pathsep.join(_importable()))
    running: dict[str, subprocess.Popen[bytes]] = {}
    waits, started, due = dict.fromkeys(commands, RESTART), dict[str, float](), dict[str, float]()
    while not stopped.is_set():
        for name, command in commands.items():
            now, process = time.monotonic(), running.get(name)
            if process is not None and process.poll() is None:
                if now - started[name] > STEADY:
                    waits[name] = RESTART  # what ended it before is over
                continue
            if process is not None and name not in due:
                print(f"{name} ended with {process.returncode}: it is started again in {waits[name]:.0f} s", flush=True)
                due[name], waits[name] = now + waits[name], min(STEADY, waits[name] * 2)
            if now >= due.get(name, 0.0):
                running[name] = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
                started[name] = now
                due.pop(name, None)
                remember(state / "processes.json", [_known(n, p) for n, p in running.items()])
        stopped.wait(0.5)
    end([known for n, p in running.items() if alive(known := _known(n, p))])


def _known(name: str, process: subprocess.Popen[bytes]) -> Process:
    return Process(name, process.pid, began(process.pid))


def _importable() -> list[str]:
    """What this process can import, its processes can: the working folder first, where the user's modules are."""
    return [os.getcwd(), *(path for path in sys.path if path and Path(path).is_dir())]


def _on_signals(stop: Callable[[], None]) -> None:
    def handle(number: int, frame: FrameType | None) -> Any:
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
