import math

import pytest
import torch
from scipy import stats

from corymb.algorithms import FedAvg
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.models import Network
from corymb.objectives import Classification
from corymb.runs.advising.pairs import Judge, Paired, Serving, combined, compare
from tests.tiny import DOUBLE, classification

LOSS, R2 = Judge("loss", higher=False, of_objective=False), Judge("r2", higher=True, of_objective=False)


def paired(ours, theirs, number=10.0, metric=None):
    n = len(ours)
    loss = torch.tensor([ours, theirs], dtype=torch.float64).mT
    values = torch.full((n, 2), math.nan, dtype=torch.float64) if metric is None else torch.tensor(metric).double().mT
    spread = torch.full((n, 2), 0.5, dtype=torch.float64)
    return Paired(torch.full((n,), number, dtype=torch.float64), loss, -loss, spread, values)


def test_a_gain_is_how_much_smaller_our_loss_is():
    ours, theirs = [1.0] * 9 + [3.0], [2.0] * 10
    gain = paired(ours, theirs).gain(LOSS)
    assert 0 < gain.mean < 1
    assert gain.size == pytest.approx(gain.mean / 2)
    assert (gain.clients, gain.worse) == (10, 0.9)
    assert paired(ours, theirs).values(LOSS) == pytest.approx((1.2, 2.0))


def test_clients_without_held_out_examples_or_answer_do_not_count():
    pair = paired([1.0, 1.0, 50.0], [2.0, 2.0, 0.0])
    pair = pair._replace(number=torch.tensor([4.0, 4.0, 0.0], dtype=torch.float64))
    assert pair.gain(LOSS).clients == 2
    assert pair.values(LOSS) == (1.0, 2.0)


def test_metrics_that_are_no_means_over_examples_are_tested_over_clients():
    ours, theirs = [0.9, 0.8, 0.7, math.nan], [0.5, 0.6, 0.6, 0.1]
    gain = paired([0.0] * 4, [0.0] * 4, metric=[ours, theirs]).gain(R2)
    wanted = stats.ttest_rel(ours[:3], theirs[:3], alternative="greater")
    assert gain.p == pytest.approx(wanted.pvalue)
    assert gain.clients == 3
    assert gain.size == pytest.approx(gain.mean / (1 - sum(theirs[:3]) / 3))


def test_seeds_are_averaged_by_client_over_those_in_which_it_answered():
    first, second = paired([1.0, 1.0], [2.0, 2.0]), paired([3.0, 9.0], [2.0, 9.0])
    second = second._replace(number=torch.tensor([20.0, 0.0], dtype=torch.float64))
    both = combined([first, second])
    assert both.loss.tolist() == [[2.0, 2.0], [1.0, 2.0]]
    assert both.number.tolist() == [15.0, 10.0]


def test_the_reference_of_relative_gains():
    half = torch.tensor(0.25)
    assert float(LOSS.base(half)) == 0.25
    assert float(R2.base(half)) == 0.75
    assert float(Judge("own_score", higher=True, of_objective=True).base(-half)) == 0.25


def test_recurrent_models_are_compared_without_vmap_giving_up():
    data = classification([6, 4, 5])
    model = Network(Recurrent, dtype=torch.float64)
    engine = VectorisedEngine(Classification(model, 3), data, DOUBLE)
    fed, algorithm = Federation(engine), FedAvg(rounds=1)
    at = Snapshot.fresh(fed, 1)
    serving, other = Serving(algorithm, fed, at), Serving(algorithm, fed, Snapshot.fresh(fed, 1))
    assert compare(serving, other, None).loss[:, 0].mean() == pytest.approx(serving.loss())
    assert not engine._serial
    loop = Federation(LoopEngine(Classification(model, 3), data, DOUBLE))
    assert Serving(algorithm, loop, at).loss() == pytest.approx(serving.loss())


class Recurrent(torch.nn.Module):
    """Reads an example's four numbers one after another."""

    def __init__(self):
        super().__init__()
        self.memory, self.out = torch.nn.LSTM(1, 3, batch_first=True), torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.out(self.memory(x[..., None])[0][:, -1])
