import numpy as np
import pytest
import torch

import corymb
from corymb.core.client import Examples
from corymb.data import as_dataset
from corymb.keys import root
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.runs.fit import fit
from corymb.runs.standardise.objective import Standard, Standardised
from tests.runs import small

STANDARD = Standard(torch.tensor([50.0, 100.0]), torch.tensor([10.0, 20.0]), torch.tensor(5.0), torch.tensor(2.0))


def test_losses_are_in_standard_units_scores_and_predictions_in_the_datas():
    objective = Standardised(LinearRegression(2), STANDARD)
    params = {"weight": torch.tensor([1.0, -1.0])}
    examples = Examples(torch.tensor([[60.0, 80.0]]), torch.tensor([10.0]), torch.ones(1))  # x: 1, -1; y: 2.5
    assert objective.losses(params, examples).tolist() == [0.25]
    assert objective.scores(params, examples).tolist() == [1.0]  # (10 - 9)²
    assert objective.predict(params, examples.x).tolist() == [9.0]
    assert objective.score_name == "squared_error"
    assert objective.squared


def test_classes_are_left_alone():
    inner = Classification(Network(mlp(2, [], 3)), 3)
    plain = STANDARD._replace(target_mean=torch.zeros(()), target_scale=torch.ones(()))
    objective, params = Standardised(inner, plain), inner.init(root(0))
    examples = Examples(torch.tensor([[60.0, 80.0]]), torch.tensor([2]), torch.ones(1))
    seen = examples._replace(x=torch.tensor([[1.0, -1.0]]))
    assert torch.equal(objective.losses(params, examples), inner.losses(params, seen))
    assert torch.equal(objective.scores(params, examples), inner.scores(params, seen))
    assert torch.equal(objective.predict(params, examples.x), inner.predict(params, seen.x))


def test_raw_units_are_learned_and_predicted():
    x, y, client = small.prices()
    run = fit(corymb.IFCA(k=2, rounds=30, local=Descent(lr=0.15, steps=10)), (x, y, client))
    assert run.labels["0"] == run.labels["2"] != run.labels["1"]
    errors = [run.predict(x[client == c], client=c) - y[client == c] for c in range(6)]
    assert np.abs(np.concatenate(errors)).mean() < 2000  # noise of 1000 on prices of some hundred thousand
    assert run.metrics["test_squared_error"] == pytest.approx(1000**2, rel=1)


def test_targets_of_an_objective_of_ones_own_are_left_alone():
    data = as_dataset(small.prices(), seed=0)
    ours = fit(corymb.FedAvg(rounds=1), data)
    assert float(ours.standard.target_scale) > 1000

    class Plain:
        inner = LinearRegression(2)
        init, losses, scores = inner.init, inner.losses, inner.scores

    theirs = fit(corymb.FedAvg(rounds=1, local=Descent(lr=1e-3)), data, Plain())
    assert float(theirs.standard.target_scale) == 1


def test_an_example_like_none_that_was_trained_on_gets_no_wild_prediction():
    x, y, client = small.prices()
    run = fit(corymb.FedAvg(rounds=10, local=Descent(lr=0.15, steps=10)), (x, y, client))
    far = x[:1].copy()
    far[0, 0] = 1e6 * x[:, 0].std()
    assert np.abs(run.predict(far, cluster=0) - y.mean()) < 50 * y.std()  # a line would be a million deviations off
    inside = x.mean(0) + 9 * x.std(0) * [[1, 0], [0.5, 0], [0, 0]]
    at = run.predict(inside.astype(np.float32), cluster=0)
    assert at[0] - at[1] == pytest.approx(at[1] - at[2], rel=1e-3)  # nearer than that, it is a line


def test_a_mixture_of_models_has_its_training_loss_in_the_units_of_the_others(tmp_path):
    data, local = small.prices(), Descent(lr=0.15, steps=10)
    soft, hard = (fit(kind(k=2, rounds=20, local=local), data) for kind in (corymb.FedSoft, corymb.IFCA))
    assert hard.metrics["train_loss"] < soft.metrics["train_loss"] < 2  # of targets with variance 1
    noted = soft.history[-1]["train_loss"]
    assert soft.metrics["train_loss"] == pytest.approx(noted, rel=1)


def test_the_standard_of_an_earlier_version_has_no_limits():
    objective = Standardised(LinearRegression(2), Standard(*STANDARD[:4]))
    assert objective.predict({"weight": torch.tensor([1.0, -1.0])}, torch.tensor([[1e9, 80.0]])).item() > 1e7


def test_targets_that_keep_their_sign_are_as_far_from_their_mean_as_before():
    standard = Standard(*map(torch.tensor, (0.0, 1.0, 10.0, 2.0, torch.inf, 3.0)))
    kept = standard.uncentred()
    assert (float(kept.target_mean), float(kept.target_scale), float(kept.target_limit)) == (0.0, 2.0, 8.0)
    assert float(kept.target_limit * 2) == 10 + 3 * 2  # the same target is at the limit
    assert Standard(*standard[:4]).uncentred().target_limit == torch.inf
