"""Problems that users met with unusual data and models: each of these once ended or spoilt a run."""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import corymb
from corymb.local import serve_assigned
from corymb.report.scores import score_rows
from corymb.settings import InvalidInput
from tests.tiny import farthest

WORDS, CLASSES = 30, 3


def reviews(*sizes: int, unknown: bool = False):
    """Texts of five words, numbered from 1 on, at clients of these sizes; one client may have words that are not."""
    rng = np.random.default_rng(0)
    client = np.repeat([f"shop-{i}" for i in range(len(sizes))], sizes)
    y = np.arange(len(client)) % CLASSES
    words = 1 + 9 * y[:, None] + rng.integers(9, size=(len(client), 5))
    words[: sizes[0]] += WORDS * unknown
    return corymb.FederatedDataset.from_arrays(words, y, client, scale="codes")


class Packed(nn.Module):
    """Torch's packed sequences take no empty batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer, self.out = nn.Embedding(WORDS, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x):
        lengths = (x != 0).sum(1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.layer(packed)[1][-1])


class OwnState(nn.Module):
    """It creates its own float32 state, as tutorials do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(WORDS, 4), nn.GRU(4, 4, batch_first=True)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.out(self.layer(self.embed(x), torch.zeros(1, len(x), 4))[0][:, -1])


class Both(OwnState):
    """It forgets to take the output apart from the state."""

    def forward(self, x):
        return self.layer(self.embed(x))


