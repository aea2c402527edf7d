import pytest
import torch

from corymb.algorithms import SRFCA
from corymb.algorithms.parts.cost import FLOPS, Cost, pairwise_cost, warn_or_refuse
from corymb.core.federation import Federation
from corymb.keys import root
from corymb.models import Network, char_lstm, cnn, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.settings import InvalidInput
from corymb.testing.engines import Scripted


def crowd(n, features=100, size=50, schema=None):
    """A federation of so many clients, none of which is ever asked; without a schema nothing can be measured."""
    engine = Scripted(LinearRegression(features), torch.full((n,), size))
    if schema:
        engine.schema = schema
    return Federation(engine)


@pytest.fixture
def assumed(monkeypatch):
    """Without a trial, as on other devices: then what is assumed of a machine decides."""
    monkeypatch.setattr("corymb.algorithms.parts.cost._measured", lambda *_: None)


def test_on_a_cpu_the_time_of_a_pair_is_measured(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr("corymb.algorithms.parts.cost.perf_counter", lambda: float(next(ticks)))
    fed = crowd(100, schema={"features": (100,), "task": "regression"})
    assert pairwise_cost(fed, losses=True).seconds == 100 * 100  # a second each: so long that one is enough
    assert next(ticks) == 2


def test_small_models_are_measured_many_at_once(monkeypatch):
    """Two clocks: a model takes a millisecond for one client's three examples, and no more for those of 170 clients."""
    ticks = iter(range(100))
    monkeypatch.setattr("corymb.algorithms.parts.cost.perf_counter", lambda: next(ticks) * 1e-3)
    fed = crowd(100, features=2, size=3, schema={"features": (2,), "task": "regression"})
    assert pairwise_cost(fed, losses=True).seconds == pytest.approx(100 * 100 * 1e-3 / 170)


def test_the_cost_grows_with_the_square_of_the_number(assumed):
    small, large = (pairwise_cost(crowd(n), losses=True) for n in (100, 1000))
    assert large.pairs == 100 * small.pairs == 1_000_000
    assert large.seconds == pytest.approx(100 * small.seconds)


class Elsewhere(LinearRegression):
    """As an objective that an engine has taken to its device."""

    def init(self, key):
        return {name: value.to("meta") for name, value in super().init(key).items()}


def test_the_time_is_that_of_the_device(monkeypatch, assumed):
    elsewhere = Federation(Scripted(Elsewhere(100), torch.full((100,), 50)))
    on_cpu = pairwise_cost(crowd(100), losses=True)
    assert pairwise_cost(elsewhere, losses=True) == on_cpu  # nothing is known of it
    monkeypatch.setitem(FLOPS, "meta", FLOPS["cuda"])
    assert pairwise_cost(elsewhere, losses=True).seconds == pytest.approx(on_cpu.seconds / 200)


@pytest.mark.parametrize(
    ("model", "classes", "features", "each"),
    [
        (cnn(1, 28, 10, width=32), 10, (1, 28, 28), 5),
        (char_lstm(width=16), 80, (80,), 5),
        (mlp(20, [30], 3), 3, (20,), 1),
        (mlp(20, [30], 3), 3, (7,), 1),  # wrong: then its parameters tell
    ],
    ids=["pictures", "text", "rows", "unknown"],
)
def test_a_layer_that_is_used_often_costs_more_than_its_parameters(model, classes, features, each, assumed):
    objective = Classification(Network(model), classes)
    engine = Scripted(objective, torch.full((100,), 50))
    engine.schema = {"features": features, "codes": classes == 80, "task": "classification"}
    cost = pairwise_cost(Federation(engine), losses=True)
    parameters = sum(p.numel() for p in objective.init(root(0)).values())
    by_parameters = 100 * 100 * 50 * 2 * parameters / FLOPS["cpu"]
    assert each * by_parameters <= cost.seconds <= (2 * each if each > 1 else 1) * by_parameters


def test_sr_fca_reports_the_cost_of_thirty_thousand_clients_and_refuses(monkeypatch):
    monkeypatch.setattr("corymb.algorithms.parts.cost._memory", lambda: 16e9)
    fed = crowd(30_000)
    with pytest.raises(InvalidInput, match=r"30,000 clients compares 900,000,000 pairs: .* 22 GB\. Give sample=400"):
        next(iter(SRFCA(threshold=1.0).run(fed)))
    assert fed.ledger.asked == 0


def test_ten_thousand_clients_may_run(monkeypatch, caplog):
    monkeypatch.setattr("corymb.algorithms.parts.cost._memory", lambda: 16e9)
    warn_or_refuse(pairwise_cost(crowd(10_000), losses=True), "SR-FCA", asked=False)
    assert "100,000,000 pairs" in caplog.text
    assert "for the comparison alone; training is extra" in caplog.text


def test_a_costly_comparison_runs_if_requested(caplog):
    warn_or_refuse(Cost(10**9, 1e6, 10**15), "this", asked=True)
    assert "12 days" in caplog.text
    with pytest.raises(InvalidInput, match="--costly"):
        warn_or_refuse(Cost(10**9, 1e6, 10**6), "this", asked=False)


def test_a_small_cost_is_not_reported(caplog):
    warn_or_refuse(pairwise_cost(crowd(200), losses=True), "SR-FCA", asked=False)
    assert caplog.text == ""
