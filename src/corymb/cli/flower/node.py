"""`corymb flower node`: one node of a federation, run where its data are. Ends with Ctrl-C or SIGTERM."""

# No postponed annotations here: cyclopts reads them.
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from corymb.cli.flower.admission import check_files, connection_problem
from corymb.cli.flower.folder import free_port, make_secret
from corymb.cli.flower.node_settings import READY, NodeSettings, report, write_settings
from corymb.cli.flower.supervise import keep_running
from corymb.cli.options import Reader
from corymb.runs.settings import Memory, Precision, check_memory
from corymb.settings import InvalidInput, check_node_name, require, split_address

REFUSED = "refused"
"""The file in which the SuperNode's process writes why it was refused."""
KEY = "key"
"""Its contents if the SuperLink does not know the node's key."""


def node(
    name: Annotated[str, Parameter(help="The node's name: unique in the federation, and always the same.")],
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
    engine: Annotated[
        Literal["vectorised", "loop"], Parameter(help="How clients are run: together, or one after the other.")
    ] = "vectorised",
    device: Annotated[str, Parameter(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    precision: Annotated[Precision, Parameter(help="Precision of arithmetic; the same on all nodes.")] = "float32",
    memory: Annotated[
        Memory, Parameter(help="Bytes of memory for the clients that run at once.", converter=Reader(Memory))
    ] = "auto",
    client_seconds: Annotated[float | None, Parameter(help="Stop a client's work after this many seconds.")] = None,
    poll: Annotated[float, Parameter(help="Seconds between two polls for messages.")] = 1.0,
    stock: Annotated[
        bool,
        Parameter(help="Let Flower start a ClientApp for every message: it runs code from the app, and is slower."),
    ] = False,
) -> int:
    """Start a SuperNode and the process that holds the clients, and keep both running."""
    require(key is None or ca is not None, "A node's key needs TLS: give --ca too.")
    split_address(superlink)
    check_node_name(name)
    require(0 <= number < of, f"--number counts the nodes from 0: wanted 0 to {of - 1} with --of {of}, got {number}.")
    for option, seconds in (("client_seconds", client_seconds), ("poll", poll)):
        require(seconds is None or seconds > 0, f"--{option} must be positive, got {seconds}.")
    check_memory(memory)
    require(memory == "auto" or engine != "loop", "--engine loop runs one client at a time: leave out --memory.")
    check_files(ca, key)
    state, port = state.resolve(), free_port()
    settings = NodeSettings(
        name=name,
        number=number,
        of=of,
        data=data,
        folder=str(state / "sessions"),
        runtime=f"127.0.0.1:{port}",
        secret=str(state / "secret"),
        allow=tuple(allow or ()),
        engine=engine,
        device=device,
        precision=precision,
        memory=memory,
        client_seconds=client_seconds,
    )
    if stock:
        settings = replace(settings, socket=str(state / "node.sock"))
    _prepare(state, settings)
    secure = ["--insecure"] if ca is None else ["--root-certificates", str(ca.resolve())]
    signed = [] if key is None else ["--auth-supernode-private-key", str(key.resolve())]
    config = ["--node-config", f"socket={json.dumps(settings.socket)}"] if stock else []
    isolation = [] if stock else ["--isolation", "process", "--superexec-auth-secret-file", settings.secret]
    supernode = [
        sys.executable,
        "-m",
        "corymb.engines.flower.supernode",
        *secure,
        *signed,
        "--superlink",
        superlink,
        *config,
        *isolation,
    ]
    supernode += ["--host", "127.0.0.1", "--port", str(port)]
    worker = [sys.executable, "-m", "corymb.cli.flower.worker", str(state / "node.json")]
    admission = Admission(superlink, ca, key, state)
    problem = admission.problem(ended=False) or keep_running(
        {"supernode": supernode, "worker": worker},
        state,
        admission.problem,
        CORYMB_FLOWER_POLL=str(poll),
        CORYMB_FLOWER_REFUSED=str(admission.refusal),
    )
    if problem:
        report(settings, problem)
        raise InvalidInput(problem)
    return 0


def _prepare(state: Path, settings: NodeSettings) -> None:
    """Make the node's folder, with its secret and its settings."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        (state / READY).unlink(missing_ok=True)
        make_secret(state / "secret")
        write_settings(state / "node.json", settings)
    except OSError as error:
        raise OSError(
            f"This node cannot keep anything in {state} ({error.strerror}): give --state a folder that it may write "
            "to, on a disk with space."
        ) from None


class Admission:
    """Checks whether the SuperLink admits this node, before it connects and while it runs."""

    def __init__(self, superlink: str, ca: Path | None, key: Path | None, state: Path) -> None:
        self._superlink, self._ca, self._key = superlink, ca, key
        self._reached = False
        self.refusal = state / REFUSED
        self.refusal.unlink(missing_ok=True)

    def problem(self, ended: bool) -> str:
        """Why this node will never be admitted; empty if it may be.

        A SuperLink that has answered once is asked again only if a process of the node has ended.
        """
        if ended or not self._reached:
            problem = connection_problem(self._superlink, self._ca)
            self._reached = problem is not None
            if problem:
                return problem
        if not self.refusal.exists():
            return ""
        why = self.refusal.read_text(encoding="utf-8")
        self.refusal.unlink()
        if why != KEY:
            return f"Flower refuses this node: {why}"
        if self._key is None:
            return f"The SuperLink at {self._superlink} admits only nodes with a key that it knows: give --key."
        how = f"FLWR_HOME=.federation/flower flwr supernode register {self._key.name}.pub corymb"
        return f"The SuperLink at {self._superlink} does not know the key {self._key}: on its machine, {how}."
