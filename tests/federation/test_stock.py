"""The scaffolded app under Flower's own command: a ServerApp in the SuperLink, a ClientApp for every message."""

import json
import os
import subprocess

import pytest

import corymb
from corymb.cli.flower.folder import program
from corymb.cli.flower.processes import QUIET
from tests.federation.conftest import ROOT, Federation

pytestmark = pytest.mark.flower_all


@pytest.mark.timeout(600)
def test_flwr_run_gives_the_run_of_one_process(tmp_path):
    made = Federation.of_a_new_user(tmp_path)
    up = made.command("flower", "up", "--nodes", 3, "--stock")
    try:
        setting, flwr, *words = up.stdout.split("`")[1].split()  # as it says: FLWR_HOME=… flwr run . corymb --stream
        home = dict([setting.split("=")])
        environment = {**os.environ, **QUIET, **home, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            [program(flwr), *words],
            cwd=made.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        (report,) = made.folder.glob("runs/flwr/*/report.html")
        sockets = list(made.state.glob("nodes/*/node.sock"))
        assert len(sockets) == 3
        assert all(socket.stat().st_mode & 0o077 == 0 for socket in sockets)  # for its owner only
    finally:
        made.command("flower", "down")
    got = json.loads((report.parent / "result.json").read_text())
    data = corymb.datasets.digits(clients=24, train=60, test=20)
    want = corymb.fit(
        corymb.IFCA(k=4, rounds=4, local=corymb.Descent(lr=0.3, steps=10)), data, _network(), device="cpu"
    )
    assert got["labels"] == want.to_dict()["labels"]
    assert got["metrics"]["train_loss"] == pytest.approx(want.metrics["train_loss"], rel=1e-3)


def _network():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
