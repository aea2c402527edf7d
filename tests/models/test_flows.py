"""Laws of flows: they can be inverted, their determinants are those of the Jacobian, their densities integrate to 1."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jacrev, vmap

from corymb.core.objective import Examples
from corymb.keys import fold, normal, root
from corymb.models.flows import Affine, Diagonal, Pixels, Planar, Projected, RealNVP, Shift
from corymb.objectives import Density
from corymb.settings import InvalidInput

DOUBLE = torch.float64
VECTORS = {
    "affine": Affine,
    "diagonal": Diagonal,
    "shift": Shift,
    "planar": lambda d: Planar(d, layers=3),
    "couplings": lambda d: RealNVP(max(d, 2), mask="halves", layers=3, hidden=5),
}


def parameters(flow, seed=0, spread=0.2):
    """Fresh parameters, moved a little."""
    fresh = flow.init(root(seed))
    return {n: (v + spread * normal(fold(root(seed), n), tuple(v.shape))).to(DOUBLE) for n, v in fresh.items()}


def check_flow(flow, seed, rows):
    params = parameters(flow, seed)
    x = normal(fold(root(seed), "x"), (rows, flow.inputs), DOUBLE)
    z, log_det = flow.forward(params, x)
    assert z.shape == x.shape
    assert log_det.shape == (rows,)
    assert torch.allclose(flow.inverse(params, z), x, atol=1e-8)
    jacobian = vmap(jacrev(lambda one: flow.forward(params, one[None])[0][0]))(x)
    assert torch.allclose(torch.linalg.slogdet(jacobian).logabsdet, log_det, atol=1e-8)
    alone = torch.cat([flow.forward(params, one[None])[1] for one in x])
    assert torch.allclose(alone, log_det, atol=1e-12)  # an example's density knows no other example


@settings(max_examples=12, deadline=None)
@given(name=st.sampled_from(sorted(VECTORS)), d=st.integers(1, 6), seed=st.integers(0, 99), rows=st.integers(1, 4))
def test_flows_of_vectors_keep_the_laws(name, d, seed, rows):
    check_flow(VECTORS[name](d), seed, rows)


@settings(max_examples=8, deadline=None)
@given(
    mask=st.sampled_from(["checkerboard", "cyclic"]),
    side=st.integers(2, 4),
    channels=st.integers(1, 2),
    layers=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_couplings_of_pictures_keep_the_laws(mask, side, channels, layers, seed):
    check_flow(RealNVP(channels * side**2, side=side, mask=mask, layers=layers, hidden=4), seed, rows=2)


def test_cyclic_masks_go_round_the_quadrants():
    masks = RealNVP(16, side=4, mask="cyclic").masks
    reads = [read for read, _ in masks]
    assert torch.equal(sum(reads), torch.ones(16))
    assert all(torch.equal(changes, reads[(place + 1) % 4]) for place, (_, changes) in enumerate(masks))
    assert reads[0].reshape(4, 4)[:2, :2].all()


@pytest.mark.parametrize("name", VECTORS)
def test_densities_integrate_to_one(name):
    objective = Density(VECTORS[name](2), dtype=DOUBLE)
    params = parameters(objective.flow, seed=3, spread=0.05)
    line = torch.linspace(-12, 12, 401, dtype=DOUBLE)
    grid = torch.cartesian_prod(line, line)
    density = objective.predict(params, grid).exp()
    assert float(density.sum() * (line[1] - line[0]) ** 2) == pytest.approx(1, abs=2e-3)


def test_the_density_of_pixels_integrates_to_one_over_their_steps():
    """Noise is drawn by the picture itself, so the density of a step is seen at one place in it: a sum, not exact."""
    flow = Pixels(Diagonal(1), levels=2000)
    objective = Density(flow, dtype=DOUBLE)
    params = {"log_scale": torch.zeros(1, dtype=DOUBLE), "shift": torch.zeros(1, dtype=DOUBLE)}
    x = torch.arange(2000, dtype=DOUBLE).reshape(-1, 1) / 1999
    inside = float(objective.predict(params, x).exp().sum() / 2000)
    cut = 2 * torch.special.ndtr(torch.tensor(0.95 / 0.05).log()) - 1  # what the logit's ends leave out
    assert inside == pytest.approx(float(cut), abs=0.01)


def test_noise_on_pixels_is_an_examples_own():
    flow = Pixels(Affine(9))
    x = (normal(root(1), (5, 9)).sigmoid() * 255).round() / 255
    moved = flow.dequantised(x)
    assert torch.equal(flow.dequantised(x.flip(0)), moved.flip(0))
    assert torch.equal(flow.dequantised(x[2:3])[0], moved[2])
    assert bool(((moved * 256).floor() == (x * 255).round()).all())
    assert len((moved * 256 % 1).flatten().unique()) == 45


def test_a_projection_drops_orthogonal_components():
    flow = Projected(Affine(2), 5)
    params = parameters(flow, 4, spread=0.0)
    x = normal(root(2), (3, 5), DOUBLE)
    across = x.clone()
    across[:, 2:] += 7
    objective = Density(flow, dtype=DOUBLE)
    assert torch.equal(objective.predict(params, x), objective.predict(params, across))
    assert torch.allclose(flow.inverse(params, flow.forward(params, x)[0])[:, :2], x[:, :2])


def test_a_gaussian_is_an_affine_flow():
    mean, root_of = normal(root(5), (3,), DOUBLE), normal(root(6), (3, 3), DOUBLE)
    covariance = root_of @ root_of.mT + torch.eye(3, dtype=DOUBLE)
    x = normal(root(7), (4, 3), DOUBLE)
    want = torch.distributions.MultivariateNormal(mean, covariance).log_prob(x)
    assert torch.allclose(Density(Affine(3), dtype=DOUBLE).predict(Affine.gaussian(mean, covariance), x), want)


def test_a_mixture_is_the_log_of_a_weighted_sum():
    objective = Density(Shift(2), dtype=DOUBLE)
    x = normal(root(8), (4, 2), DOUBLE)
    each = torch.stack([objective.predict(parameters(objective.flow, seed), x) for seed in (0, 1)])
    weights = torch.tensor([0.3, 0.7], dtype=DOUBLE)
    assert torch.allclose(objective.mix(each, weights).exp(), (each.exp() * weights[:, None]).sum(0))
    examples = Examples(x, torch.zeros(4), torch.ones(4))
    assert torch.equal(objective.losses(parameters(objective.flow), examples), -each[0])


def test_samples_come_from_the_density():
    objective = Density(Affine(2), dtype=DOUBLE)
    params = Affine.gaussian(torch.tensor([3.0, -1.0]).double(), torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double())
    drawn = objective.sample(params, root(9), 4000)
    assert torch.allclose(drawn.mean(0), torch.tensor([3.0, -1.0]).double(), atol=0.1)
    assert torch.allclose(drawn.T.cov(), torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double(), atol=0.15)


def test_masks_require_pictures():
    with pytest.raises(InvalidInput, match="square pictures"):
        RealNVP(10, side=4, mask="cyclic")
