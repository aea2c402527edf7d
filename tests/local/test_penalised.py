"""Linear models with penalties: leave-out errors by hand, few examples, padding, and the path of steps."""

from itertools import pairwise

import pytest
import torch
from torch.func import vmap
from torch.nn.functional import cross_entropy, one_hot

from corymb.core.objective import Examples
from corymb.local import penalised
from corymb.local.penalised import logistic, ridge


def line(m: int, noise: float = 0.1, level: float = 0.0) -> Examples:
    made = torch.Generator().manual_seed(1)
    x = torch.randn(m, 3, generator=made, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64) + level
    return Examples(x, y + noise * torch.randn(m, generator=made, dtype=torch.float64), torch.ones(m).double())


@pytest.mark.parametrize("free", [True, False])
def test_squares_of_what_is_left_out_are_those_of_models_made_without_it(free):
    on = line(7, level=2.0)
    _, found, _ = penalised._path(*on, free=free)
    by_hand = torch.zeros_like(found)
    for i in range(7):
        thetas, _, _ = penalised._path(on.x, on.y, torch.where(torch.arange(7) == i, 0, on.weight), free=free)
        x = torch.cat([on.x[i], torch.ones(1).double()]) if free else on.x[i]
        by_hand += (on.y[i] - x @ thetas).square()
    assert torch.allclose(found, by_hand, rtol=1e-6)


def test_clear_examples_are_fitted_and_noise_is_not():
    clear = ridge(line(40, noise=0.01, level=5.0), intercept=True)
    assert torch.allclose(clear, torch.tensor([1.0, -1.0, 0.0, 5.0]).double(), atol=0.02)
    noise = line(8)._replace(y=torch.tensor([1.0, -1, 1, 1, -1, -1, 1, -1]).double())
    least = torch.linalg.lstsq(noise.x, noise.y[:, None]).solution[:, 0]
    assert ridge(noise, intercept=True)[:3].norm() < 0.5 * least.norm()


def test_penalties_that_give_one_model_count_as_one():
    few = Examples(torch.randn(4, 30, generator=torch.Generator().manual_seed(2)).double(), *line(4)[1:])
    thetas, _, votes = penalised._path(*few, free=True)
    assert torch.allclose(thetas[:, -4], thetas[:, -1], atol=1e-2)  # all of these go through every example
    assert float(votes[-4:].sum()) < 0.05 * float(votes.sum())
    assert float(votes.sum()) == pytest.approx(4, rel=1e-3)  # as many degrees of freedom as examples


def test_one_example_is_what_a_client_with_one_predicts():
    on = Examples(torch.ones(1, 3), torch.full((1,), 4.0), torch.ones(1))
    theta = ridge(on, intercept=True)
    assert float(theta[:3].sum() + theta[3]) == pytest.approx(4, rel=1e-2)
    assert ridge(on, intercept=False).shape == (3,)
    labels = on._replace(y=torch.tensor([2]))
    assert int((logistic(labels, 3) @ torch.ones(4)).argmax()) == 2


def classes(m: int) -> Examples:
    on = line(m)
    return on._replace(y=(on.y > 0).long() + (on.x[:, 2] > 1).long())


def test_padding_and_company_change_nothing():
    on, labels = line(9), classes(20)

    def padded(some, rows):
        x, y, weight = (torch.cat([value, value.new_ones(rows, *value.shape[1:])]) for value in some)
        return Examples(x, y, torch.where(torch.arange(len(weight)) < len(weight) - rows, weight, 0))

    for fit, some in ((lambda e: ridge(e, intercept=True), on), (lambda e: logistic(e, 3), labels)):
        alone = fit(some)
        assert torch.allclose(fit(padded(some, 5)), alone, atol=1e-9)
        stacked = vmap(lambda x, y, w, fit=fit: fit(Examples(x, y, w)))(*(torch.stack([value] * 2) for value in some))
        assert torch.allclose(stacked[1], alone, atol=1e-9)


def test_steps_on_cross_entropy_never_go_up_and_arrive(monkeypatch):
    on = classes(30)
    x, targets = torch.cat([on.x, torch.ones(30, 1).double()], 1), one_hot(on.y, 3).double()
    theta, alpha = torch.zeros(1, 3, 4).double(), torch.tensor(3.0).double()

    def loss(theta):
        sizes = alpha * theta[..., :3].square().sum() + penalised.INTERCEPT_PENALTY * theta[..., 3].square().sum()
        return float(cross_entropy((x @ theta.mT)[0], on.y, reduction="sum") + sizes / 2)

    monkeypatch.setattr(penalised, "STEPS_PER_PENALTY", 1)
    values = [loss(theta)]
    for _ in range(300):
        theta = penalised._descend(theta, x, targets, on.weight[None], alpha)
        values.append(loss(theta))
    assert all(b <= a + 1e-9 for a, b in pairwise(values))
    assert values[-2] - values[-1] < 1e-6


def test_shares_of_classes_take_the_place_of_labels():
    on = classes(200)._replace(x=torch.zeros(200, 3).double())  # nothing to tell classes by but how frequent they are
    shares = torch.tensor([0.7, 0.2, 0.1]).double().expand(200, 3)
    said = (torch.cat([on.x[:1], torch.ones(1, 1).double()], 1) @ logistic(on, 3, shares=shares).mT).softmax(-1)
    assert torch.allclose(said, shares[:1], atol=1e-3)


def test_labels_are_predicted_from_features_and_a_tie_is_half_an_error():
    on = classes(60)
    said = (torch.cat([on.x, torch.ones(60, 1).double()], 1) @ logistic(on, 3).mT).argmax(1)
    assert float((said == on.y).double().mean()) > 0.8  # 0.5 without features
    logits = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert penalised._wrong(logits, one_hot(torch.zeros(3).long(), 2)).tolist() == [0.5, 0.0, 1.0]
