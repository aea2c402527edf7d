"""Bare torch, NumPy and safetensors are enough for a run, and a run of many clients does not fill the machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import corymb

SOURCE = Path(corymb.__file__).parent.parent
HEAVY = [
    *("scipy", "sklearn", "pydantic", "cyclopts", "jinja2", "plotly"),
    *("flwr", "tomli_w", "rich", "pandas", "matplotlib", "pyarrow", "ray"),
]
BLOCK = f"import sys\nsys.modules.update(dict.fromkeys({HEAVY!r}))\n"  # None: as if it were not installed
PREPARE = """
import json, resource, sys, time
import numpy as np
import torch
from typing import NamedTuple
from corymb.algorithms import IFCA, FedAvg
from corymb.core.driver import drive
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.core.federation import Federation
from corymb.local import Descent
from corymb.objectives import LinearRegression

class Ragged(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor
    offsets: torch.Tensor

class Data(NamedTuple):
    names: list
    train: Ragged
    test: Ragged

def regression(n, m, d):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n * m, d), dtype=np.float32)
    theta = rng.standard_normal((2, d), dtype=np.float32)
    y = (x * theta[np.repeat(np.arange(n) % 2, m)]).sum(1)
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    nothing = Ragged(x[:0], y[:0], torch.zeros(n + 1, dtype=torch.int64))
    return Data([f"client-{i}" for i in range(n)], Ragged(x, y, torch.arange(n + 1) * m), nothing)

def last(snapshots):
    for at in snapshots:
        pass
    return at
"""
SMALL = """
import corymb
data = regression(20, 10, 4)
for engine in (LoopEngine, VectorisedEngine):
    fed = Federation(engine(LinearRegression(4), data))
    at = last(drive(IFCA(k=2, rounds=8, local=Descent(lr=0.1, steps=5), restarts=2), fed, seed=1))
    print(json.dumps({"labels": at.labels.tolist(), "heavy": sorted(n for n in HEAVY if sys.modules.get(n))}))
"""
LARGE = """
began = time.perf_counter()
data = regression(100_000, 10, 20)
made = time.perf_counter()
fed = Federation(VectorisedEngine(LinearRegression(20), data))
ready = time.perf_counter()
at = last(drive(IFCA(k=2, rounds=50, participants=0.01, local=Descent(lr=0.02, steps=5)), fed, seed=1))
done = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
seen = at.labels >= 0
print(json.dumps({
    "peak_gib": peak, "made_s": made - began, "ready_s": ready - made, "run_s": done - ready,
    "seen": int(seen.sum()), "loss": at.notes["train_loss"], "asked": fed.ledger.asked,
}))
"""


def run(script: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_bare_torch_is_enough_for_a_run():
    for result in run(f"{BLOCK}\nHEAVY = {HEAVY!r}\n{PREPARE}\n{SMALL}"):
        assert result["heavy"] == []
        assert result["labels"] in ([0, 1] * 10, [1, 0] * 10)


def test_a_run_from_the_command_line_imports_what_it_needs(tmp_path):
    """No compiler, no tables, no transport, and of the algorithms its own."""
    named = [
        *("sklearn", "scipy", "pandas", "matplotlib", "plotly", "pyarrow"),
        *("torch._dynamo", "torch._inductor", "sympy"),
        *("corymb.algorithms.ifca", "corymb.algorithms.sr_fca", "corymb.algorithms.moment_descent"),
        *("corymb.testing", "corymb.recipes", "corymb.engines.flower", "corymb.engines.ray"),
    ]
    (result,) = run(
        "import json, os, sys\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "from corymb.cli.app import main\n"
        "sys.argv = ['corymb', 'run', 'digits', 'fedavg', '--rounds', '1']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print(json.dumps({{'heavy': sorted(set(sys.modules) & set({named!r}))}}))"
    )
    assert result["heavy"] == []


def test_a_hundred_thousand_clients_fit_in_two_gibibytes():
    (result,) = run(PREPARE + LARGE)
    print(result)
    assert result["peak_gib"] < 2
    assert result["asked"] == 50 * 1000
    assert 30_000 < result["seen"] < 50_000  # a different thousand every round
    assert result["loss"] < 1e-3
    assert result["run_s"] < 30  # it takes less than one


def test_the_suite_is_collected_without_flower_and_ray():
    """`make test` on a fresh machine has neither; `make check` has Flower, so that nobody would notice there."""
    collect = "import pytest\nsys.exit(pytest.main(['--collect-only', '-qq', '--doctest-modules', 'src', 'tests']))"
    script = f"import sys\nsys.modules.update(flwr=None, ray=None)\n{collect}"
    done = subprocess.run([sys.executable, "-c", script], cwd=SOURCE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
