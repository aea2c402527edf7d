import math
import sys

import pytest

import corymb
from corymb.local import Descent
from corymb.runs.tracking import TensorBoard, scalars
from corymb.settings import InvalidInput
from tests.runs import small

FAST = corymb.IFCA(k=2, rounds=3, local=Descent(lr=0.3, steps=2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of protobuf and numpy, inside tensorboard
def test_rounds_can_be_read_back_with_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = corymb.fit(FAST, small.arrays(), callbacks=TensorBoard(tmp_path), evaluate_every=1)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"churn", "train_loss", "metrics/test_accuracy", "bytes_up"} <= set(events.Tags()["scalars"])
    for name in ("churn", "train_loss"):
        drawn = [(event.step, event.value) for event in events.Scalars(name)]
        assert drawn == [(row["clock"], pytest.approx(row[name])) for row in run.history]
    accuracy = [event.value for event in events.Scalars("metrics/test_accuracy")]
    assert accuracy == pytest.approx([row["metrics"]["test_accuracy"] for row in run.history])


def test_values_that_are_not_numbers_are_left_out():
    row = {"clock": 1, "round": 1, "stage": "a", "churn": math.nan, "asked": 3, "moves": {}, "metrics": {"x": math.inf}}
    assert list(scalars(row)) == [("asked", 3.0)]


def test_without_the_package_there_is_a_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InvalidInput, match=r"corymb\[tracking\]"):
        TensorBoard(tmp_path)


def test_any_other_tracker_is_a_function_of_a_row(tmp_path):
    logged = []
    corymb.fit(FAST, small.arrays(), progress=lambda row: logged.append((row["clock"], dict(scalars(row)))))
    assert [clock for clock, _ in logged] == [1, 2, 3]
    assert all("churn" in numbers for _, numbers in logged)
