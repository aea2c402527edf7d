"""Pictures kept as bytes train as the numbers that they stand for, bit for bit, on every engine."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from corymb.algorithms import IFCA
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.data import FederatedDataset, Ragged, rotated
from corymb.engines import Placement
from corymb.engines.examples import ExampleTable
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.testing.engines import DOUBLE, ENGINES


def pictures() -> FederatedDataset:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (24, 4, 4), dtype=np.uint8), rng.integers(0, 3, 24)
    return rotated(x, y, x[:8], y[:8], clients=4, per_client=6, flat=True)


def divided(data: FederatedDataset) -> FederatedDataset:
    return replace(
        data, **{part: getattr(data, part)._replace(x=getattr(data, part).x / 255) for part in ("train", "test")}
    )


def uneven(data: FederatedDataset) -> FederatedDataset:
    """The same rows at clients of several sizes, so that some are padded."""
    return replace(data, train=data.train._replace(offsets=torch.tensor([0, 3, 9, 14, 24])))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("placement", [DOUBLE, Placement()], ids=["float64", "float32"])
def test_runs_are_the_same(engine, placement):
    objective = Classification(Network(mlp(16, [5], 3)), 3).to("cpu", placement.dtype)
    algorithm = IFCA(k=2, rounds=2, local=Descent(lr=0.1, epochs=1, batch=4))
    for data in (pictures(), uneven(pictures())):
        ends = []
        for form in (data, divided(data)):
            *_, last = drive(algorithm, Federation(ENGINES[engine](objective, form, placement)))
            ends.append(last)
        assert all(torch.equal(ends[0].models[name], ends[1].models[name]) for name in ends[0].models)


def table(rows: Ragged) -> ExampleTable:
    return ExampleTable(rows, torch.arange(len(rows.sizes)), torch.device("cpu"), torch.float32)


def test_bytes_are_stored_as_bytes_and_counted_as_floats():
    data = pictures()
    kept, other = table(data.train), table(divided(data).train)
    assert kept.x.dtype == torch.uint8
    assert kept.row_bytes == other.row_bytes == 16 * 4 + 8


def test_new_examples_as_numbers_beside_bytes_and_the_other_way():
    data = pictures()
    for first, then in ((data, divided(data)), (divided(data), data)):
        changed = table(first.train)
        changed.replace(torch.tensor([1]), then.subset([3]).train)
        want = divided(data).train
        assert torch.equal(changed.one(1).x, want.of(3)[0])
        assert torch.equal(changed.one(2).x, want.of(2)[0])


def test_writing_into_returned_examples_changes_nothing():
    rows = table(pictures().train)
    for handed in (rows.one(0), rows.stack(torch.arange(4), copy=False)):
        handed.x.fill_(7)
    assert float(rows.one(0).x.max()) <= 1


def test_rows_are_current_whichever_clients_were_asked_before():
    data = pictures()
    rows, everybody = table(data.train), torch.arange(4)
    assert rows.stack(everybody).x.shape[:2] == (4, 6)
    assert rows.stack(torch.tensor([2, 1])).x.shape[:2] == (2, 6)
    assert torch.equal(rows.stack(torch.tensor([2, 1])).x[0], rows.one(2).x)
    rows.replace(torch.tensor([1]), uneven(data).subset([3]).train)  # ten rows instead of six
    stacked = rows.stack(everybody)
    assert rows.longest(everybody) == stacked.x.shape[1] == 10
    assert all(torch.equal(stacked.x[i, : len(rows.one(i).y)], rows.one(i).x) for i in range(4))
