"""The folder of a federation: its settings (`federation.toml`) and the files of its processes (`.federation/`)."""

from __future__ import annotations

import errno
import secrets
import shutil
import socket
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corymb.settings import InvalidInput, from_dict, require, split_address

FILE = "federation.toml"
STATE = ".federation"
STOCK = "corymb"
"""The federation's name in Flower's own configuration."""
SUPERLINK = "superlink"
"""The name of the SuperLink's process among the recorded ones; all others are nodes."""


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The settings in `federation.toml`."""

    name: str
    data: str
    """The function that returns a node's clients: `package.module:function`."""
    algorithm: str
    """The function that returns the algorithm, or a name in the catalogue."""
    model: str | None = None
    """The function that returns the model; by default, a model is chosen for the data."""
    allow: tuple[str, ...] = ()
    """Packages whose client functions and models nodes may run, besides Corymb's own."""
    address: str = "127.0.0.1:8000"
    names: tuple[str, ...] = ()
    """Further names and addresses by which other machines reach the SuperLink; its certificate is for these too."""
    nodes: int = 3
    node: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Further options of `corymb flower node`, such as `precision` and `client_seconds`."""
    run: dict[str, Any] = field(default_factory=dict)
    """Options of the run, as for `corymb run`."""

    def __post_init__(self) -> None:
        require(self.nodes >= 1, f"nodes must be at least 1, got {self.nodes}.")
        split_address(self.address)


def read_federation(folder: Path) -> Federation:
    """The federation of a folder."""
    path = folder / FILE
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(f"There is no {FILE} here: `corymb flower new NAME` makes a folder with one.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read as TOML: {error}") from None
    try:
        return from_dict(Federation, values)
    except InvalidInput as problem:
        raise InvalidInput(f"{path}: {problem}") from None


@dataclass(frozen=True)
class State:
    """The files of a federation's processes. Only their owner can read keys and secrets."""

    folder: Path

    @property
    def secret(self) -> Path:
        """The secret of the processes that take tasks from the SuperLink."""
        return self.folder / "secret"

    @property
    def ca(self) -> Path:
        """The certificate of the authority that signed the SuperLink's; present only with TLS."""
        return self.folder / "tls" / "ca.pem"

    @property
    def processes(self) -> Path:
        """The record of the processes that were started."""
        return self.folder / "processes.json"

    @property
    def superlink(self) -> Path:
        """The SuperLink's folder."""
        return self.folder / "superlink"

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.folder / "logs" / f"{name}.log"

    def node(self, name: str) -> Path:
        """A node's folder."""
        return self.folder / "nodes" / name

    @property
    def stock(self) -> Path:
        """A marker file: Flower's own processes take the SuperLink's tasks (`up --stock`)."""
        return self.folder / "stock"

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.ca.exists()


def state_of(folder: Path) -> State:
    """The state of the federation in a folder."""
    return State(folder.resolve() / STATE)


def make_secret(path: Path) -> Path:
    """Create a file with a secret that only its owner can read, unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32), encoding="ascii")
    return path


def free_port() -> int:
    """An unused port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(address: str, seconds: float = 1.0) -> bool:
    """Whether anything listens at an address."""
    try:
        socket.create_connection(split_address(address), seconds).close()
    except OSError:
        return False
    return True


def check_own(address: str) -> None:
    """Require that a process of this machine can listen at an address."""
    host, port = split_address(address)
    try:
        kind, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        how = (
            "the host in address must be one of this machine's own, or 0.0.0.0 for all of them, and names lists those "
            "by which other machines reach it"
            if elsewhere
            else "change address"
        )
        raise InvalidInput(f"This machine cannot listen at {address} ({error.strerror}): in {FILE}, {how}.") from None


def program(name: str) -> str:
    """The path of a Flower program: next to this Python, or on PATH."""
    nearby = Path(sys.executable).parent / name
    found = str(nearby) if nearby.exists() else shutil.which(name)
    if found is None:
        raise InvalidInput(f"{name} is not installed: pip install 'corymb[flower]'.")
    return found
