"""A SuperLink and three nodes on loopback, brought up once for all tests; ended by pid."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corymb.cli.flower.folder import free_port

ROOT = Path(__file__).parents[2]
TOML = """
name = "tests"
data = "tests.federation.nodes:clients"
algorithm = "ifca"
allow = ["corymb.testing.learners", "tests"]
address = "127.0.0.1:{port}"
nodes = 3

[node]
engine = "loop"
device = "cpu"
precision = "float64"
poll = 0.3

[run]
k = 2
rounds = 2
"""


class Federation:
    """A federation in a folder, with the command line as its only handle."""

    def __init__(self, folder, **changes):
        self.folder, self.port = folder, free_port()
        text = TOML.format(port=self.port)
        for old, new in changes.items():
            text = text.replace(old, new)
        (folder / "federation.toml").write_text(text)

    @classmethod
    def of_a_new_user(cls, folder):
        """One that `corymb flower new myfed` makes, at its own address."""
        made = cls(folder)
        made.command("flower", "new", "myfed")
        made.folder = folder / "myfed"
        path = made.folder / "federation.toml"
        path.write_text(path.read_text().replace("127.0.0.1:8000", made.address))
        return made

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def state(self):
        return self.folder / ".federation"

    def command(self, *words, check=True, timeout=200):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "corymb", *map(str, words)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done

    def logs(self):
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self.state.glob("logs/*.log"))


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    made = Federation(tmp_path_factory.mktemp("federation"))
    made.command("flower", "up")
    yield made
    made.command("flower", "down")


@pytest.fixture(scope="session")
def secure_federation(tmp_path_factory):
    pytest.importorskip("flwr", reason="the extra [flower] is not installed")
    made = Federation(tmp_path_factory.mktemp("secure"))
    made.command("flower", "up", "--nodes", "1", "--tls")
    yield made
    made.command("flower", "down")
