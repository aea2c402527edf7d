"""Pictures kept as bytes train as the numbers that they stand for, bit for bit, on every engine."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from corymb.algorithms import IFCA
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.data import FederatedDataset, Ragged, rotated
from corymb.engines import Placement, examples
from corymb.engines.examples import ExampleTable, held_on
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


def test_a_data_set_that_is_large_for_the_gpu_is_held_in_the_machines_memory(monkeypatch, caplog):
    gpu, data = torch.device("cuda"), pictures()  # 24 + 32 pictures of 16 bytes, with labels of 8 bytes
    taken = (24 + 32) * (16 + 8)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * taken, 0))
    assert held_on(data, gpu, torch.float32) == gpu
    assert caplog.records == []
    assert held_on(divided(data), gpu, torch.float32) == torch.device("cpu")  # floats take four times as much
    assert "they stay in the machine's memory" in caplog.text
    assert held_on(divided(data), torch.device("cpu"), torch.float32) == torch.device("cpu")


@pytest.mark.parametrize("given", [pictures(), uneven(pictures()), divided(uneven(pictures()))])
def test_a_table_held_elsewhere_returns_the_same_examples_as_copies(given, monkeypatch):
    here, there = torch.device("cpu", 0), torch.device("cpu")  # two names, for want of a GPU
    sent = []
    monkeypatch.setattr(examples, "_sent", lambda rows, device: (sent.append(len(rows)), rows.to(device, copy=True))[1])
    usual, held = (ExampleTable(given.train, None, here, torch.float32, place) for place in (here, there))
    for ids in (torch.tensor([0, 2]), torch.arange(4)):
        for copy in (True, False):
            got, want = held.stack(ids, copy=copy), usual.stack(ids)
            assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
            got.x.zero_()
            assert torch.equal(held.stack(ids).x, want.x)
    assert all(torch.equal(one, other) for one, other in zip(held.one(1), usual.one(1), strict=True))
    assert max(sent) <= len(given.train.y)
    new = given.train._replace(x=given.train.x[:2], y=given.train.y[:2], offsets=torch.tensor([0, 2]))
    for table in (usual, held):
        table.replace(torch.tensor([3]), new)
    assert torch.equal(held.stack(torch.arange(4)).x, usual.stack(torch.arange(4)).x)
    assert held.x.device == there
