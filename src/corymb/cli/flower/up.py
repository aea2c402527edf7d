"""`corymb flower up`, `down` and `status`: a federation on this machine, from its folder."""

# No postponed annotations here: cyclopts reads them.
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from corymb.cli.flower.folder import (
    STATE,
    STOCK,
    SUPERLINK,
    Federation,
    State,
    answers,
    check_own,
    make_secret,
    program,
    read_federation,
    state_of,
)
from corymb.cli.flower.node_settings import startup_problem
from corymb.cli.flower.processes import Process, alive, end, quiet_environment, remember, remembered, spawn
from corymb.cli.flower.supervise import RECORD
from corymb.settings import InvalidInput, require, split_address

WAIT = 120.0
"""Seconds to wait for a federation to start."""
END_SECONDS = 15.0
"""Seconds for a supervisor to end: ending its processes takes up to ten."""
Folder = Annotated[Path, Parameter(help="The federation's folder.")]


def up(
    *,
    nodes: Annotated[
        int | None, Parameter(help="How many nodes to start here; if not given, as federation.toml says.")
    ] = None,
    tls: Annotated[bool, Parameter(help="Encrypt, and let in only nodes whose key is registered.")] = False,
    stock: Annotated[
        bool, Parameter(help="For `flwr run`: Flower starts the server's side and a ClientApp for every message.")
    ] = False,
    folder: Folder = Path(),
) -> int:
    """Start a SuperLink and nodes on this machine, and wait until all are online."""
    federation, state = read_federation(folder), state_of(folder)
    count = federation.nodes if nodes is None else nodes
    require(count >= 0, f"--nodes must not be negative, got {count}.")
    require(
        not any(map(alive, remembered(state.processes))), "The federation is already up: `corymb flower down` ends it."
    )
    require(
        not answers(federation.address),
        f"Something already listens at {federation.address}: change address in federation.toml.",
    )
    check_own(federation.address)
    require(not (state.tls and not tls), f"This federation has certificates: add --tls, or remove {state.ca.parent}.")
    make_secret(state.secret)
    state.stock.touch() if stock else state.stock.unlink(missing_ok=True)
    started = [start_superlink(federation, state, folder, tls=tls, stock=stock)]
    remember(state.processes, started)
    names = [f"node-{number}" for number in range(count)]
    try:
        _wait(lambda: answers(federation.address), started, state, "The SuperLink does not answer")
        if tls:
            register(federation, state, names)
        for number, name in enumerate(names):
            started.append(start_node(federation, state, folder, name, number, count, stock=stock))
            remember(state.processes, started)
        _wait(lambda: len(online(federation, state)) >= count, started, state, f"Not all of {count} nodes come online")
        reading = _still_reading(state, names)
    except BaseException:
        _end_all(state, started)
        raise
    prefix = _configure_flwr(federation, state)
    how = f"`{prefix} flwr run . {STOCK} --stream`" if stock else "`corymb flower run`"
    print(f"The federation is up at {federation.address} with {count} nodes; {how} runs on it.")
    if reading:
        print(f"Still reading their data: {', '.join(reading)}. `corymb flower status` says when they have.")
    return 0


def _configure_flwr(federation: Federation, state: State) -> str:
    """Register the federation with Flower's own command; returns what to type before `flwr` for it to be found."""
    trust = f'root-certificates = "{state.ca}"' if state.tls else "insecure = true"
    home = state.folder / "flower"
    home.mkdir(parents=True, exist_ok=True)
    named = f'[superlink]\ndefault = "{STOCK}"\n\n[superlink.{STOCK}]\n'
    (home / "config.toml").write_text(f'{named}address = "{federation.address}"\n{trust}\n', encoding="utf-8")
    return f"FLWR_HOME={STATE}/flower"


def start_superlink(federation: Federation, state: State, folder: Path, *, tls: bool, stock: bool = False) -> Process:
    """Start the SuperLink. Runs and nodes use processes of their callers; with `stock`, Flower's own processes."""
    host, port = split_address(federation.address)
    secure = ["--insecure"]
    if tls:
        from corymb.cli.flower.keys import make_certificates

        files = state.ca.parent
        make_certificates(files, [host, *federation.names])
        secure = ["--ssl-ca-certfile", str(files / "ca.pem"), "--ssl-certfile", str(files / "server.pem")]
        secure += ["--ssl-keyfile", str(files / "server.key"), "--enable-supernode-auth"]
    command = [program("flower-superlink"), *secure, "--host", host, "--port", str(port)]
    command += ["--database", str(state.superlink / "state.db"), "--disable-runtime-dependency-installation"]
    command += [] if stock else ["--isolation", "process", "--superexec-auth-secret-file", str(state.secret)]
    state.superlink.mkdir(parents=True, exist_ok=True)
    keeper = [sys.executable, "-m", "corymb.cli.flower.supervise", str(state.superlink), SUPERLINK, *command]
    environment = quiet_environment(state.folder / "flower")
    return spawn(SUPERLINK, keeper, state.log(SUPERLINK), environment, folder.resolve())


