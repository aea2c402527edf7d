import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import corymb
from corymb.core.client import on_client
from corymb.core.federation import TooFewReplies
from corymb.core.snapshot import Snapshot
from corymb.data import FederatedDataset, mixed_regression_ifca
from corymb.engines import Placement
from corymb.local import Descent
from corymb.models import Network
from corymb.objectives import Classification, LinearRegression
from corymb.objectives.null import NullObjective
from corymb.runs import session as session_module
from corymb.runs.fit import as_dataset, fit
from corymb.runs.folder.checkpoints import clocks_in
from corymb.runs.history import divergence
from corymb.settings import InvalidInput
from corymb.testing.wired import Wired
from tests.runs import small

FAST = corymb.IFCA(k=2, rounds=3, local=Descent(lr=0.3, steps=5))


@pytest.fixture(scope="module")
def table():
    return as_dataset(small.arrays(), seed=0)


@pytest.fixture(scope="module")
def mixture():
    return mixed_regression_ifca(n=6, m=10, d=3, test=4)


def same_models(one, other) -> bool:
    return all(torch.equal(one.models[name], other.models[name]) for name in one.models)


def test_a_client_that_cannot_be_scored_is_named_wherever_the_metric_is(tmp_path):
    algorithm = corymb.FedAvg(rounds=4, local=Descent(lr=0.1, steps=2))
    run = fit(algorithm, small.out_of_range(), out=tmp_path / "run", evaluate_every=2)
    assert run.not_scored == ("client-3",)
    assert run.metrics["test_squared_error"] == float("inf")
    assert [row.get("not_scored") for row in run.history] == [None, ["client-3"], None, ["client-3"]]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["not_scored"] == ["client-3"]
    assert result["metrics"]["test_squared_error"] is None
    assert corymb.Run.load(tmp_path / "run").not_scored == ("client-3",)
    manifests = [json.loads(path.read_text()) for path in (tmp_path / "run" / "checkpoints").glob("*.json")]
    assert manifests
    assert all(manifest["score"] is None for manifest in manifests)  # no checkpoint is the best by such a metric
    (tmp_path / "run" / "result.json").unlink()
    assert corymb.Run.load(tmp_path / "run").not_scored == ("client-3",)  # of a run that was killed
    assert fit(algorithm, small.prices()).not_scored == ()


def test_data_may_be_a_data_set_arrays_a_folder_or_a_name(table, tmp_path):
    runs = [fit(FAST, table), fit(FAST, small.arrays())]
    assert runs[0].labels == runs[1].labels
    assert same_models(*runs)
    own = corymb.datasets.from_folder(small.folder(tmp_path / "clinic"), label="outcome")
    assert next(iter(fit(FAST, own).labels)) == "hospital-0"
    assert len(fit(corymb.IFCA(k=2, rounds=1), "mixed-regression-ifca").labels) == 100


def test_arrays_of_pictures_are_not_standardised():
    x, y, client = np.zeros((8, 4, 4), np.uint8), np.arange(8) % 2, np.arange(8) % 2
    assert not as_dataset((x, y, client), seed=0).standardise
    assert as_dataset(small.arrays(), seed=0).standardise


def make():
    return nn.Linear(2, 2)


MODELS = {
    "a function": make,
    "a class": lambda: nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)),
    "a module": nn.Linear(2, 2),
    "a name": "mlp",
    "a place": "tests.runs.test_fit:make",
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_model_may_be_a_function_a_module_a_name_or_a_place(model, table):
    run = fit(FAST, table, model)
    assert run.snapshot.k == 2
    assert set(run.labels.values()) <= {0, 1}


