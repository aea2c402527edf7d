"""ClusterGAN's game: which network is trained when, the losses by hand, and that examples are independent."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from corymb.core.objective import Draws, Examples
from corymb.keys import fold, normal, root
from corymb.local.reference import gradient_one
from corymb.models.adversarial import CRITIC, Dense
from corymb.objectives.adversarial import SPREAD, ClusterGame, joined
from corymb.settings import InvalidInput

GAME = ClusterGame(Dense(4, hidden=6, noise=3), critic_steps=2, dtype=torch.float64)
X = normal(root(5), (7, 4), torch.float64)
ON = Examples(X, torch.zeros(7), torch.ones(7, dtype=torch.float64))


def model(k=3):
    return joined([GAME.init(fold(root(1), j)) for j in range(k)])


@pytest.mark.parametrize(("step", "critic_moves"), [(0, False), (1, True), (2, True), (3, False)])
def test_generator_and_encoder_move_in_one_step_and_the_critic_in_the_others(step, critic_moves):
    slopes = gradient_one(GAME, model(), ON, Draws(root(2), step))
    moved = {name.split(".")[0] for name, slope in slopes.items() if slope.abs().max() > 0}
    assert moved == ({"critic"} if critic_moves else {"generator", "encoder"})


def test_the_losses_are_those_of_the_papers():
    params, draws = model(), Draws(root(2), 0)
    noise, cluster, place = GAME.latent(draws.keys(7), params)
    nets = GAME.networks
    made = nets.generate(params, noise, cluster)
    found = nets.encode(params, made)
    want = 10 * (noise - found.noise).square().mean(-1) - nets.judge(params, made)
    want += 10 * cross_entropy(found.logits, cluster, reduction="none")
    assert torch.allclose(GAME.training_losses(params, ON, draws), want)
    draws = Draws(root(2), 1)
    noise, cluster, place = GAME.latent(draws.keys(7), params)
    made = nets.generate(params, noise, cluster)
    between = (place * X + (1 - place) * made).detach().requires_grad_()
    (slope,) = torch.autograd.grad(nets.judge(params, between).sum(), between)
    want = nets.judge(params, made) - nets.judge(params, X) + 10 * (slope.norm(dim=-1) - 1).square()
    assert torch.allclose(GAME.training_losses(params, ON, draws), want, atol=1e-6)


def test_the_penalty_is_differentiated():
    """Its gradient, by differences: the slope of a slope."""
    params, draws, name = model(), Draws(root(2), 1), f"{CRITIC}first"
    slope = gradient_one(GAME, params, ON, draws)[name]
    for at in ((0, 0), (3, 2)):
        step = torch.zeros_like(params[name])
        step[at] = 1e-5
        ends = [
            float(GAME.training_losses({**params, name: params[name] + sign * step}, ON, draws).mean())
            for sign in (1, -1)
        ]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(float(slope[at]), rel=1e-4, abs=1e-7)


def test_an_examples_part_does_not_depend_on_others():
    params = model()
    some = Examples(*(part[2:4] for part in ON))
    for step in (0, 1):
        all_of_them = GAME.training_losses(params, ON, Draws(root(2), step))
        two = GAME.training_losses(params, some, Draws(root(2), step, torch.tensor([2, 3])))
        assert torch.allclose(two, all_of_them[2:4])


def test_latent_variables_have_the_papers_law():
    noise, cluster, place = GAME.latent(fold(root(0), torch.arange(20_000)), model())
    assert float(noise.std()) == pytest.approx(SPREAD, rel=0.02)
    assert float(noise.mean().abs()) < 0.002
    assert (torch.bincount(cluster) / 20_000).tolist() == pytest.approx([1 / 3] * 3, abs=0.02)
    assert 0 <= float(place.min()) < 0.01 < 0.99 < float(place.max()) < 1


def test_a_model_of_k_clusters_labels_and_samples():
    models = {name: value[None] for name, value in model(3).items()}
    assert set(GAME.label_points(models, X).tolist()) <= {0, 1, 2}
    drawn = GAME.sample_cluster(models, 2, root(4), 5)
    assert drawn.shape == (5, 4)
    assert not torch.equal(drawn, GAME.sample_cluster(models, 1, root(4), 5))
    assert torch.equal(GAME.space(model(3), X)[:, 3:].argmax(-1), GAME.label_points(models, X))


def test_a_critic_that_never_moves_is_refused():
    with pytest.raises(InvalidInput, match="critic_steps"):
        ClusterGame(GAME.networks, critic_steps=0)
