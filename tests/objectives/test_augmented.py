"""Pictures augmented by random keys: each change does what it should, and is the same on every engine."""

import pytest
import torch

from corymb.algorithms import FedAvg
from corymb.core.objective import Draws, Examples
from corymb.engines.vectorised.graphs import MIN_STEPS
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.traits import traits_of
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.local.reference import descend_one
from corymb.models import Network, cnn
from corymb.objectives import Augmented, Classification, Crop, Cutout, Flip, Light, Translate
from corymb.objectives.recipe import made_from, recipe_of
from corymb.settings import InvalidInput
from corymb.trees import take
from tests.tiny import classification, farthest, federation

CHANGES = (Flip(), Translate(2), Cutout(3), Light())


def pictures(m: int = 200, side: int = 8) -> torch.Tensor:
    return torch.arange(1.0, m * 2 * side * side + 1).reshape(m, 2, side, side) / (m * 2 * side * side)


def keys(m: int = 200) -> torch.Tensor:
    return fold(root(3), torch.arange(m))


def test_a_flip_mirrors_about_half_of_the_pictures():
    x, found = pictures(), Flip()(pictures(), keys())
    mirrored = (found == x.flip(-1)).flatten(1).all(1)
    assert ((found == x).flatten(1).all(1) ^ mirrored).all()
    assert 60 < mirrored.sum() < 140
    assert torch.equal(Flip(0.0)(x, keys()), x)


def test_a_translation_shifts_by_every_amount_and_fills_with_0():
    x, found = pictures(), Translate(1)(pictures(), keys())
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    ways = [padded[..., i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    which = torch.stack([(found == way).flatten(1).all(1) for way in ways])
    assert (which.sum(0) == 1).all()
    assert (which.sum(1) > 5).all()


def test_a_crop_is_a_part_of_the_picture_from_every_place():
    x, found = pictures(), Crop(6)(pictures(), keys())
    ways = [x[..., i : i + 6, j : j + 6] for i in range(3) for j in range(3)]
    which = torch.stack([(found == way).flatten(1).all(1) for way in ways])
    assert (which.sum(0) == 1).all()
    assert (which.sum(1) > 5).all()
    with pytest.raises(InvalidInput, match="does not fit into pictures"):
        Crop(9)(x, keys())


def test_a_cutout_covers_a_square_that_may_reach_over_the_edge():
    x, found = pictures(), Cutout(3)(pictures(), keys())
    holes = (found == 0).flatten(2)
    assert (found[found != 0] == x[found != 0]).all()
    assert set(holes[:, 0].sum(-1).tolist()) == {4, 6, 9}


def test_light_keeps_the_order_of_pixels_and_moves_mean_and_contrast():
    x, found = pictures(), Light(0.1, (0.5, 1.5))(pictures(), keys())
    moved = (found.mean((1, 2, 3)) - x.mean((1, 2, 3))).abs()
    factor = found.std((2, 3)) / x.std((2, 3))
    assert moved.max() <= 0.1 + 1e-6
    assert moved.max() > 0.08
    assert factor.min() >= 0.5 - 1e-4
    assert factor.max() <= 1.5 + 1e-4


def job(clients: int = 3, m: int = 6):
    objective = Augmented(Classification(Network(cnn(2, 8, 4, width=8)), 4), CHANGES)
    on = Examples(torch.rand(clients, m, 2, 8, 8), torch.randint(4, (clients, m)), torch.ones(clients, m))
    one = objective.init(root(0))
    return objective, {n: p.expand(clients, *p.shape) for n, p in one.items()}, on, fold(root(1), torch.arange(clients))


def test_every_kernel_changes_the_same_pictures_in_the_same_way():
    objective, params, on, key = job()
    how = Descent(lr=0.1, steps=MIN_STEPS, batch=2)
    traits = traits_of(objective, take(params, 0), take(take(on, 0), slice(0, 1)))
    captured, plain = Kernels(traits, "cuda", 1), Kernels(traits, "cpu", 1, only="foreach")
    captured.descend(objective, params, on, key, how)
    found = [kernel.descend(objective, params, on, key, how)[0] for kernel in (captured, plain)]
    assert any(seen.player is not None for seen in captured.graphs.seen.values())
    for i in range(3):
        alone = descend_one(objective, take(params, i), take(on, i), key[i], how).params
        for name in alone:
            assert all(torch.allclose(got[name][i], alone[name], rtol=1e-4, atol=1e-5) for got in found)


def test_a_round_on_every_engine_is_the_same_round():
    def trained(engine):
        objective = Augmented(Classification(Network(cnn(2, 8, 3, width=8), dtype=torch.float64), 3), CHANGES)
        fed = federation(engine, objective, classification((5, 7), shape=(2, 8, 8)))
        *_, end = FedAvg(rounds=1, local=Descent(lr=0.1, steps=3, batch=2)).run(fed)
        return end.models

    assert farthest(trained("vectorised"), trained("loop")) < 1e-12
    assert farthest(trained("wired"), trained("loop")) < 1e-12


def test_pictures_are_changed_only_in_training_and_differently_in_every_step():
    objective, params, on, key = job()
    one, mine = take(params, 0), take(on, 0)
    assert torch.equal(objective.losses(one, mine), objective.inner.losses(one, mine))
    steps = [objective.training_losses(one, mine, Draws(key[0], step)) for step in (0, 0, 1)]
    assert torch.equal(steps[0], steps[1])
    assert not torch.allclose(steps[0], steps[2])


def test_it_round_trips_and_refuses_non_pictures():
    objective, params, _, key = job()
    assert made_from(recipe_of(objective), ["corymb"]).describe() == objective.describe()
    flat = Examples(torch.rand(5, 7), torch.zeros(5, dtype=torch.int64), torch.ones(5))
    with pytest.raises(InvalidInput, match="Augmentation needs pictures"):
        objective.training_losses(take(params, 0), flat, Draws(key[0]))
