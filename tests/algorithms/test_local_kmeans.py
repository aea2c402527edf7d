"""Local-KMeans and ONE_SHOT-IFCA: the parts that they share with other algorithms are combined correctly."""

from dataclasses import replace

import pytest
import torch

from corymb import datasets
from corymb.algorithms.local_kmeans import LocalKMeans
from corymb.algorithms.one_shot_ifca import OneShotIFCA
from corymb.algorithms.sr_fca import SRFCA
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import planned_rounds
from corymb.engines import VectorisedEngine
from corymb.evaluate import cluster_metrics, evaluate
from corymb.faults import Fault, inject
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.settings import InvalidInput
from tests import tiny
from tests.contracts.cases import same_bits

every_engine = pytest.mark.parametrize("engine", tiny.ENGINES)
TRUTH = (0, 1, 0, 1, 0, 0, 1)


def lines(engine: str) -> Federation:
    data = tiny.regression((16, 19, 22, 17, 16, 18, 20), TRUTH)
    return tiny.federation(engine, LinearRegression(3, dtype=torch.float64), data)


@every_engine
def test_local_kmeans_is_the_mean_of_each_clusters_minimisers(engine):
    (at,) = drive(LocalKMeans(k=2), lines(engine))
    assert cluster_metrics(at.labels, torch.tensor(TRUTH))["misclustering"] == 0
    train = tiny.regression((16, 19, 22, 17, 16, 18, 20), TRUTH).train
    rows = [slice(int(a), int(b)) for a, b in zip(train.offsets, train.offsets[1:], strict=False)]
    own = torch.stack([torch.linalg.lstsq(train.x[r], train.y[r, None]).solution[:, 0] for r in rows])
    for c in range(2):
        assert torch.allclose(at.models["weight"][c], own[at.labels == c].mean(0), atol=1e-9)
    assert list(drive(LocalKMeans(k=2), lines(engine), at)) == []


def test_local_kmeans_from_one_start_is_better_than_chance_on_digits():
    """The paper's table has 10 %: there, every client drew a start of its own."""
    data = datasets.digits(0)
    fed = Federation(VectorisedEngine(Classification(Network(mlp(64, [32], 10)), 10), data))
    algorithm = LocalKMeans(k=4, alone=Descent(lr=0.3, steps=100))
    (at,) = drive(algorithm, fed)
    metrics = evaluate(fed, algorithm, at, truth=data.truth)
    assert metrics["misclustering"] == 0
    assert metrics["test_accuracy"] > 0.8


def test_a_client_far_off_takes_a_cluster_for_itself_unless_directions_are_compared():
    data = tiny.regression((16, 19, 22, 17, 16, 18, 20), TRUTH)
    far = data.train.offsets[3]
    data.train.y[:far] *= torch.where(torch.arange(int(far)) < data.train.offsets[2], 1.0, 50.0)  # the third client
    fed = tiny.federation("vectorised", LinearRegression(3, dtype=torch.float64), data)
    (at,) = drive(LocalKMeans(k=2), fed)
    assert at.labels.bincount().sort().values.tolist() == [1, 6]
    (at,) = drive(LocalKMeans(k=2, compare="directions"), fed)
    assert cluster_metrics(at.labels, torch.tensor(TRUTH))["misclustering"] == 0


def test_clients_with_flipped_labels_get_no_cluster_of_their_own():
    """Two of ten in every cluster: k-means would join two clusters to have a centre for them."""
    data = datasets.digits(0, clients=40).in_order()
    bad = torch.cat([(data.truth == c).nonzero().flatten()[:2] for c in range(4)])
    honest = ~torch.isin(torch.arange(len(data)), bad)
    engine = VectorisedEngine(Classification(Network(mlp(64, [32], 10)), 10), data)
    fault = Fault("flipped-labels", clients=tuple(engine.names[i] for i in bad.tolist()))
    found = {}
    for aggregate in ("mean", "multi-krum"):
        (at,) = drive(LocalKMeans(k=4, aggregate=aggregate), Federation(inject(engine, [fault])))
        found[aggregate] = cluster_metrics(at.labels[honest], data.truth[honest])["ari"]
    assert found["mean"] < 0.8
    assert found["multi-krum"] == 1.0


def test_one_shot_ifca_starts_from_the_clusters_of_one_shot():
    alone, local = Descent(lr=0.05, steps=60), Descent(lr=0.05, steps=2)
    algorithm = OneShotIFCA(threshold=0.5, distance="l2", alone=alone, rounds=3, local=local)
    for engine in tiny.ENGINES:
        fed = lines(engine)
        whole = list(drive(algorithm, fed, seed=2))
        assert [at.stage for at in whole] == ["one_shot/alone", "one_shot/one-shot", "ifca", "ifca", "ifca"]
        assert len(whole) == planned_rounds(algorithm)
        sr_fca = SRFCA(threshold=0.5, distance="l2", alone=alone, refinements=0)
        *_, first = drive(sr_fca, lines(engine), seed=2)
        assert tiny.farthest(whole[1].models, first.models) == 0
        assert torch.equal(whole[1].labels, first.labels)
        assert whole[-1].k == 2
        assert torch.equal(whole[-1].labels, first.labels)
        for place in reversed(range(len(whole))):
            rest = list(drive(algorithm, fed, whole[place]))
            assert all(same_bits(got, want) for got, want in zip(rest, whole[place + 1 :], strict=True))


def test_one_shot_ifca_finds_the_clusters_of_digits():
    data = datasets.digits(1)
    fed = Federation(VectorisedEngine(Classification(Network(mlp(64, [32], 10)), 10), data))
    algorithm = OneShotIFCA(alone=Descent(lr=0.3, steps=100), rounds=5, local=Descent(lr=0.3, steps=10), repair=False)
    *_, last = drive(algorithm, fed)
    assert last.k == 4
    assert cluster_metrics(last.labels, data.truth)["ari"] == 1.0


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(InvalidInput, match="k must be at least 1"):
        LocalKMeans(k=0)
    for wrong in ({"threshold": -1.0}, {"least": 0}, {"distance": "far"}, {"rounds": 0}):
        with pytest.raises(InvalidInput):
            replace(OneShotIFCA(), **wrong)