def head_on(scale):
    """A head on a frozen layer."""

    def make():
        body = nn.Linear(2, 3)
        nn.init.constant_(body.weight, scale)
        return nn.Sequential(body.requires_grad_(False), nn.Tanh(), nn.Linear(3, 2))

    return make


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_frozen_layers_do_not_travel_and_are_part_of_the_model(engine, table, tmp_path):
    stop = {"progress": lambda row: 1 // (2 - row["clock"])}
    with pytest.raises(ZeroDivisionError):
        fit(FAST, table, head_on(0.5), engine=engine, out=tmp_path / "run", **stop)
    with pytest.raises(InvalidInput, match="The model is not the run's"):
        fit(FAST, table, head_on(0.6), resume=tmp_path / "run")
    run = fit(FAST, table, head_on(0.5), resume=tmp_path / "run")
    assert set(run.models) == {"2.weight", "2.bias"}
    x = small.arrays()[0]
    loaded = corymb.Run.load(tmp_path / "run", model=head_on(0.5))
    assert loaded.predict(x, client=0).tolist() == run.predict(x, client=0).tolist()
    assert same_models(run, fit(FAST, table, head_on(0.5), engine=engine))


def test_a_model_may_be_an_objective(mixture):
    run = fit(FAST, mixture, LinearRegression(3, half=True))
    assert "half=True" in run.config["record"]["learns"]
    assert run.config["model"] == "own"


def test_the_history_has_a_record_for_each_round(mixture):
    run = fit(corymb.IFCA(k=2, rounds=5, participants=3), mixture, evaluate_every=2)
    assert [row["clock"] for row in run.history] == [1, 2, 3, 4, 5]
    assert [row["asked"] for row in run.history] == [3] * 5
    assert ["metrics" in row for row in run.history] == [False, True, False, True, True]
    first = run.history[0]
    assert first["churn"] == 0.5
    assert first["train_loss"] > 0
    assert first["bytes_down"] == 3 * 2 * 3 * 4  # three clients, two models of three float32
    assert sum(row["bytes_up"] for row in run.history) == run.ledger.bytes_up
    assert json.dumps(run.history)
    assert run.metrics.items() >= run.history[-1]["metrics"].items()


def test_the_interval_of_evaluations_changes_nothing(mixture):
    often, seldom = (fit(corymb.IFCA(k=2, rounds=4), mixture, evaluate_every=n) for n in (1, 0))
    assert same_models(often, seldom)
    assert often.metrics == seldom.metrics
    assert often.ledger == seldom.ledger


def test_the_same_seed_gives_the_same_run_and_another_one_does_not(mixture):
    one, again, other = (fit(FAST, mixture, seed=seed) for seed in (3, 3, 4))
    assert same_models(one, again)
    assert not same_models(one, other)
    assert other.seed == 4


def test_engines_agree(mixture):
    many, loop = (fit(FAST, mixture, engine=engine, precision="float64") for engine in ("vectorised", "loop"))
    assert many.labels == loop.labels
    assert torch.allclose(many.models["weight"], loop.models["weight"], rtol=0, atol=1e-9)
    assert many.ledger.bytes_up == loop.ledger.bytes_up
    assert many.models["weight"].dtype == torch.float64


def test_settings_that_change_bits_are_in_the_config(mixture):
    run = fit(FAST, mixture, memory=10**6, threads=1, kernel="foreach")
    used = {"engine": "vectorised", "device": "cpu", "precision": "float32", "threads": 1, "memory": 10**6}
    assert run.config.items() >= {**used, "kernel": "foreach", "k": 2, "rounds": 3, "seed": 0}.items()
    assert run.config["record"].keys() >= {"kernel", "chunk", "data", "versions"}
    assert json.dumps(run.config)


def test_threads_are_set_for_the_run_only(mixture):
    before = torch.get_num_threads()
    seen = []
    fit(FAST, mixture, threads=2, progress=lambda row: seen.append(torch.get_num_threads()))
    assert seen == [2, 2, 2]
    assert torch.get_num_threads() == before


def test_going_on_from_a_snapshot_is_the_rest_of_the_run(mixture):
    whole = fit(corymb.IFCA(k=2, rounds=5), mixture)
    part = fit(corymb.IFCA(k=2, rounds=2), mixture)
    rest = fit(corymb.IFCA(k=2, rounds=5), mixture, start=part.snapshot)
    assert same_models(whole, rest)
    assert [row["clock"] for row in rest.history] == [3, 4, 5]


class Shallow(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(3, 1)

    def forward(self, x):
        return self.last(x)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.last(self.first(x).relu())


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (Shallow, Deep, "it has no parameter 'first.weight'"),
        (Deep, Shallow, "this one has no parameter 'first.bias'"),
    ],
)
def test_a_start_with_fewer_or_more_parameters_is_refused(before, now, message):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=40), np.repeat(np.arange(4), 10)
    start = fit(corymb.FedAvg(rounds=1), data, before).snapshot.handover()
    with pytest.raises(InvalidInput, match=f"start is of another model: {message}"):
        fit(corymb.FedAvg(rounds=1), data, now, start=start)


@on_client
def serve_nothing(client, models, label, share):
    return {"weight": torch.zeros(3) + 0 * models["centre"].sum()}


@dataclass(frozen=True, kw_only=True)
class Centre:
    rounds: int = 1
    serve = serve_nothing

    def run(self, fed, start=None):
        at = start or replace(Snapshot.fresh(fed, 1), models={"centre": torch.zeros(1, 2)})
        for _ in range(at.round, self.rounds):
            yield (at := at.next())


