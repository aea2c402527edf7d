"""A session works on an engine: it needs no data in its own process, and makes no unnecessary calls."""

import json
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import corymb
from corymb.core.client import on_client
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.data import FederatedDataset
from corymb.data.built_in.roles import Roles, by_role
from corymb.engines import LoopEngine, Placement, VectorisedEngine
from corymb.engines.examples import ExampleTable
from corymb.local import Descent, serve_assigned
from corymb.models import Network, char_lstm, mlp
from corymb.objectives.null import NullObjective
from corymb.runs.fit import as_dataset, fit
from corymb.settings import InvalidInput
from corymb.testing.wired import Wired
from tests.runs import small

FAST = corymb.IFCA(k=2, rounds=3, local=Descent(lr=0.3, steps=5))


def table():
    return as_dataset(small.arrays(), seed=0)


def same(one, other) -> bool:
    return one.labels == other.labels and all(torch.equal(one.models[name], other.models[name]) for name in one.models)


@pytest.mark.parametrize("kind", [LoopEngine, VectorisedEngine])
def test_fit_takes_an_engine_in_place_of_data(kind, tmp_path):
    name = "loop" if kind is LoopEngine else "vectorised"
    want = fit(FAST, table(), engine=name, precision="float64", out=tmp_path / "data")
    got = fit(FAST, kind(NullObjective(), table(), Placement(dtype=torch.float64)), out=tmp_path / "engine")
    assert same(got, want)
    assert got.config["record"]["data"] == want.config["record"]["data"]
    assert (got.config["data"], got.config["precision"]) == ("federation", "float64")
    assert "ari" not in got.metrics  # an engine does not know the truth
    assert torch.equal(
        torch.as_tensor(got.predict(small.arrays()[0], client=0)),
        torch.as_tensor(want.predict(small.arrays()[0], client=0)),
    )


def test_a_run_needs_nothing_but_messages():
    """Every client is a separate host, and only bytes are exchanged with the session."""
    want = fit(FAST, table(), engine="loop", precision="float64")
    got = fit(FAST, Wired(NullObjective(dtype=torch.float64), table(), Placement(dtype=torch.float64)))
    assert got.labels == want.labels
    for name, value in want.models.items():
        assert torch.allclose(got.models[name], value, rtol=0, atol=1e-9)
    assert got.metrics == pytest.approx(want.metrics, abs=1e-9)
    assert torch.allclose(got.losses, want.losses)


