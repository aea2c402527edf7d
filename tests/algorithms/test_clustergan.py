"""ClusterGAN finds clusters of examples without labels, never sends them, and reports what it needs."""

import numpy as np
import pytest

import corymb
from corymb import ClusterGAN, Descent, fit
from corymb.algorithms.clustergan import POINTS
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.data import FederatedDataset
from corymb.models.adversarial import Dense
from corymb.objectives.adversarial import ClusterGame
from corymb.runs.learners import MODELS
from corymb.settings import InvalidInput
from corymb.testing.engines import DOUBLE, Spy, engine_maker

FAST = Descent(lr=1e-2, steps=40, batch=32, optimiser="adam")
GAME = ClusterGame(Dense(2, hidden=16), critic_steps=2)


def heaps(sizes=(80, 80), unit=1.0):
    """Examples near −2 and +2 by turns, the second feature in units of its own."""
    rng = np.random.default_rng(0)
    y = np.arange(sum(sizes)) % 2
    x = ((4.0 * y - 2)[:, None] + 0.3 * rng.normal(size=(len(y), 2))) * [1, unit]
    return FederatedDataset.from_arrays(x, y, np.repeat(np.arange(len(sizes)), sizes), task="density")


def test_heaps_are_found_saved_and_drawn_from(tmp_path):
    data = heaps()
    run = fit(ClusterGAN(k=2, rounds=5, local=FAST), data, GAME, out=tmp_path / "run", evaluate_every=0)
    assert run.metrics["purity"] > 0.95
    assert run.labels == {}
    assert sum(run.points) == int(data.sizes.sum())
    assert run.history[-1]["notes"]["points"] != []
    again = corymb.Run.load(tmp_path / "run", model=GAME)
    assert again.points == run.points
    x = data.test.x.numpy()
    assert again.assign_points(x).tolist() == run.assign_points(x).tolist()
    for cluster in (0, 1):
        assert np.mean(run.assign_points(run.sample(cluster, 50)) == cluster) > 0.8


def test_tiny_clients_and_raw_units_work():
    """A client with one example, more clusters than examples at a client, features in units of their own."""
    data = heaps((1, 2, 30), unit=1e4)
    run = fit(ClusterGAN(k=4, rounds=2, local=Descent(lr=1e-3, steps=3, batch=8, optimiser="adam")), data)
    assert sum(run.points) == int(data.sizes.sum())
    assert np.isfinite(run.sample(3, 4)).all()
    assert run.rejected == []


def test_bytes_are_those_of_the_docs():
    data = heaps()
    run = fit(ClusterGAN(k=3, rounds=1, local=Descent(lr=1e-3, steps=2, batch=4)), data, GAME, evaluate_every=0)
    size = sum(value[0].numel() for value in run.models.values())
    assert run.history[-1]["bytes_down"] == len(data) * size * 4
    assert run.history[-1]["bytes_up"] == len(data) * (size + 3 + 2) * 4


def test_models_and_counts_are_all_that_the_server_sees():
    spy = Spy(engine_maker("wired")(GAME.to("cpu", DOUBLE.dtype), heaps((9, 12)), DOUBLE))
    fed = Federation(spy)
    *_, at = drive(ClusterGAN(k=2, rounds=2, local=Descent(lr=1e-3, steps=2, batch=4)), fed, seed=1)
    sums = [part.value for parts in spy.parts for part in parts]
    assert {name for one in sums for name in one.total} == {*at.models, POINTS}
    assert {tuple(one.total[POINTS].shape) for one in sums} == {(1, 2)}
    assert spy.kept[-1] == {}
    assert at.k == 1
    assert sum(at.notes["points"]) == int(fed.sizes.sum())


def test_a_model_without_codes_is_refused_in_one_line():
    with pytest.raises(InvalidInput, match="model 'clustergan'"):
        fit(ClusterGAN(k=2, rounds=1), heaps(), "affine")
    with pytest.raises(InvalidInput, match="k must be at least 1"):
        ClusterGAN(k=0)


def test_convolutions_are_for_pictures():
    schema = corymb.data.schema.schema_of(heaps())
    with pytest.raises(InvalidInput, match="square images"):
        MODELS["clustergan-cnn"].make(schema)
    assert "convolutions" in MODELS["clustergan-cnn"].make(schema._replace(features=(1, 8, 8))).describe()
    assert "512" in MODELS["clustergan"].make(schema._replace(features=(1, 28, 28))).describe()
