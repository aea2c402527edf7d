"""If any process is killed, the run continues or is resumed, and its result is that of an undisturbed run."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

import corymb
from tests.federation.conftest import ROOT, Federation
from tests.federation.nodes import LINE, dataset

pytestmark = [pytest.mark.flower_all, pytest.mark.timeout(600)]  # half of that and less on a machine that is not busy
NODES, ROUNDS = 3, 4


@pytest.fixture(scope="module")
def undisturbed():
    """The run in one process: clients keep their models to themselves, from call to call."""
    algorithm = corymb.configure("alone", dataset(LINE), rounds=ROUNDS)
    return corymb.fit(algorithm, dataset(LINE), engine="loop", precision="float64", evaluate_every=0).metrics


class Driver:
    """`corymb run` in a separate process."""

    def __init__(self, federation, out, module=("corymb",)):
        self.federation, self.out = federation, out
        words = ["run", "federation", "alone", "--rounds", ROUNDS, "--engine", "flower", "--nodes", NODES]
        words += ["--address", federation.address, "--secret", federation.state / "secret", "--evaluate_every", 0]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", *map(str, [*module, *words, "--out", out, "--json", "-q"])],
            cwd=federation.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_rounds(self, rounds):
        until = time.monotonic() + 120
        lines = self.out / "rounds.jsonl"
        while (not lines.exists() or len(lines.read_text().splitlines()) < rounds) and time.monotonic() < until:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)

    def result(self):
        out, err = self.process.communicate(timeout=280)
        assert self.process.returncode == 0, err[-2000:]
        return json.loads(out)


def pid_of(folder, name):
    return next(one["pid"] for one in json.loads((folder / "processes.json").read_text()) if one["name"] == name)


def assert_undisturbed(result, want):
    assert result["rejected"] == [] if "rejected" in result else True
    assert result["metrics"]["test_squared_error"] == pytest.approx(want["test_squared_error"], abs=1e-9)
    assert result["metrics"]["train_loss"] == pytest.approx(want["train_loss"], abs=1e-9)


@pytest.mark.parametrize("victim", ["worker", "supernode", "superlink"])
def test_a_run_continues_when_a_process_is_killed(federation, tmp_path, undisturbed, victim):
    driver = Driver(federation, tmp_path / "run")
    driver.wait_for_rounds(1)
    time.sleep(0.5)  # in the middle of a tick
    folder = federation.state / ("superlink" if victim == "superlink" else "nodes/node-1")
    os.kill(pid_of(folder, victim), signal.SIGKILL)
    assert_undisturbed(driver.result(), undisturbed)


def resumed(federation, out):
    """What `corymb resume` ends with; it must do so in 200 s."""
    return json.loads(federation.command("resume", out, "--json", "-q").stdout)


def test_a_driver_that_is_killed_in_the_middle_of_a_tick_is_resumed(federation, tmp_path, undisturbed):
    driver = Driver(federation, tmp_path / "run")
    driver.wait_for_rounds(2)
    time.sleep(0.5)
    driver.process.kill()
    driver.process.communicate()
    assert_undisturbed(resumed(federation, tmp_path / "run"), undisturbed)


def test_nodes_still_answer_after_a_driver_is_killed_while_sending(federation, tmp_path, undisturbed):
    """Nodes wait for a message that never arrives, and still receive the next one."""
    driver = Driver(federation, tmp_path / "run", ["tests.federation.dying", tmp_path / "run", 2])
    output = driver.process.communicate(timeout=200)
    assert driver.process.returncode == -signal.SIGKILL, output
    assert_undisturbed(resumed(federation, tmp_path / "run"), undisturbed)


def test_the_path_of_a_new_user(tmp_path):
    """`corymb flower new myfed && cd myfed && corymb flower up --nodes 3 && corymb flower run`, as in the README."""
    made = Federation.of_a_new_user(tmp_path)
    made.command("flower", "up", "--nodes", 3)
    try:
        done = made.command("flower", "run", timeout=280)
        assert "ifca on federation" in done.stdout
        assert "None" not in done.stdout.split("To run it again")[1]  # hints can be typed
        assert (made.folder / done.stdout.split()[-1]).name == "report.html"
        assert (made.folder / done.stdout.split()[-1]).stat().st_size > 10_000
        run = made.folder / "runs" / "myfed-ifca-1"
        assert "nodes = 3" in (run / "config.toml").read_text()
        hint = shlex.split(done.stdout.split("To run it again: corymb ")[1].split("Compare with")[0])
        again = made.command(*hint, "--out", tmp_path / "again", "--json", "-q")
        assert json.loads(again.stdout)["metrics"] == json.loads((run / "result.json").read_text())["metrics"]
        assert "3 nodes online" in made.command("flower", "status").stdout
        healthy = made.command("flower", "doctor", "--echo").stdout
        assert "s there and back (median of 3, 400 kB to 3 nodes)" in healthy
        assert "WRONG" not in healthy
    finally:
        made.command("flower", "down")
    assert "Nothing was running" in made.command("flower", "down").stdout
    assert made.command("flower", "status", check=False).returncode == 1
    assert "nothing answers" in made.command("flower", "doctor").stdout
    assert "WRONG: nothing answers" in made.command("flower", "doctor", "--echo", check=False).stdout
