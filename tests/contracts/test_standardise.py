"""Standardisation works on every engine: moments are sums over clients, whichever engine adds them up."""

import pytest
import torch

from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.runs.standardise import FAR
from corymb.runs.standardise.objective import Standardised
from corymb.runs.standardise.statistics import standard_of
from corymb.testing.assertions import assert_same_run, farthest
from corymb.testing.engines import DOUBLE, ENGINES, federation
from tests.contracts.cases import CASES

every_engine = pytest.mark.parametrize("engine", ENGINES)


def standard(case, engine):
    data = case.data()
    fed = federation(engine, case.objective(), data)
    return standard_of(fed, tuple(data.train.x.shape[1:]), targets=data.train.y.is_floating_point())


@every_engine
@pytest.mark.parametrize("name", ["IFCA", "IFCA, momentum"])
def test_every_engine_gives_the_standard_that_one_computes_by_hand(name, engine):
    case = CASES[name]
    got, x, y = standard(case, engine), case.data().train.x, case.data().train.y
    moments = got[:4]
    assert farthest(moments, standard(case, "loop")[:4]) < 1e-6  # it is kept in float32
    assert bool((got.limit == FAR).all())  # nobody supplies most of a variance
    assert bool(got.target_limit.isinf())
    assert farthest(got.mean, x.mean(0)) < 1e-6
    assert farthest(got.scale, x.std(0, correction=0)) < 1e-6
    if y.is_floating_point():
        assert farthest((got.target_mean, got.target_scale), (y.mean(), y.std(correction=0))) < 1e-6
    else:
        assert (float(got.target_mean), float(got.target_scale)) == (0, 1)


@pytest.mark.parametrize("engine", ["vectorised", "wired"])
def test_a_standardised_run_is_the_same_on_every_engine(engine):
    case = CASES["IFCA"]
    how = standard(case, "loop")
    objective = Standardised(case.objective(), how).to("cpu", torch.float64)
    runs = [
        list(drive(case.algorithm, Federation(ENGINES[name](objective, case.data(), DOUBLE)), seed=1))
        for name in ("loop", engine)
    ]
    assert_same_run(runs[1], runs[0])
