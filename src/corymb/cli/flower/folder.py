"""The folder of a federation: what it is (`federation.toml`), and what its processes keep (`.federation/`)."""

from __future__ import annotations

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
"""What a federation is called in Flower's own configuration."""
SUPERLINK = "superlink"
"""The name of the SuperLink's process among those that are remembered; all others are nodes."""


@dataclass(frozen=True, kw_only=True)
class Federation:
    """A federation as `federation.toml` says it."""

    name: str
    data: str
    """The function that gives a node its clients: `package.module:function`."""
    algorithm: str
    """The function that gives the algorithm, or a name of the catalogue."""
    model: str | None = None
    """The function that makes the model; if not given, a model that suits the data."""
    allow: tuple[str, ...] = ()
    """Packages whose client functions and models nodes may run, besides Corymb's own."""
    address: str = "127.0.0.1:8000"
    nodes: int = 3
    node: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Further options of `corymb flower node`, such as `precision` and `client_seconds`."""
    run: dict[str, Any] = field(default_factory=dict)
    """Options of the run, as `corymb run` has them."""

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
    """Where the processes of a federation keep things. Keys and secrets are for their owner's eyes only."""

    folder: Path

    @property
    def secret(self) -> Path:
        """What whoever takes tasks from the SuperLink must know."""
        return self.folder / "secret"

    @property
    def ca(self) -> Path:
        """The certificate that the SuperLink's own is signed with; only with TLS."""
        return self.folder / "tls" / "ca.pem"

    @property
    def processes(self) -> Path:
        """Which processes were started."""
        return self.folder / "processes.json"

    @property
    def superlink(self) -> Path:
        """What the SuperLink keeps."""
        return self.folder / "superlink"

    def log(self, name: str) -> Path:
        """What a process says."""
        return self.folder / "logs" / f"{name}.log"

    def node(self, name: str) -> Path:
        """What a node keeps."""
        return self.folder / "nodes" / name

    @property
    def stock(self) -> Path:
        """There while Flower's own processes take the SuperLink's tasks, as `up --stock` wants it."""
        return self.folder / "stock"

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.ca.exists()


def state_of(folder: Path) -> State:
    """The state of the federation in a folder."""
    return State(folder.resolve() / STATE)


def make_secret(path: Path) -> Path:
    """A file with a secret that only its owner can read; one that is there stays."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32), encoding="ascii")
    return path


def free_port() -> int:
    """A port of this machine that nobody listens at."""
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


def program(name: str) -> str:
    """Where a program of Flower is: beside this Python, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InvalidInput(f"{name} is not installed: pip install 'corymb[flower]'.")
    return found
