"""An algorithm that yields anything but valid snapshots raises an error of one line."""

from dataclasses import dataclass, replace

import pytest
import torch

from corymb.core.client import Share, on_client
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.engines import LoopEngine
from corymb.local import Descent, descend, loss, serve_assigned
from corymb.objectives import LinearRegression
from corymb.settings import InvalidInput
from corymb.trees import take
from tests.tiny import DOUBLE, regression


@on_client
def work(client, models):
    model = take(models, 0)
    return Share(
        descend(client, model, Descent(lr=0.1)), weight=torch.ones(1), label=torch.tensor(0), note=loss(client, model)
    )


@dataclass(frozen=True, kw_only=True)
class Average:
    """FedAvg whose author yields `change(at, replies)`."""

    change: object
    rounds: int = 3
    serve = serve_assigned

    def run(self, fed, start=None):
        at = start or Snapshot.fresh(fed, 1)
        for _ in range(at.round, self.rounds):
            replies = fed.clients.sample(2).sum(work, at.models)
            yield (at := self.change(at.next(models=replies.value.mean(empty=at.models)), replies))


class Returns(Average):
    def run(self, fed, start=None):
        return self.change(Snapshot.fresh(fed, 1), None)


class WithoutStart(Average):
    def run(self, fed):
        yield Snapshot.fresh(fed, 1)


class FromTheBeginning(Average):
    def run(self, fed, start=None):
        yield from super().run(fed)


def go(algorithm, start=None):
    fed = Federation(LoopEngine(LinearRegression(3, dtype=torch.float64), regression([5, 4, 6]), DOUBLE))
    return list(drive(algorithm, fed, start))


def test_a_correct_algorithm_runs_and_resumes_from_any_snapshot():
    right = Average(
        change=lambda at, replies: replace(at, notes={"loss": float(replies.value.note.mean()), "none": None})
    )
    whole = go(right)
    assert [at.round for at in whole] == [1, 2, 3]
    assert [at.round for at in go(right, whole[0])] == [2, 3]


MISTAKES = {
    "Average.run yielded a dict, wanted a Snapshot": lambda at, replies: at.models,
    "Average.run yielded nothing, wanted a Snapshot": lambda at, replies: None,
    r"yielded round 0 after round 0: make each snapshot with at.next": lambda at, replies: replace(at, round=0),
    "models are a list: wanted a dict of tensors": lambda at, replies: replace(at, models=[at.models]),
    r"models\['weight'\] has shape \[3\]: wanted \[k, 3\]": lambda at, replies: replace(at, models=take(at.models, 0)),
    r"labels have shape \[2\]: wanted a tensor with a row for each of 3 clients": lambda at, replies: replace(
        at, labels=replies.value.label
    ),
    "labels are torch.float64: wanted int64": lambda at, replies: replace(at, labels=at.labels.double()),
    "labels are a list: wanted a tensor with a row": lambda at, replies: replace(at, labels=[0, 0, 0]),
    r"is float32: wanted float64, the run's precision; a value in float32 was mixed in": lambda at, replies: replace(
        at, models={name: value.float() for name, value in at.models.items()}
    ),
    r"shares have shape \[2, 1\]": lambda at, replies: replace(at, shares=torch.ones(2, 1)),
    r"carry\['best'\] is a float: wanted a tensor": lambda at, replies: replace(at, carry={"best": 0.5}),
    r"carry\['m'\] is a dict: wanted a tensor. Give each tensor a name": lambda at, replies: replace(
        at, carry={"m": at.models}
    ),
    "labels must be -1 .* to 0 for 1 models": lambda at, replies: replace(at, labels=at.labels * 0 + 1),
    "labels must be -1 .none. to 0": lambda at, replies: replace(at, labels=at.labels * 0 - 2),
    "models are empty: wanted at least one model. If nothing is trained": lambda at, replies: replace(at, models={}),
    "models have no rows": lambda at, replies: replace(at, models=take(at.models, slice(0))),
    "models differ in their number of rows, {'a': 1, 'b': 2}": lambda at, replies: replace(
        at, models={"a": torch.ones(1), "b": torch.ones(2)}
    ),
    r"shares have shape \[3, 4\]: wanted \[3, 1\]": lambda at, replies: replace(at, shares=torch.ones(3, 4)),
    r"carry\['best'\] is a sparse tensor": lambda at, replies: replace(at, carry={"best": torch.eye(2).to_sparse()}),
    r"notes has the key 3": lambda at, replies: replace(at, notes={3: "x"}),
    r"notes\['a'\]\['b'\] is a set: notes are plain": lambda at, replies: replace(at, notes={"a": {"b": {1}}}),
    r"notes\['a'\]\[0\] is a Tensor": lambda at, replies: replace(at, notes={"a": [replies.value.note]}),
    r"notes\['loss'\] is a Tensor: notes are plain": lambda at, replies: replace(
        at, notes={"loss": replies.value.note}
    ),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_raises_an_error_of_one_line(line):
    with pytest.raises(InvalidInput, match=line) as told:
        go(Average(change=MISTAKES[line]))
    assert "\n" not in str(told.value)


def test_a_run_that_is_no_generator_is_refused():
    with pytest.raises(InvalidInput, match=r"Returns\.run returned a Snapshot: it must yield"):
        go(Returns(change=lambda at, replies: at))
    with pytest.raises(InvalidInput, match=r"Returns\.run returned nothing: it must yield"):
        go(Returns(change=lambda at, replies: None))


def test_a_run_without_a_start_parameter_is_refused():
    with pytest.raises(InvalidInput, match=r"WithoutStart\.run cannot be called as run\(fed, start\)"):
        go(WithoutStart(change=None))


def test_an_algorithm_that_ignores_its_start_cannot_be_resumed():
    algorithm = FromTheBeginning(change=lambda at, replies: at)
    first = go(algorithm)[0]
    with pytest.raises(InvalidInput, match="yielded round 1 after round 1"):
        go(algorithm, first)