def test_a_run_on_an_engine_is_resumed_on_an_engine(tmp_path):
    def engine():
        return LoopEngine(NullObjective(), table())

    with pytest.raises(ZeroDivisionError):
        fit(corymb.Alone(rounds=3), engine(), out=tmp_path / "run", progress=lambda row: 1 // (2 - row["clock"]))
    resumed = fit(corymb.Alone(rounds=3), engine(), resume=tmp_path / "run")
    assert resumed.metrics == fit(corymb.Alone(rounds=3), engine()).metrics


def test_data_that_are_neither_are_refused():
    with pytest.raises(InvalidInput, match="The data are a int: wanted a FederatedDataset"):
        fit(FAST, 3)


def test_examples_are_placed_once(monkeypatch):
    """Standardising, the run and the run from the true parameters share them."""
    made, original = [], ExampleTable.__init__
    monkeypatch.setattr(ExampleTable, "__init__", lambda self, *args: made.append(1) or original(self, *args))
    fit(FAST, table())
    assert len(made) == 2  # to train, to test
    made.clear()
    run = fit(FAST, corymb.datasets.mixed_regression_ifca(n=6, m=10, d=3, test=4))
    assert "oracle_error" in run.metrics
    assert len(made) == 2


def test_the_end_of_a_run_asks_each_question_once(monkeypatch):
    asked, original = Counter(), Federation.ask

    def ask(self, ids, verb, fn, args, options, *rest):
        asked[fn.name.partition(":")[2]] += 1
        return original(self, ids, verb, fn, args, options, *rest)

    monkeypatch.setattr(Federation, "ask", ask)
    fit(FAST, table(), evaluate_every=0)
    standard, labels = {"send_means", "send_deviations", "report_dominance"}, {"describe_labels"}
    once = standard | labels | {"try_model", "score_served", "losses_of", "draw_test_losses"}
    assert {name: asked.pop(name) for name in once} == dict.fromkeys(once, 1)
    assert sum(asked.values()) == FAST.rounds  # and one question a round
    asked.clear()
    fit(FAST, table(), evaluate_every=1)
    assert asked["score_served"] == 3  # the last round's is the end's


def test_truth_goes_with_the_names_whatever_the_order():
    x, y, client = small.arrays()
    names = ["b", "a", "site-10", "site-9", "d", "c"]
    data = FederatedDataset.from_arrays(x, y, client, names=names, truth=[0, 1, 0, 1, 0, 1], standardise=True)
    run = fit(corymb.configure("oracle", data, inner={"rounds": 1}), data)
    assert list(run.labels) == ["a", "b", "c", "d", "site-9", "site-10"]
    assert run.metrics["ari"] == 1.0
    assert run.labels["a"] == run.labels["site-9"] == run.labels["c"] != run.labels["b"]


class ScoredOnly:
    """A custom objective with a score and no other metrics."""

    inner = corymb.objectives.LinearRegression(2)
    init, losses, scores = inner.init, inner.losses, inner.scores
    score_name, higher_is_better = "miss", False


def test_the_metric_that_was_chosen_picks_the_best_checkpoint_and_is_kept(tmp_path):
    run = fit(FAST, table(), metric="log_loss", evaluate_every=1, out=tmp_path / "run")
    scores = [row["metrics"]["test_log_loss"] for row in run.history]
    for path in (tmp_path / "run" / "checkpoints").glob("*.json"):
        manifest = json.loads(path.read_text())
        assert manifest["score"] == -scores[manifest["clock"] - 1]
    again = corymb.Run.load(tmp_path / "run")
    assert again.metric == "log_loss"
    assert again.metrics == run.metrics
    for name, (served, trivial) in run.by_client.items():
        assert torch.allclose(again.by_client[name].served, served, equal_nan=True)
        assert torch.allclose(again.by_client[name].trivial, trivial, equal_nan=True)
    assert set(run.by_client) == {"accuracy", "balanced_accuracy", "macro_f1", "auc", "log_loss"}


def test_a_metric_that_does_not_fit_is_refused_in_one_line(tmp_path):
    with pytest.raises(InvalidInput, match=r"'r2' does not fit what is learned: choose accuracy, .* or log_loss\.$"):
        fit(FAST, table(), metric="r2", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidInput, match=r"There is no metric 'exactness': choose squared_error, r2, mae or rmse\.$"):
        fit(corymb.FedAvg(rounds=1), small.prices(), metric="exactness")


def test_an_objective_with_only_a_score_has_no_other_metric():
    x, y, client = small.prices()
    data = FederatedDataset.from_arrays(x / 100, y / 1e5, client)
    run = fit(corymb.FedAvg(rounds=1), data, ScoredOnly(), metric="miss")
    assert {name for name in run.metrics if name.startswith("test")} == {"test_miss", "test_miss_examples"}
    assert not [name for name in run.metrics if name.startswith("trivial")]
    assert "no better" not in run._repr_html_()
    with pytest.raises(InvalidInput, match=r"'auc' does not fit what is learned: choose miss\.$"):
        fit(corymb.FedAvg(rounds=1), data, ScoredOnly(), metric="auc")


class Quantile:
    """The nine tenths quantile of targets that are mean + deviation * what the network predicts."""

    score_name, higher_is_better = "pinball", False

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean, self.deviation, self.network = mean, deviation, Network(mlp(2, [], 1))

    def init(self, key):
        return self.network.init(key)

    def predict(self, params, x):
        return self.mean + self.deviation * self.network(params, x).squeeze(-1)

    def losses(self, params, examples):
        above = (examples.y - self.predict(params, examples.x)) / self.deviation
        return torch.maximum(0.9 * above, -0.1 * above)

    scores = losses


def test_targets_far_from_where_an_own_objective_starts_are_noted(caplog):
    """A run on them ended far below every target and said nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    y = 400 + x @ [10.0, 20.0] + 5 * rng.normal(size=300)
    data = as_dataset((x, y, np.arange(300) % 3))
    algorithm = corymb.configure("fedavg", data)
    raw = fit(algorithm, data, Quantile(0, 1), evaluate_every=0)
    assert (y < raw.predict(x, client="0")).mean() == 0
    assert "targets reach your own objective as they are, with mean 399 and standard deviation 22.7" in caplog.text
    caplog.clear()
    scaled = fit(algorithm, data, Quantile(400, 25), evaluate_every=0)
    assert 0.8 < (y < scaled.predict(x, client="0")).mean() < 0.99
    fit(corymb.FedAvg(rounds=1), (x, (y - 400) / 25, np.arange(300) % 3), Quantile(0, 1))
    fit(corymb.FedAvg(rounds=1), data)  # the library's own models learn standardised targets
    assert "targets reach" not in caplog.text


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError("no room")])
def test_failing_final_measurements_do_not_lose_the_run(error, monkeypatch, caplog):
    """A run of hours ended here once, with a calibration that did not fit into memory."""

    def fails(*_, **__):
        raise error

    want = fit(FAST, table())
    monkeypatch.setattr("corymb.runs.final.calibrate", fails)
    got = fit(FAST, table())
    assert same(got, want)
    assert got.metrics == want.metrics
    assert want.calibration is not None
    assert got.calibration is None
    assert str(error) in caplog.text
    assert got.assign(*(t[:5] for t in small.arrays()[:2])).threshold is None


def test_the_last_measures_of_a_recurrent_network_are_taken_of_all_clients_at_once(caplog):
    """vmap has no rule for an LSTM: what leaves it does not need one."""
    said = "to be or not to be " * 40
    data = by_role(Roles({role: said[start:] for start, role in enumerate("abcd")}), clients=4, least=100, stride=30)
    run = fit(FAST, data, char_lstm(80, width=5), threads=1)
    assert run.calibration is not None
    assert "client by client" not in caplog.text


@on_client
def count_rounds(client):
    rounds = client.memory.get("rounds", torch.zeros(())) + 1
    client.memory.set("rounds", rounds)
    return rounds


@dataclass(frozen=True, kw_only=True)
class Counting:
    rounds: int = 3
    keeps_memory = True
    serve = serve_assigned

    def run(self, fed, start=None):
        at = start or Snapshot.fresh(fed, 1)
        for _ in range(at.round, self.rounds):
            yield (at := at.next(notes={"rounds": float(fed.clients.map(count_rounds).value.mean())}))


@dataclass(frozen=True, kw_only=True)
class Quiet(Counting):
    keeps_memory = False


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_undeclared_client_memory_is_reported_once(engine, caplog):
    fit(Counting(), small.arrays(), engine=engine)
    assert "client memory" not in caplog.text
    fit(Quiet(), small.arrays(), engine=engine)
    assert caplog.text.count("Quiet writes client memory but does not declare it: set keeps_memory = True") == 1
