"""A run continues with other examples and clients, and keeps what was learned."""

import logging
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import corymb
from corymb.core.client import Share, on_client
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, gradient, one_hot, serve_assigned
from corymb.runs.fit import as_dataset, fit
from corymb.runs.history import labels_after
from corymb.settings import InvalidInput
from corymb.trees import part_of, prefixed, take
from tests.runs import small

FAST = corymb.IFCA(k=2, rounds=4, local=Descent(lr=0.3, steps=5))


def grown(clients: int = 8, rows: int = 30, shift: float = 0.0):
    """The data of `small` with more examples for each of its clients, and two more clients."""
    x, y, client = small.arrays(clients, rows, seed=1)
    return x + shift, y, client


@pytest.fixture(scope="module")
def begun():
    return fit(FAST, small.arrays())


def same(one, other) -> bool:
    return one.labels == other.labels and all(torch.equal(one.models[name], other.models[name]) for name in one.models)


def test_a_run_continues_with_more_examples_and_new_clients(begun):
    seen = []
    run = begun.refresh(grown(), rounds=2, callbacks=lambda row: seen.append(row))
    assert set(begun.labels) < set(run.labels)
    assert len(run.names) == 8
    assert [row["clock"] for row in run.history] == [1, 2, 3, 4, 5, 6]
    assert [row["round"] for row in seen] == [1, 2]
    joined = {str(run.names.index(name)) for name in ("6", "7")}
    assert joined <= set(seen[0]["moves"])  # they get their clusters in the first round
    assert labels_after(run.history, 4, 8) == [begun.labels.get(name, -1) for name in run.names]
    assert labels_after(run.history, 6, 8) == run.snapshot.labels.tolist()
    assert run.ledger.bytes_up > begun.ledger.bytes_up
    assert run.ledger.rounds == begun.ledger.rounds + 2 + 2  # the first two compare the units of the data
    assert run.config["record"]["refreshed"] == [{"clock": 4, "data": begun.config["record"]["data"]}]
    assert run.config["record"]["data"] != begun.config["record"]["data"]
    assert run.refresh(grown(), rounds=1).snapshot.clock == 7


def test_the_rounds_of_a_refreshed_run_are_counted_anew_and_those_resumed_from_where_it_was(begun, tmp_path, capsys):
    counted = []

    class Counter:
        def on_start(self, start):
            counted.append((start.done, start.rounds))

        def on_round(self, row):
            if row["clock"] == 6:
                raise corymb.StopRun

    begun.refresh(grown(), rounds=3, out=tmp_path / "run", progress=True, callbacks=Counter())
    fit(replace(FAST, rounds=3), grown(), resume=tmp_path / "run", progress=True, callbacks=Counter())
    lines = [line.split()[1] for line in capsys.readouterr().err.splitlines() if line.startswith("round ")]
    assert counted == [(0, 3), (2, 3)]
    assert lines == ["1/3", "2/3", "3/3"]


def test_features_stay_standardised_as_they_were(begun):
    run = begun.refresh(grown(shift=1000.0), rounds=1)
    assert all(torch.equal(a, b) for a, b in zip(run.standard, begun.standard, strict=True))


UNITS = "values of feature {} in the new data are out of all proportion to those before, perhaps in other units"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x, None),
        (lambda x: x * 2, None),
        (lambda x: x * [1000, 1], 0),
        (lambda x: x / [1, 1000], 1),
        (lambda x: np.add(x, [0, 1e5]), 1),
    ],
    ids=["as before", "somewhat wider", "in grams", "in tonnes", "elsewhere"],
)
def test_features_in_other_units_than_before_are_named(change, said, begun, caplog):
    x, y, client = small.arrays(8, 30, seed=1)
    assert x.shape[1] == 2
    run = begun.refresh((change(x), y, client), rounds=1)
    notes = [note for note in run.schema.notes if "out of all proportion" in note]
    assert [note for note in caplog.messages if "out of all proportion" in note] == notes
    assert len(notes) == (said is not None)
    assert all(note.startswith(UNITS.format(said)) for note in notes)


def test_targets_in_other_units_than_before_are_named():
    x, y, client = small.prices()
    begun = fit(corymb.FedAvg(rounds=2), (x, y, client))
    assert not begun.refresh((x, y, client), rounds=1).schema.notes
    (note,) = begun.refresh((x, y * 1000, client), rounds=1).schema.notes
    assert note.startswith("values of the target in the new data are out of all proportion")