def test_an_algorithm_of_ones_own_starts_from_models_of_its_own():
    data = mixed_regression_ifca(n=4, m=10, d=3, test=4)
    start = fit(Centre(), data, LinearRegression(3)).snapshot.handover()
    assert fit(Centre(), data, LinearRegression(3), start=start).snapshot.models.keys() == {"centre"}


def test_a_start_with_no_rounds_left_is_refused(mixture):
    end = fit(FAST, mixture).snapshot
    with pytest.raises(InvalidInput, match="no rounds left"):
        fit(FAST, mixture, start=end)


def test_a_start_of_another_run_is_refused_unless_handed_over(mixture):
    end = fit(corymb.FedAvg(rounds=1), mixture).snapshot
    with pytest.raises(InvalidInput, match="another run"):
        fit(corymb.IFCA(k=1, rounds=2), mixture, start=end)
    assert fit(corymb.IFCA(k=1, rounds=2), mixture, start=end.handover()).clusters == 1


def test_time_ends_a_run(mixture):
    run = fit(corymb.IFCA(k=2, rounds=1000), mixture, max_seconds=0)
    assert run.stopped == "max_seconds"
    assert len(run.history) == 1
    assert "test_squared_error" in run.metrics


def interrupt_at(clock):
    def press(row):
        if row["clock"] == clock:
            raise KeyboardInterrupt

    return press


def test_ctrl_c_ends_a_run_after_the_last_full_round(mixture):
    run = fit(corymb.IFCA(k=2, rounds=9), mixture, progress=interrupt_at(4))
    assert run.stopped == "interrupted"
    assert run.snapshot.round == len(run.history) == 4
    assert same_models(run, fit(corymb.IFCA(k=2, rounds=4), mixture))
    assert "oracle_error" not in run.metrics


def test_ctrl_c_in_a_round_forgets_what_the_round_kept(mixture, monkeypatch):
    calls = []

    def drive_until_pressed(*args, **kwargs):
        for snapshot in real_drive(*args, **kwargs):
            yield snapshot
            calls.append(snapshot)
            if len(calls) == 2:
                raise KeyboardInterrupt

    real_drive = session_module.drive
    monkeypatch.setattr(session_module, "drive", drive_until_pressed)
    run = fit(corymb.Alone(rounds=9), mixture)
    monkeypatch.undo()
    assert run.metrics == fit(corymb.Alone(rounds=2), mixture).metrics


def test_ctrl_c_before_the_first_round_has_nothing_to_show(mixture, monkeypatch):
    def pressed(*args, **kwargs):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(session_module, "drive", pressed)
    with pytest.raises(KeyboardInterrupt):
        fit(FAST, mixture)


def test_the_oracle_starts_from_the_true_parameters():
    data = mixed_regression_ifca(n=8, m=40, d=3, sigma=0.01, test=4)
    run = fit(corymb.IFCA(k=2, rounds=20, restarts=2), data)
    assert run.metrics["oracle_error"] < 0.01
    assert run.ledger.rounds == 42  # the oracle's rounds are not the run's
    assert "oracle_error" not in fit(corymb.FedAvg(rounds=1), data).metrics
    assert "oracle_error" not in fit(corymb.IFCA(k=2, rounds=1), data, "linear").metrics


def test_replies_that_are_too_few_end_a_run(mixture):
    with pytest.raises(TooFewReplies):
        fit(corymb.IFCA(k=2, rounds=3, local=Descent(lr=1e17, steps=5)), mixture)


DIVERGING = corymb.FedAvg(rounds=9, local=Descent(lr=1.0, steps=5))
GREW = r"training loss grew from 0\.926 to .*: lower --local\.lr \(now 1\)"


@pytest.mark.parametrize(
    ("options", "first", "rounds"),
    [(dict(evaluate_every=1), 1, 3), (dict(evaluate_every=2), 2, 6), (dict(evaluate_every=0), 2, 4)],
)
def test_a_diverging_run_is_reported_and_stopped(options, first, rounds, tmp_path, caplog):
    """An evaluation shows what the round before it did, the algorithm's notes only a round later."""
    run = fit(DIVERGING, small.prices(), out=tmp_path / "run", **options)
    assert (run.stopped, len(run.history)) == ("diverged", rounds)
    assert re.fullmatch(GREW, divergence(run.history, run.config))
    assert rounds in clocks_in(tmp_path / "run" / "checkpoints")
    assert [bool(row.get("diverging")) for row in run.history[:3]] == [t >= first for t in (1, 2, 3)]
    assert len(re.findall(f"the run is diverging: {GREW}", caplog.text)) == 1
    assert corymb.Run.load(tmp_path / "run").stopped == "diverged"


