import subprocess
import sys

import numpy as np
import pytest
from torch import nn

import corymb
from corymb.engines import VectorisedEngine
from corymb.engines.vectorised.kernels import Kernels
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


@pytest.mark.parametrize(("memory", "stacked"), [(None, {2}), (1, {1})])
def test_clients_that_never_share_a_chunk_are_not_stacked_to_try_their_kernel(memory, stacked, monkeypatch):
    sizes, plain = set(), Kernels.descend

    def noting(kernels, objective, params, on, *more, **options):
        sizes.add(len(on.weight))
        return plain(kernels, objective, params, on, *more, **options)

    monkeypatch.setattr(Kernels, "descend", noting)
    objective, data = Classification(Network(mlp(64, [8], 10)), 10), corymb.datasets.digits(clients=4, train=20, test=5)
    engine = VectorisedEngine(objective, data, memory=memory)
    assert sizes == stacked
    assert engine.kernels.pick(None) == VectorisedEngine(objective, data).kernels.pick(None)
    assert not engine.kernels.tapes.kept  # they would hold the probe's models


class BatchMean(nn.Module):
    """An example's output depends on the others, but only if there are more than one."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        out = self.out(x.flatten(1))
        return out - out.mean(0, keepdim=True) / 2


def test_a_model_that_couples_examples_is_found_when_clients_are_not_stacked(caplog):
    data = corymb.datasets.digits(clients=4, train=20, test=5)
    engine = VectorisedEngine(Classification(Network(BatchMean), 10), data, memory=1)
    assert (engine.kernels.only, engine.kernels.traits.independent) == ("serial", False)
    assert any("clients run one by one" in line for line in caplog.messages)


PEAK = """
from pathlib import Path

import torch
import corymb
from corymb.engines import VectorisedEngine
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.objectives.null import NullObjective

def peak():  # not ru_maxrss, which begins with that of the process that started this one
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])

torch.set_num_threads(1)
engine = VectorisedEngine(NullObjective(), corymb.datasets.digits(clients=4, train=20, test=5), memory=1)
objective = Classification(Network(mlp(64, [1800, 1800, 1800], 10)), 10)
model = sum(p.numel() * p.element_size() for p in objective.init(torch.tensor(0)).values())
before = peak()
engine.open(objective)
print((peak() - before) / model)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_the_probe_of_a_large_model_holds_few_copies_of_it():
    """In float64, a copy is two: it held 42, of which seven were left for the length of the run."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 14
