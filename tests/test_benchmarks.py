"""What the benchmarks measure, at a small size."""

import numpy as np
import pytest

from corymb.engines.vectorised import engine

prepare = pytest.importorskip("benchmarks.peers.prepare")
work = pytest.importorskip("benchmarks.peers.work")


@pytest.mark.parametrize("batch", [5, None])
def test_the_work_of_a_peer_is_the_batches_of_every_client(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "LIKELY_FACTOR", 2**62)  # the first round tries one client, to see what memory it takes
    case = work.Case("tiny", "", "mlp", clients=4, batch=batch, examples=15, steps=3, rounds=2)
    prepare.prepare(case, tmp_path)
    order = work.Task.load(tmp_path).order
    if batch is None:
        assert order is None
        return
    assert order.shape == (2, 4, 3, 5)
    assert all(len(np.unique(rows)) == 5 and rows.max() < 15 for rows in order.reshape(-1, 5))