class Lazy(OwnState):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.LazyLinear(CLASSES)


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(WORDS, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.out(self.embed(x).mean(1))


class Transformer(nn.Module):
    """Outside training torch takes a short cut for it, with nested tensors: not for many clients at once."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.embed, self.layers, self.out = nn.Embedding(WORDS, 4), nn.TransformerEncoder(layer, 1), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.layers(self.embed(x), src_key_padding_mask=x == 0).mean(1))


FEW = corymb.FedAvg(rounds=2)


@pytest.mark.parametrize("engine", ["vectorised", "loop"])
def test_a_client_without_test_examples_spoils_nothing_where_a_model_takes_no_empty_batch(engine):
    run = corymb.fit(FEW, reviews(30, 30, 2), Packed, engine=engine)
    assert run.not_scored == ()
    assert 0 <= run.metrics["test_accuracy"] <= 1


def test_a_model_that_knows_float32_only_trains_on_every_engine():
    one, other = (corymb.fit(FEW, reviews(30, 20), OwnState, engine=engine) for engine in ("vectorised", "loop"))
    assert one.metrics["train_loss"] == pytest.approx(other.metrics["train_loss"], rel=1e-4)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("model", "line"), [(Both, "output is a tuple, wanted one tensor"), (Lazy, "have no size yet")]
)
def test_mistakes_in_a_model_are_reported_in_a_line(model, line):
    with pytest.raises(InvalidInput, match=line):
        corymb.fit(FEW, reviews(30, 20), model)


def test_a_model_whose_slopes_are_sparse_is_trained_as_if_they_were_not():
    def bag(sparse: bool) -> nn.Module:
        model = Bag()
        model.embed = nn.Embedding(WORDS, 4, sparse=sparse)
        return model

    dense, sparse = (corymb.fit(FEW, reviews(30, 20), partial(bag, kind)) for kind in (False, True))
    assert farthest(dense.snapshot.models, sparse.snapshot.models) == 0


def test_one_client_that_cannot_be_scored_does_not_hide_the_table_of_the_others():
    # The last has one test example, of which no area under a curve is defined.
    run = corymb.fit(FEW, reviews(30, 30, 30, 5, unknown=True), Bag)
    assert run.not_scored == ("shop-0",)
    assert score_rows(run)[0]["test score"] == "accuracy"


@pytest.mark.parametrize("model", [Bag, OwnState])
def test_a_code_without_a_row_reads_no_other_clients_model(model):
    """Under vmap torch looks up in the tables of all clients at once, which lie one behind the other."""
    run = corymb.fit(FEW, reviews(30, 30, 30, unknown=True), model)
    assert {row["client"] for row in run.rejected} == {"shop-0"}
    known = reviews(30, 30, 30)
    others = corymb.fit(FEW, known.subset([1, 2]), model)
    assert farthest(run.models, others.models) < 1e-6


def test_codes_have_neither_mean_nor_median():
    frame = pandas.DataFrame({"a": [1, 2, None, 4], "b": [1, 1, 2, 2], "y": [0, 1, 0, 1], "who": [0, 0, 1, 1]})
    for missing in ("refuse", "median", "mean"):
        with pytest.raises(InvalidInput, match=r"column 'a': 1 missing cell in .*: give them their own code"):
            corymb.FederatedDataset.from_dataframe(frame, client="who", label="y", scale="codes", missing=missing)


def test_no_rows_at_all_are_told_in_a_line():
    empty = np.zeros((0, 3)), np.zeros(0, int), np.zeros(0, int)
    with pytest.raises(InvalidInput, match="There are no rows"):
        corymb.fit(FEW, empty)


def test_another_model_than_the_runs_is_refused_when_it_is_loaded(tmp_path):
    run = corymb.fit(FEW, reviews(30, 20), Bag, out=tmp_path / "run")
    assert (
        corymb.Run.load(run.folder, Bag).predict([[1, 2, 3, 4, 5]], cluster=0)
        == run.predict([[1, 2, 3, 4, 5]], cluster=0)
    ).all()
    with pytest.raises(InvalidInput, match=r"The model is not the run's \(.*'layer.weight_ih_l0' is of shape"):
        corymb.Run.load(run.folder, OwnState)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"seed": "x"}, "RunSettings: seed is 'x': wanted a whole number"),
        ({"device": 0}, "RunSettings: device is 0: wanted text"),
        ({"max_seconds": "60"}, "max_seconds must be a non-negative number, got '60'"),
    ],
)
def test_options_of_a_wrong_type_are_reported_in_a_line(options, line):
    with pytest.raises(InvalidInput, match=line):
        corymb.fit(FEW, reviews(30, 20), Bag, **options)


def test_a_custom_algorithm_is_checked_when_it_is_run():
    @dataclass(frozen=True, kw_only=True)
    class Own:
        rounds: int = 2
        serve = None

        def run(self, fed, start=None): ...

    with pytest.raises(InvalidInput, match=r"^Own: rounds is 'many': wanted a whole number\.$"):
        corymb.fit(Own(rounds="many"), reviews(30, 20), Bag)


def test_settings_that_no_record_could_hold_are_refused_by_name():
    @dataclass(frozen=True, kw_only=True)
    class Own:
        rounds: int = 2
        act: Any = len
        serve = serve_assigned

        def run(self, fed, start=None): ...

    with pytest.raises(
        InvalidInput, match=r"^Own: act holds a builtin_function_or_method, which cannot be stored in a run's record"
    ):
        corymb.fit(Own(), reviews(30, 20), Bag)


def test_an_algorithm_is_a_dataclass_whose_serve_is_a_client_function():
    class Own:
        rounds = 2
        serve = serve_assigned

        def run(self, fed, start=None): ...

    with pytest.raises(
        InvalidInput, match=r"^Own is not a dataclass: its settings must be fields, so decorate it with @dataclass"
    ):
        corymb.fit(Own(), reviews(30, 20), Bag)
    with pytest.raises(InvalidInput, match=r"^Serves\.serve is a method: wanted a client function"):
        corymb.fit(Serves(), reviews(30, 20), Bag)


@dataclass(frozen=True)
class Serves:
    rounds: int = 2

    def serve(self, client, models, label, share):
        return models

    def run(self, fed, start=None):
        yield from ()


class YieldsNothing(Serves):
    serve = serve_assigned


def test_a_run_without_rounds_is_reported():
    with pytest.raises(InvalidInput, match=r"^YieldsNothing\.run ended without a round: it must yield a snapshot"):
        corymb.fit(YieldsNothing(), reviews(30, 20), Bag)


def test_a_transformer_runs_for_all_clients_at_once_and_torch_keeps_its_own_warnings(caplog):
    torch.set_warn_always(True)  # else torch gives them once in a process; here they would be errors
    try:
        run = corymb.fit(FEW, reviews(30, 20), Transformer)
        assert run.predict([[1, 2, 3, 4, 0]], cluster=0).shape == (1,)
    finally:
        torch.set_warn_always(False)
    assert caplog.records == []


MODES = {"inference": torch.inference_mode, "no_grad": torch.no_grad, "autocast": partial(torch.autocast, "cpu")}


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("mode", MODES)
def test_a_run_inside_modes_of_torch_is_the_run_outside(mode, engine, caplog):
    algorithm = corymb.FedAvg(rounds=2, local=corymb.Descent(lr=0.1, steps=3, batch=4))

    def run() -> corymb.Run:
        x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
        data = corymb.FederatedDataset.from_arrays(x, torch.arange(60) % 3, torch.arange(60) // 10, test=0.2)
        return corymb.fit(algorithm, data, lambda: nn.Linear(4, 3), engine=engine)

    want = run()
    with MODES[mode]():
        got = run()
        assert torch.is_autocast_enabled("cpu") == (mode == "autocast")
        assert torch.is_inference_mode_enabled() == (mode == "inference")
    assert all(torch.equal(got.models[name], want.models[name]) for name in want.models)
    assert got.metrics == want.metrics
    assert not caplog.records


FORKS = """
import os, signal, torch, corymb
data = corymb.datasets.digits(clients=4)
torch.set_num_threads(2)
torch.ones(2**22).sum()  # starts threads
corymb.fit(corymb.FedAvg(rounds=1), data, threads=2)
if not os.fork():
    signal.alarm(60)
    run = corymb.fit(corymb.FedAvg(rounds=1), data, threads=2)
    print(len(run.history), run.config["threads"], torch.get_num_threads(), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_run_in_a_forked_process_does_not_wait_for_the_threads_of_its_parent():
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=100, check=True, env=environment
    )
    assert done.stdout == "1 1 2\n"
    assert "this process was forked" in done.stderr