def test_what_was_learned_is_where_it_continues(begun):
    """One tiny step from the old models, on the same data, ends near them, with the labels they had."""
    slow = corymb.IFCA(k=2, rounds=4, local=Descent(lr=1e-6, steps=1))
    run = begun.refresh(small.arrays(), rounds=1, algorithm=slow)
    assert run.labels == begun.labels
    assert all(torch.allclose(run.models[name], begun.models[name], atol=1e-4) for name in run.models)


def test_a_loaded_run_continues_identically_and_can_be_resumed(begun, tmp_path):
    want = begun.refresh(grown(), rounds=3)
    begun.save(tmp_path / "begun")
    loaded = corymb.Run.load(tmp_path / "begun")
    stopped = loaded.refresh(grown(), rounds=3, out=tmp_path / "refreshed", callbacks=stop_at(6))
    assert (stopped.stopped, len(stopped.history)) == ("callback", 6)
    again = corymb.Run.load(tmp_path / "refreshed")
    algorithm = corymb.IFCA(k=2, rounds=3, local=FAST.local)
    got = fit(algorithm, grown(), resume=tmp_path / "refreshed")
    assert same(got, want)
    assert [row["clock"] for row in again.history] == [1, 2, 3, 4, 5, 6]
    assert [row["moves"] for row in got.history] == [row["moves"] for row in want.history]
    assert got.config["record"]["refreshed"] == want.config["record"]["refreshed"]


def stop_at(clock):
    def stop(row):
        if row["clock"] == clock:
            raise corymb.StopRun

    return stop


def test_missing_clients_are_named(begun, caplog):
    x, y, client = small.arrays()
    with caplog.at_level(logging.WARNING):
        run = begun.refresh((x[client > 1], y[client > 1], client[client > 1]), rounds=1)
    assert "no longer part of the run, because missing from the new data: 0, 1 (2 clients)" in caplog.text
    assert run.names == ("2", "3", "4", "5")
    assert labels_after(run.history, 4, 4) == [begun.labels[name] for name in run.names]


def test_data_without_a_class_that_the_run_has_keep_their_classes(begun):
    x, y, client = small.arrays()
    run = begun.refresh((x[y == 1], y[y == 1], client[y == 1]), rounds=1)
    assert run.schema.classes == ("0", "1")
    assert run.metrics["train_loss"] > 0


def test_models_that_stay_with_clients_continue_in_the_run_itself(tmp_path):
    alone = corymb.Alone(rounds=3, local=Descent(lr=0.3, steps=5))
    run = fit(alone, small.arrays(), out=tmp_path / "alone")
    on = run.refresh(small.arrays(), rounds=2)
    want = fit(corymb.Alone(rounds=5, local=alone.local), small.arrays())
    x = small.arrays()[0][:5]
    assert len(on.history) == 5
    for client in range(6):
        assert (on.predict_proba(x, client=client) == want.predict_proba(x, client=client)).all()
    with pytest.raises(InvalidInput, match="only the run returned by fit"):
        corymb.Run.load(tmp_path / "alone").refresh(small.arrays())
    with pytest.raises(InvalidInput, match=r"cannot join or leave .* same 6 clients, but differ in 6, 7"):
        run.refresh(grown())


@on_client
def corrected_step(client, models, control):
    """A step of SCAFFOLD: what the client remembers and what the server carries belong together."""
    model = take(models, 0)
    own = client.memory.get("control", {name: torch.zeros_like(value) for name, value in model.items()})
    slope = gradient(client, model)
    client.memory.set("control", slope)
    trained = {name: model[name] - 0.3 * (slope[name] - own[name] + control[name]) for name in model}
    zero = torch.zeros((), dtype=torch.int64)
    return Share({**trained, **prefixed("control", slope)}, one_hot(zero, 1), zero)


@dataclass(frozen=True, kw_only=True)
class Corrected:
    rounds: int = 3
    keeps_memory = True
    serve = serve_assigned

    def run(self, fed, start=None):
        at = start or Snapshot.fresh(fed, 1)
        for _ in range(at.round, self.rounds):
            control = dict(at.carry) or {name: torch.zeros_like(rows[0]) for name, rows in at.models.items()}
            replies = fed.clients.sum(corrected_step, at.models, control)
            mean = replies.value.mean(empty={**at.models, **prefixed("control", at.models)})
            models = {name: mean[name] for name in at.models}
            labels = (replies.clients, replies.value.label)
            yield (at := at.next(models=models, labels=labels, carry=take(part_of(mean, "control"), 0)))