def start_node(
    federation: Federation, state: State, folder: Path, name: str, number: int, of: int, *, stock: bool = False
) -> Process:
    """Start a node as its owner would."""
    command = [sys.executable, "-m", "corymb", "flower", "node", name, "--superlink", federation.address]
    command += ["--data", federation.data, "--number", str(number), "--of", str(of), "--state", str(state.node(name))]
    for package in federation.allow:
        command += ["--allow", package]
    if state.tls:
        command += ["--ca", str(state.ca), "--key", str(state.node(name) / "key")]
    for option, value in {**federation.node, **({"stock": True} if stock else {})}.items():
        command += [f"--{option}", *([] if value is True else [str(value)])]
    return spawn(name, command, state.log(name), quiet_environment(state.folder / "flower"), folder.resolve())


def register(federation: Federation, state: State, names: list[str]) -> None:
    """Create the nodes' keys, and register those that the SuperLink does not know yet."""
    from corymb.cli.flower.keys import make_node_key
    from corymb.engines.flower.link import link_to
    from corymb.engines.flower.private import register_node

    link = link_to(federation.address, state.ca, state.secret)
    for name in names:
        register_node(link, make_node_key(state.node(name) / "key"))


def online(federation: Federation, state: State) -> list[str]:
    """Flower's ids of the nodes that are online."""
    require(
        state.secret.exists(),
        f"Something listens at {federation.address}, but this federation was not started from this folder: "
        "`corymb flower up` starts it, at an address of its own.",
    )
    from corymb.engines.flower.link import link_to
    from corymb.engines.flower.private import nodes_online

    return nodes_online(link_to(federation.address, state.ca if state.tls else None, state.secret))


def _wait(good: Callable[[], bool], started: list[Process], state: State, what: str) -> None:
    began = time.monotonic()
    while not good():
        gone = next((process.name for process in started if not alive(process)), None)
        if gone is not None:
            raise InvalidInput(f"{gone} ended: {_last_line(state.log(gone))} ({state.log(gone)}).")
        require(time.monotonic() - began < WAIT, f"{what} after {WAIT:.0f} s: see {state.log(SUPERLINK).parent}.")
        time.sleep(0.5)


def _still_reading(state: State, names: list[str]) -> list[str]:
    """Wait for nodes to read their data; returns those still reading. Raises InvalidInput if a node cannot start."""
    until = time.monotonic() + WAIT
    while True:
        known = {name: startup_problem(state.node(name)) for name in names}
        bad = next((name for name, problem in known.items() if problem), None)
        if bad is not None:
            raise InvalidInput(f"{bad} cannot start: {known[bad]} ({state.log(bad)})")
        reading = [name for name, problem in known.items() if problem is None]
        if not reading or time.monotonic() > until:
            return reading
        time.sleep(0.2)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it logged nothing"


def _end_all(state: State, started: list[Process]) -> list[Process]:
    """End the processes that were started, and their children; returns those that were running.

    Nodes end first. They sign off at the SuperLink, unless they are asked to end twice; a node that does not counts as
    online for another minute, and the next run waits for it. So each process is ended by the one that started it.
    """
    nodes = [process for process in started if process.name != SUPERLINK]
    inside = [process for folder in (state.folder / "nodes").glob("*") for process in remembered(folder / RECORD)]
    link, its_own = [process for process in started if process.name == SUPERLINK], remembered(state.superlink / RECORD)
    running = [process for process in (*nodes, *inside, *link, *its_own) if alive(process)]
    for some in (nodes, inside, link, its_own):
        end(some, END_SECONDS)
    return running


def down(*, folder: Folder = Path()) -> int:
    """End the federation's processes; what nodes keep stays."""
    state = state_of(folder)
    running = _end_all(state, remembered(state.processes))
    left = [process.name for process in running if alive(process)]
    require(not left, f"Still running: {', '.join(left)}.")
    state.processes.unlink(missing_ok=True)
    state.stock.unlink(missing_ok=True)
    print(f"{len(running)} processes ended." if running else "Nothing was running.")
    return 0


def status(*, folder: Folder = Path()) -> int:
    """Show the federation's processes, and how many nodes are online."""
    federation, state = read_federation(folder), state_of(folder)
    bad = 0
    for process in remembered(state.processes):
        running = alive(process)
        print(f"{process.name:12} pid {process.pid:<8} {'running' if running else 'ended'}")
        problem = "" if process.name == SUPERLINK else startup_problem(state.node(process.name))
        if running and problem != "":
            bad += 1
            print(f"  {'still reads its data' if problem is None else f'cannot start: {problem}'}")
        elif not running:
            bad += 1
            why = problem or f"it was killed, or its log says why ({state.log(process.name)})"
            print(f"  it ended: {why}; `corymb flower down` and `up` start it again")
        inside = state.superlink if process.name == SUPERLINK else state.node(process.name)
        for inner in remembered(inside / RECORD):
            print(f"  {inner.name:10} pid {inner.pid:<8} {'running' if alive(inner) else 'ended'}")
    if not answers(federation.address):
        print(f"Nothing answers at {federation.address}.")
        return 1
    found = online(federation, state)
    how = "TLS and node keys" if state.tls else "no encryption: for this machine only"
    print(f"{len(found)} nodes online at {federation.address} ({how}).")
    return 1 if bad else 0
