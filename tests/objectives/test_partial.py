import numpy as np
import pytest
import torch

import corymb
from corymb.models import Network, mlp
from corymb.objectives.partial import PartialObjective
from corymb.settings import InvalidInput
from tests.runs import small


class Quantile:
    """The pinball loss: only what an objective needs."""

    score_name, higher_is_better = "pinball", False

    def __init__(self, q, weights=()):
        self.q, self.weights, self._seen = q, weights, 0
        self.network = Network(mlp(2, [], 1))

    def init(self, key):
        return self.network.init(key)

    def losses(self, params, examples):
        self._seen += 1
        left = examples.y - self.network(params, examples.x).squeeze(-1)
        return torch.where(left > 0, self.q * left, (self.q - 1) * left)

    scores = losses


def described(*arguments):
    return PartialObjective(Quantile(*arguments)).describe()


def test_two_objectives_of_one_class_are_distinguished_by_their_contents():
    assert described(0.9) == described(0.9)
    assert "q=0.9" in described(0.9)
    assert len({described(0.9), described(0.5), described(0.9, [1.0, 2.0]), described(0.9, [1.0, 3.0])}) == 4
    assert described(0.9, torch.ones(3)) == described(0.9, torch.ones(3)) != described(0.9, torch.ones(3).double())
    assert described(0.9, torch.tensor(1.0)) != described(0.9, torch.tensor(2.0))
    assert described(0.9, np.ones(2)) == described(0.9, [1.0, 1.0])
    assert described(0.9, {"a": described}) == described(0.9, {"a": described})


def test_later_changes_and_moves_do_not_change_the_description():
    objective = PartialObjective(Quantile(0.9))
    before = objective.describe()
    objective.inner.q = 0.5
    assert objective.describe() == before == objective.to("cpu", torch.float64).describe()


def test_a_run_is_not_continued_with_another_objective_of_its_class(tmp_path):
    algorithm, data = corymb.FedAvg(rounds=4), small.prices()

    def stop(row):
        if row["clock"] == 2:
            raise corymb.StopRun

    corymb.fit(algorithm, data, Quantile(0.9), out=tmp_path / "run", callbacks=stop)
    with pytest.raises(InvalidInput, match="belongs to another run"):
        corymb.fit(algorithm, data, Quantile(0.5), resume=tmp_path / "run")
    assert len(corymb.fit(algorithm, data, Quantile(0.9), resume=tmp_path / "run").history) == 4
