"""Cells of SR-FCA's tables: their reports and costs, and the authors' code as algorithms."""

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from corymb.algorithms import SRFCA, LocalKMeans
from corymb.data.built_in.digits import digits_inverted
from corymb.local import Descent
from corymb.recipes.sr_fca import cells, settings
from corymb.runs.fit import fit
from corymb.settings import InvalidInput

WORK = Descent(lr=0.3, steps=3, batch=20)
ALONE = Descent(lr=0.3, steps=30, batch=20)
TINY = replace(
    settings.SETTINGS["quick-inverted-digits"], data=lambda seed: digits_inverted(seed, clients=8), rounds=3, local=WORK
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(settings, "SETTINGS", MappingProxyType({"tiny": TINY}))
    settings.data_of.cache_clear()
    yield
    settings.data_of.cache_clear()


def test_a_cell_of_sr_fca_tells_its_stages_and_counts_its_costs(tiny):
    found = cells.work("tiny/sr-fca/0")
    n, rounds, steps, k = 8, 3, 3, found["stage_clusters"][0]
    assert len(found["stages"]) == 3
    assert found["stages"][-1] == found["accuracy"]
    assert found["stages"][0] != found["stages"][1]
    assert found["costs"]["steps"] == n * 60 + 2 * rounds * n * steps
    assert found["costs"]["losses"] == n * n + n * (k + found["stage_clusters"][1])
    assert sum(found["distances"]["distance_counts"]) == n * (n - 1) / 2
    assert {"data", "source", "device", "seconds", "budget", "misclustering", "ari"} <= set(found)
    one_shot = SRFCA(threshold="gap", refinements=0, alone=TINY.alone)
    alone = fit(one_shot, settings.data_of("tiny", 0), TINY.model(), seed=0, evaluate_every=0)
    assert found["stages"][0] == pytest.approx(100 * alone.metrics["test_accuracy"])


def test_other_cells(tiny):
    found = cells.work("tiny/ifca/0")
    assert found["costs"]["losses"] == 3 * 8 * 2
    assert found["costs"]["steps"] == 3 * 8 * 3
    assert "misclustering" not in cells.work("tiny/local/0")
    with pytest.raises(InvalidInput, match="sr-fca"):
        cells.work("tiny/srfca/0")
    with pytest.raises(InvalidInput, match="λ"):
        cells.work("tiny/sr-fca-lambda/0")


def test_weights_that_are_shared_make_no_difference_to_one_client_a_round():
    how = {"threshold": "gap", "refinements": 1, "rounds": 1, "local": WORK, "alone": ALONE, "trim": 0.0}
    data = digits_inverted(0, clients=6)

    def models(kind, participants):
        return fit(kind(**how, participants=participants), data, TINY.model(), seed=0, evaluate_every=0).models

    for participants, same in ((1, True), (3, False)):
        plain, shared = (models(kind, participants) for kind in (SRFCA, cells.AliasedSRFCA))
        assert all(torch.allclose(plain[name], shared[name], atol=1e-6) for name in plain) is same


def test_means_of_networks_that_began_apart_know_less():
    data = digits_inverted(0, clients=6)
    one, many = (
        fit(kind(k=2, alone=replace(ALONE, steps=100)), data, TINY.model(), seed=0, evaluate_every=0)
        for kind in (LocalKMeans, cells.ScatteredKMeans)
    )
    assert one.metrics["test_accuracy"] > many.metrics["test_accuracy"] + 0.2


def test_the_thresholds_of_cfl_are_in_parts_of_the_first_update(tiny):
    at = cells.Place(TINY, settings.data_of("tiny", 0), 0)
    algorithm = cells.METHODS["cfl"](at)
    assert algorithm.settled / algorithm.apart == pytest.approx(TINY.quiet[0] / TINY.quiet[1])
    assert algorithm.rounds == 3