def test_client_memory_and_server_state_are_restored_together(tmp_path, caplog):
    """Also if the server has the models: for a custom algorithm, and for CFL."""
    for kind in (Corrected, corymb.CFL):
        algorithm = kind(rounds=3)
        run = fit(algorithm, small.arrays(), out=tmp_path / kind.__name__)
        before = run.predict_proba(small.arrays()[0][:5], client=0)
        on = run.refresh(small.arrays(), rounds=2, algorithm=algorithm)
        assert len(on.history) == 5
        assert same(on, fit(kind(rounds=5), small.arrays()))
        assert (run.predict_proba(small.arrays()[0][:5], client=0) == before).all()
        with pytest.raises(InvalidInput, match="only the run returned by fit can be continued, not a loaded"):
            corymb.Run.load(tmp_path / kind.__name__).refresh(small.arrays(), algorithm=algorithm)
        with pytest.raises(InvalidInput, match=r"cannot join or leave .* same 6 clients, but differ in 6, 7"):
            run.refresh(grown(), algorithm=algorithm)
    assert not [record for record in caplog.records if "missing" in record.message]


def test_a_custom_model_must_be_given_again(tmp_path):
    def model():
        return nn.Linear(2, 2)

    run = fit(FAST, small.arrays(), model, out=tmp_path / "run")
    want = run.refresh(small.arrays(), rounds=1)
    loaded = corymb.Run.load(tmp_path / "run")
    with pytest.raises(InvalidInput, match=r"give it again, model="):
        loaded.refresh(small.arrays(), rounds=1)
    assert same(loaded.refresh(small.arrays(), rounds=1, model=model), want)


WRONG = {
    "another class": (lambda x, y, c: (x, np.where(y, "yes", "no"), c), "class 'no' that the run does not have"),
    "other features": (lambda x, y, c: (np.hstack([x, x]), y, c), r"features \(4,\), but the run has \(2,\)"),
    "another task": (lambda x, y, c: (x, y + 0.5, c), "task regression, but the run has classification"),
}


@pytest.mark.parametrize(("change", "line"), WRONG.values(), ids=WRONG)
def test_data_of_another_kind_are_refused_in_a_line(change, line, begun):
    with pytest.raises(InvalidInput, match=line):
        begun.refresh(change(*small.arrays()))


def test_a_run_without_further_rounds_is_refused_in_a_line():
    run = fit(corymb.SRFCA(rounds=1, refinements=1), as_dataset(small.arrays(), seed=0))
    with pytest.raises(InvalidInput, match="cannot be extended from 1 to 2 rounds"):
        run.refresh(small.arrays())


def test_losses_on_new_data_are_not_compared_with_those_on_the_old():
    rng = np.random.default_rng(0)
    x, client = rng.normal(size=(200, 2)), np.repeat(np.arange(4), 50)
    y = x @ np.ones(2) + 0.1 * rng.normal(size=200)
    begun = fit(corymb.FedAvg(rounds=4, local=Descent(lr=0.1, steps=5)), (x, y, client), evaluate_every=1)
    far = as_dataset((x + 15, y * 30, client), seed=0)
    run = begun.refresh(far, rounds=6, algorithm=corymb.FedAvg(rounds=6, local=Descent(lr=1e-4, steps=1)))
    assert run.history[4]["evaluated_loss"] > 20 * begun.history[0]["evaluated_loss"]
    assert (run.stopped, len(run.history)) == ("", 10)
    assert [bool(row.get("refreshed")) for row in run.history] == [place == 4 for place in range(10)]
    assert not any("diverging" in row for row in run.history)


def test_a_column_that_is_of_another_type_now_is_refused():
    def frame(column):
        rows = {"client": list("ab") * 20, "when": column, "label": [0, 1, 1, 0] * 10}
        return corymb.FederatedDataset.from_dataframe(pd.DataFrame(rows))

    begun = fit(corymb.FedAvg(rounds=1), frame([float(day) for day in range(40)]))
    with pytest.raises(InvalidInput, match="differ from those of the run in name, type or categories"):
        begun.refresh(frame([f"2024-01-{1 + day % 28:02}" for day in range(40)]))


def test_a_start_of_other_clients_or_another_model_is_refused(begun):
    start = begun.snapshot.handover()
    with pytest.raises(InvalidInput, match=r"start has 6 clients, but the data have 8: use run\.refresh"):
        fit(FAST, grown(), start=start)
    with pytest.raises(InvalidInput, match=r"another model or from data with other features: its '1\.weight'"):
        fit(FAST, small.arrays(), "mlp", start=start)
    x, y, client = small.arrays()
    with pytest.raises(InvalidInput, match=r"has shape \[2, 2\], wanted \[2, 3\]"):
        fit(FAST, (np.c_[x, x[:, :1]], y, client), start=start)
    assert len(fit(FAST, small.arrays(), start=start).history) == 4


