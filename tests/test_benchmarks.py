"""What the benchmarks measure, at a small size."""

import numpy as np
import pytest

from corymb.engines.vectorised import engine

peers = pytest.importorskip("benchmarks.peers.__main__")
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


def test_the_table_of_peers_has_the_best_of_each_library_and_names_failures():
    def row(library, threads, cpu, wall, **more):
        numbers = {"cpu": cpu, "wall": wall, "MiB": 100.0, "accuracy": 1.0, "difference": 1e-5}
        about = {"case": "mlp-100x600", "library": library, "threads": threads, "versions": {}, "load": 0.1}
        return {**numbers, **about, **more}

    rows = [row("corymb", 1, 2.0, 2.0), row("corymb", 1, 1.0, 1.0), row("corymb", 2, 1.0, 0.5)]
    rows += [row("pfl", 1, 3.0, 3.0), row("pfl", 2, 3.0, 1.5)]
    failed = {"case": "mlp-100x600", "library": "fedlab", "threads": 2, "versions": {}, "load": 0.1}
    lines = peers.report([*rows, {**failed, "failed": "not done after 300 s"}]).splitlines()
    assert "| Corymb | 1.000 | 1.00 | 0.500 | 1.00 | 100 | 1.0000 | 1e-05 |" in lines
    assert "| pfl | 3.000 | 3.00 | 1.500 | 3.00 | 100 | 1.0000 | 1e-05 |" in lines
    assert "FedLab, 2 threads: not done after 300 s." in lines
    assert not [line for line in lines if line.startswith("| FedLab")]


def test_the_window_of_thresholds_is_found(tmp_path, monkeypatch, capsys):
    window = pytest.importorskip("benchmarks.threshold_window")
    monkeypatch.setattr("sys.argv", ["", "--out", str(tmp_path / "window.svg"), "--points", "2"])
    window.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all("gap rule" in line and "nan" not in line for line in lines)
    assert (tmp_path / "window.svg").exists()
