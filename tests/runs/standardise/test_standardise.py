import numpy as np
import pytest
import torch

import corymb
from corymb.core.federation import Federation
from corymb.data import as_dataset
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.objectives.null import NullObjective
from corymb.runs import standardise
from corymb.runs.standardise import Moments, send_deviations, send_means
from corymb.runs.standardise.statistics import robust_standard, standard_of
from tests.runs import small

ENGINES = [LoopEngine, VectorisedEngine]


def wide_table(features=203, clients=6, rows=20):
    """Many columns in units of their own; some are 0 or 1, one never varies, and one client has one in other units."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(clients * rows, features)) * 10.0 ** rng.integers(-3, 4, features) + rng.normal(size=features)
    x[:, ::7], x[:, 5] = x[:, ::7] > 0, 3.25
    x[:rows, 100] *= 1000
    return corymb.FederatedDataset.from_arrays(
        x.astype(np.float32), x @ rng.normal(size=features), np.repeat(np.arange(clients), rows), test=0
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_some_columns_at_a_time_give_what_all_at_once_give(engine, monkeypatch):
    data = wide_table()

    def found():
        return robust_standard(Federation(engine(NullObjective(), data)), data.features, targets=True)

    by_blocks = found()
    monkeypatch.setattr(standardise, "BLOCKS", 1)
    at_once = found()
    assert by_blocks.excluded == at_once.excluded == {"0": [100, 203]}
    assert by_blocks.broad == at_once.broad
    for one, other in zip(by_blocks.standard, at_once.standard, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=0)


def test_a_clients_temporaries_are_small_compared_with_its_features(monkeypatch):
    data, sizes, wide = wide_table(), [], standardise._wide
    monkeypatch.setattr(standardise, "_wide", lambda values: [sizes.append(values.numel()), wide(values)][1])
    standard_of(Federation(LoopEngine(NullObjective(), data)), data.features, targets=True)
    assert max(sizes) <= 20 * 203 / standardise.BLOCKS + 20


def test_only_sums_cross_the_door():
    data = as_dataset(small.arrays(), seed=0)
    fed = Federation(VectorisedEngine(NullObjective(), data))
    total, weight, label, note = fed.clients.sum(send_means).value
    assert {name: list(value.shape) for name, value in total.items()} == {
        "x": [1, 2],
        "y": [1],
        "size of x": [1, 2],
        "size of y": [1],
    }
    assert weight.tolist() == [len(data.train.y)]
    assert (label, note) == (None, ())
    moments = Moments(torch.ones(2), torch.ones(()))
    total, weight, label, note = fed.clients.sum(send_deviations, moments, moments).value
    assert {name: list(value.shape) for name, value in total.items()} == {"x": [1, 2], "y": [1]}
    assert (label, note) == (None, ())