STEADY = corymb.IFCA(k=2, rounds=60, local=Descent(lr=0.3, steps=5, weight_decay=0.1))


@pytest.fixture(scope="module")
def settled():
    return fit(STEADY, small.arrays(), until="converged")


def test_a_refreshed_run_ends_when_it_has_converged_on_the_new_data(settled, tmp_path):
    assert settled.stopped == "converged"
    run = settled.refresh(small.arrays())
    more = len(run.history) - len(settled.history)
    assert run.stopped == "converged"
    assert 20 <= more < 60  # the rounds before the refresh say nothing about the new data
    again = run.refresh(small.arrays())
    assert (again.stopped, len(again.history) - len(run.history)) == ("converged", 20)
    settled.refresh(small.arrays(), out=tmp_path / "run", callbacks=stop_at(len(settled.history) + 5))
    resumed = fit(STEADY, small.arrays(), resume=tmp_path / "run")
    assert (resumed.stopped, len(resumed.history)) == ("converged", len(run.history))
    assert same(resumed, run)


def test_rounds_that_are_asked_for_are_run_in_full(settled):
    run = settled.refresh(small.arrays(), rounds=25)
    assert (run.stopped, len(run.history) - len(settled.history)) == ("", 25)


def test_clients_with_memory_converge_too_after_a_refresh():
    algorithm = corymb.Alone(rounds=60, local=STEADY.local)
    first = fit(algorithm, small.arrays(), until="converged")
    assert len(first.history) < 60
    run = first.refresh(small.arrays())
    assert (first.stopped, run.stopped) == ("converged", "converged")
    assert len(run.history) - len(first.history) == 20
    assert len(run.refresh(small.arrays(), rounds=3).history) - len(run.history) == 3


def test_a_handover_to_other_data_notes_their_new_standardisation(begun, tmp_path, caplog):
    x, y, client = small.arrays()
    run = fit(FAST, (x * 10, y, client), start=begun.snapshot.handover(), out=tmp_path / "run")
    assert not torch.equal(run.standard.scale, begun.standard.scale)
    (note,) = [line for line in run.schema.notes if "standardised by these data" in line]
    assert "run.refresh(data) keeps" in note
    assert note in caplog.messages
    assert note in corymb.Run.load(tmp_path / "run").schema.notes
    caplog.clear()
    for other in (begun.refresh((x * 10, y, client), rounds=1), fit(FAST, small.arrays())):
        assert note not in (*other.schema.notes, *caplog.messages)


def test_a_handover_to_the_same_data_needs_no_note(begun, tmp_path, caplog):
    data = small.arrays()
    saved = fit(FAST, data, out=tmp_path / "run")
    starts = [begun.snapshot, begun.snapshot.handover(), corymb.Run.load(saved.folder).snapshot.handover()]
    for start in starts:
        run = fit(replace(FAST, rounds=6), data, start=start)
        assert not [line for line in (*run.schema.notes, *caplog.messages) if "standardised by these data" in line]


def test_a_handover_after_a_refresh_notes_the_units_of_the_first_data(begun, caplog):
    x, y, client = small.arrays()
    other = (x * 10, y, client)
    refreshed = begun.refresh(other, rounds=1)
    for start in (refreshed.snapshot, refreshed.snapshot.handover()):  # its models still know the units of the first
        caplog.clear()
        fit(replace(FAST, rounds=6), other, start=start)
        assert any("standardised by these data" in line for line in caplog.messages)
    caplog.clear()
    fit(FAST, (x, y, client), start=refreshed.snapshot.handover())
    assert not any("standardised by these data" in line for line in caplog.messages)


def test_columns_of_new_data_may_come_in_another_order():
    frame = pd.DataFrame(
        {
            "client": ["a", "b"] * 20,
            "label": [row * 0.5 for row in range(40)],
            "x": [row % 7 * 1.0 for row in range(40)],
            "word": ["u", "u", "v", "w"] * 10,
            "z": [row % 3 * 1.0 for row in range(40)],
        }
    )
    run = fit(corymb.FedAvg(rounds=2), as_dataset(frame))
    again, turned = (run.refresh(data, rounds=2) for data in (frame, frame[["z", "word", "x", "label", "client"]]))
    assert all(torch.equal(turned.models[name], value) for name, value in again.models.items())
    assert turned.metrics == again.metrics
    assert turned.schema.feature_names == run.schema.feature_names
    with pytest.raises(InvalidInput, match="differ from those of the run in name, type or categories"):
        run.refresh(frame.rename(columns={"z": "y"}), rounds=2)