def test_a_run_that_diverges_continues_if_asked(caplog):
    run = fit(DIVERGING, small.prices(), evaluate_every=1, keep_going=True)
    assert (run.stopped, len(run.history)) == ("", 9)
    assert sum("warning" in row for row in run.history) == 1
    assert caplog.text.count("the run is diverging") == 1


def test_a_run_that_diverged_is_resumed_to_its_end_if_asked(tmp_path):
    fit(DIVERGING, small.prices(), evaluate_every=1, out=tmp_path / "run")
    run = fit(DIVERGING, small.prices(), resume=tmp_path / "run", keep_going=True)
    assert (run.stopped, len(run.history)) == ("", 9)
    assert same_models(run, fit(DIVERGING, small.prices(), evaluate_every=1, keep_going=True))


def test_a_resumed_run_keeps_the_count_and_warns_once(tmp_path, caplog):
    def cut(row):
        if row["clock"] == 4:
            raise MemoryError

    with pytest.raises(MemoryError):
        fit(DIVERGING, small.prices(), evaluate_every=2, out=tmp_path / "run", progress=cut)
    run = fit(DIVERGING, small.prices(), resume=tmp_path / "run")
    whole = fit(DIVERGING, small.prices(), evaluate_every=2)
    assert (run.stopped, len(run.history)) == (whole.stopped, len(whole.history)) == ("diverged", 6)
    assert [row.get("diverging") for row in run.history] == [row.get("diverging") for row in whole.history]
    assert caplog.text.count("the run is diverging") == 2  # once in the run that was cut, once in the whole one


def test_a_client_that_never_could_be_scored_stops_nothing():
    run = fit(corymb.FedAvg(rounds=5, local=Descent(lr=0.1, steps=2)), small.out_of_range(), evaluate_every=1)
    assert (run.stopped, run.not_scored) == ("", ("client-3",))
    assert all(np.isfinite(row["evaluated_loss"]) and "diverging" not in row for row in run.history)


class Unaware:
    """Uses a network with dropout, but ignores training steps."""

    def __init__(self) -> None:
        self.inner = Classification(Network(dropping), 2)
        self.init, self.losses = self.inner.init, self.inner.losses


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


WRONG = {
    "more clusters than clients": (dict(algorithm=corymb.IFCA(k=7)), "k=7 exceeds the 6 clients"),
    "an engine": (dict(engine="lop"), "Did you mean 'loop'"),
    "a device": (dict(device="gpu"), "no device 'gpu'"),
    "a precision": (dict(precision="float16"), "no precision"),
    "a kernel of the loop": (dict(engine="loop", kernel="fused"), "no kernels"),
    "memory": (dict(memory=0), "memory must be 'auto' or bytes"),
    "threads": (dict(threads=0), "threads must be at least 1"),
    "rounds between looks": (dict(evaluate_every=-1), "evaluate_every must not be negative"),
    "a model's name": (dict(model="mpl"), "Did you mean 'mlp'"),
    "a model's output": (dict(model=lambda: nn.Linear(2, 5)), r"shape \[5, 5\], wanted \[5, 2\]"),
    "a model's input": (dict(model=lambda: nn.Linear(9, 2)), "cannot take this data"),
    "a model's output in a loop": (dict(model=lambda: nn.Linear(2, 5), engine="loop"), "one logit for each"),
    "a model's input in a loop": (dict(model=lambda: nn.Linear(9, 2), engine="loop"), "cannot take this data"),
    "progress": (dict(progress="yes"), "progress is 'yes': wanted True, False or a function"),
    "a start": (dict(start={}), "start is a dict: wanted a snapshot"),
    "settings": (dict(settings={"seed": 1}), "settings is a dict: wanted RunSettings"),
    "a folder": (dict(out=1), "1 is not a path: give one as text"),
    "a folder to resume": (dict(resume=b"runs"), "b'runs' is not a path"),
    "weights of classes": (dict(class_weight=[1, 2]), r"class_weight is 'balanced' or .*; got \[1, 2\]"),
    "no option": (dict(note="hi"), "fit has no option 'note'"),
    "no model at all": (dict(model=3), "The model is a int"),
    "dropout": (
        dict(model=lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), dropout="refuse"),
        "dropout='off'",
    ),
    "dropout that an objective leaves out": (dict(model=Unaware()), "Unaware has a network with dropout"),
}


