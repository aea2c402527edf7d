"""`import corymb` is light, and IFCA runs where there is nothing but torch, numpy and safetensors."""

import os
import subprocess
import sys

HEAVY = "scipy sklearn pydantic cyclopts jinja2 rich plotly flwr tomli_w pandas pyarrow matplotlib".split()  # noqa: SIM905

IMPORTED = f"""
import sys, corymb
assert "torch" not in sys.modules, "import corymb brings torch"
corymb.fit, corymb.IFCA, corymb.Run, corymb.FederatedDataset
print([name for name in {HEAVY} if name in sys.modules])
"""

BLOCKED = f"""
import sys
for name in {HEAVY}:
    sys.modules[name] = None  # importing it now fails
import corymb
data = corymb.datasets.mixed_regression_ifca(n=6, m=10, d=3, test=4)
run = corymb.fit(corymb.IFCA(k=2, rounds=3, restarts=2), data, progress=True)
assert run.metrics.keys() >= {{"test_squared_error", "ari"}}
assert run.predict(data.test.of(0)[0], client="client-0").shape == (4,)
import numpy as np
own = corymb.fit(corymb.FedAvg(rounds=1), (np.eye(8) * 50, np.arange(8) % 2, np.arange(8) % 2))
assert "test_accuracy" in own.metrics
"""


def in_a_process_of_its_own(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_heavy_is_imported_before_it_is_used():
    assert in_a_process_of_its_own(IMPORTED).strip() == "[]"


def test_ifca_runs_with_bare_torch():
    in_a_process_of_its_own(BLOCKED)
