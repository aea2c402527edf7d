"""`corymb flower doctor`: what a federation needs, and whether it is there."""

# No postponed annotations here: cyclopts reads them.
import datetime
import importlib.metadata
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from corymb.cli.flower.folder import FILE, Federation, State, answers, program, read_federation, state_of
from corymb.cli.flower.up import online
from corymb.settings import InvalidInput, first_line


def doctor(
    *,
    echo: Annotated[bool, Parameter(help="Send every node a payload and time the round trip.")] = False,
    folder: Annotated[Path, Parameter(help="The federation's folder.")] = Path(),
) -> int:
    """Check Flower, the folder, certificates, secrets and the nodes; the exit code is 1 if anything is wrong."""
    checks: list[tuple[str, Callable[[], str]]] = [("flwr", _flower), ("its private names", _private)]
    if (folder / FILE).exists():
        federation, state = read_federation(folder), state_of(folder)
        checks += [("federation.toml", lambda: f"{federation.name}, {federation.nodes} nodes at {federation.address}")]
        checks += [("secret", lambda: _secret(state.secret))] if state.secret.exists() else []
        checks += [("certificate", lambda: _certificate(state.ca))] if state.tls else []
        if answers(federation.address):
            checks += [("nodes", lambda: f"{len(online(federation, state))} online")]
            checks += [("echo", lambda: _echo(federation, state))] if echo else []
        else:
            checks += [("SuperLink", lambda: _no_answer(federation.address, wanted=echo))]
    wrong = 0
    for name, check in checks:
        try:
            print(f"{name:18} {check()}")
        except Exception as problem:  # any failure is reported
            wrong += 1
            print(f"{name:18} WRONG: {first_line(problem)}")
    return 1 if wrong else 0


def _flower() -> str:
    try:
        version = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        raise InvalidInput("not installed: pip install 'corymb[flower]'") from None
    if not version.startswith("1.41."):
        raise InvalidInput(f"{version}, wanted 1.41: pip install 'corymb[flower]'")
    return f"{version}, {program('flower-superlink')}"


def _private() -> str:
    import corymb.engines.flower.executor  # noqa: F401

    return "all there"


def _no_answer(address: str, *, wanted: bool) -> str:
    """A federation that is down is an error only if something is to be sent to it."""
    line = f"nothing answers at {address}: `corymb flower up`"
    if wanted:
        raise InvalidInput(line)
    return line


def _secret(path: Path) -> str:
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        raise InvalidInput(f"others can read {path}: chmod 600")
    return "for its owner only"


def _certificate(path: Path) -> str:
    from corymb.cli.flower.keys import expiry

    until = expiry(path)
    if until < datetime.datetime.now(datetime.UTC):
        raise InvalidInput(f"expired on {until:%Y-%m-%d}: remove its folder and start with --tls again")
    return f"valid until {until:%Y-%m-%d}"


def _echo(federation: Federation, state: State) -> str:
    import torch

    from corymb.cli.flower.perform import run_settings
    from corymb.runs.remote.engine import FEDERATION
    from corymb.runs.remote.engine import federation as federation_of

    engine = federation_of(run_settings(federation, state, {}), FEDERATION, keeps_memory=False)
    try:
        times = sorted(engine.echo({"numbers": torch.zeros(100_000)}) for _ in range(3))  # type: ignore[attr-defined]
    finally:
        engine.close()  # type: ignore[attr-defined]
    return f"{times[1]:.1f} s there and back (median of 3, 400 kB to {len(set(engine.hosts))} nodes)"