@pytest.mark.parametrize(("wrong", "line"), WRONG.values(), ids=WRONG)
def test_impossible_requests_are_refused_in_a_line(wrong, line, table):
    with pytest.raises(InvalidInput, match=line) as error:
        fit(**{"algorithm": FAST, "data": table, **wrong})
    assert "\n" not in str(error.value)


def test_dropout_gives_the_same_run_on_every_engine_and_is_off_when_predicting(table, tmp_path):
    algorithm = corymb.IFCA(k=2, rounds=2, local=Descent(lr=0.3, epochs=1, batch=8))
    options = dict(precision="float64", evaluate_every=1)
    want = fit(algorithm, table, dropping, engine="loop", **options)
    wired = Wired(NullObjective(dtype=torch.float64), table, Placement(dtype=torch.float64))
    stopped = fit(algorithm, table, dropping, **options, max_seconds=0, out=tmp_path / "run")
    runs = [
        fit(algorithm, table, dropping, **options),
        fit(algorithm, table, dropping, kernel="foreach", memory=1, **options),
        fit(algorithm, wired, dropping, evaluate_every=1),
        fit(algorithm, table, dropping, resume=tmp_path / "run"),
    ]
    assert stopped.stopped == "max_seconds"
    for run in runs:
        assert run.labels == want.labels
        assert max(float((run.models[name] - value).abs().max()) for name, value in want.models.items()) < 1e-9
        for row, other in zip(run.history, want.history, strict=True):
            assert row["metrics"] == pytest.approx({name: other["metrics"][name] for name in row["metrics"]}, abs=1e-9)
    assert all(torch.equal(runs[0].models[name], runs[-1].models[name]) for name in want.models)  # bit for bit
    off = fit(algorithm, table, dropping, dropout="off", **options, out=tmp_path / "off")
    assert not torch.equal(off.models["0.weight"], want.models["0.weight"])
    x = table.test.x
    assert (want.predict_proba(x, cluster=0) == want.predict_proba(x, cluster=0)).all()
    for folder in ("run", "off"):
        assert corymb.Run.load(tmp_path / folder, dropping).predict(x, cluster=0).shape == (len(x),)


def test_a_run_is_loaded_with_its_dropout_as_it_was(table, tmp_path):
    def recurrent() -> nn.Module:
        return Reader()

    run = fit(FAST, table, recurrent, dropout="off", out=tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"gets packed sequences.*dropout='off'"):
        fit(FAST, table, recurrent)
    x = table.test.x
    assert (corymb.Run.load(tmp_path / "run", recurrent).predict(x, cluster=0) == run.predict(x, cluster=0)).all()


class Reader(nn.Module):
    """Dropout that cannot be keyed: between layers, inside a packed sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 3, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        packed = pack_padded_sequence(x[..., None], torch.full((len(x),), x.shape[1]), batch_first=True)
        return self.out(self.lstm(packed)[1][0][-1])


def test_an_objective_that_cannot_move_runs_where_it_is(mixture):
    class Plain:
        inner = LinearRegression(3)
        init, losses, scores = inner.init, inner.losses, inner.scores

    assert "test_score" in fit(FAST, mixture, Plain()).metrics
    with pytest.raises(InvalidInput, match="has no to"):
        fit(FAST, mixture, Plain(), precision="float64")


def test_data_of_the_wrong_kind_are_refused():
    x, y, client = small.arrays()
    with pytest.raises(InvalidInput, match="three"):
        fit(FAST, (x, y))
    with pytest.raises(InvalidInput, match="no training examples"):
        FederatedDataset.from_arrays(x, y, client, names=[f"c{i}" for i in range(7)])


@pytest.mark.parametrize("algorithm", ["fedavg", corymb.FedAvg, 3])
def test_an_algorithm_of_the_wrong_kind_is_refused(algorithm):
    with pytest.raises(
        InvalidInput, match=r"The algorithm is .*: wanted an instance such as corymb.IFCA\(k=4\)"
    ) as caught:
        fit(algorithm, small.arrays())
    assert "\n" not in str(caught.value)


def test_an_algorithm_without_serve_is_refused():
    class Half:
        def run(self, fed, start=None):
            return iter(())

    with pytest.raises(InvalidInput, match="The algorithm is a Half without `serve`"):
        fit(Half(), small.arrays())


def test_precision_may_be_lower(mixture):
    run = fit(FAST, mixture, precision="bfloat16")
    assert run.config["precision"] == "bfloat16"
    assert run.models["weight"].dtype == torch.float32
