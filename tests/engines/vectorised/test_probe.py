import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import corymb
from corymb.engines import VectorisedEngine
from corymb.engines.vectorised.probe import refuse_unknown_codes
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.settings import InvalidInput


def engine_of(model, top, scale="codes"):
    """Four clients with pairs of words from 0 to 5; the last one's largest is `top`."""
    words, client = np.random.default_rng(0).integers(6, size=(40, 2)), np.arange(40) // 10
    words[-1, 1] = top
    data = corymb.FederatedDataset.from_arrays(words, np.arange(40) % 2, client, test=0, scale=scale)
    return VectorisedEngine(Classification(Network(model), 2), data)


def embedding():
    return nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(8, 2))


def test_codes_without_a_row_are_found_before_they_reach_a_gpu():
    refuse_unknown_codes(engine_of(embedding, top=5).host)
    refuse_unknown_codes(engine_of(mlp(2, [4], 2), top=50, scale="none").host)
    with pytest.raises(InvalidInput, match=r"Clients '3' \(1 in all\) have codes that the model has no row for"):
        refuse_unknown_codes(engine_of(embedding, top=6).host)


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 2)

    def forward(self, x):
        return self.out(x.float()) / 0


def test_a_model_whose_losses_are_never_finite_is_named_as_the_cause(caplog):
    engine_of(Broken, top=5, scale="none")
    assert [line for line in caplog.messages if "a fresh model's losses are NaN or infinite" in line]
    caplog.clear()
    engine_of(mlp(2, [4], 2), top=5, scale="none")
    assert not caplog.messages


LARGE = """
import torch
from pathlib import Path
from types import SimpleNamespace
from corymb.engines import VectorisedEngine
from corymb.models import Network, mlp
from corymb.objectives import Classification

def peak():  # not ru_maxrss, which begins with that of the process that started this one
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])

torch.set_num_threads(1)
rows = SimpleNamespace(x=torch.randn(20, 256), y=torch.arange(20) % 10, offsets=torch.tensor([0, 8, 20]))
objective = Classification(Network(mlp(256, [2048, 2048], 10)), 10)
before = peak()
engine = VectorisedEngine(objective, SimpleNamespace(names=["a", "b"], train=rows, test=rows))
print((peak() - before) / engine.kernels.traits.parameter_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_large_model_is_checked_in_few_copies():
    """Two clients, in float64, by two ways: 24 times the model in float32, where it was 48."""
    environment = {**os.environ, "PYTHONPATH": str(Path(corymb.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LARGE], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert float(done.stdout) < 34
