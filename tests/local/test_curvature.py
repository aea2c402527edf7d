import pytest
import torch

from corymb.core.objective import Draws, Examples
from corymb.keys import root
from corymb.local import Descent
from corymb.local.curvature import curvature, step_part
from corymb.local.reference import descend_one, gradient_one
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression

DRAWS = Draws(root(0), 0, None)


def steep(spread: float, dtype: torch.dtype = torch.float64, m: int = 12) -> Examples:
    """Examples whose features go together: one direction is far steeper than the others."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(m, 5, generator=made, dtype=dtype) + spread * torch.randn(m, 1, generator=made, dtype=dtype)
    return Examples(x, x.sum(1), torch.ones(m, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.0, 3.0, 300.0])
def test_the_curvature_of_a_linear_model_is_its_largest_eigenvalue(spread, dtype):
    examples, objective = steep(spread, dtype), LinearRegression(5, dtype=dtype)
    found = curvature(
        lambda at: gradient_one(objective, at, examples, DRAWS), {"weight": torch.full((5,), 7.0, dtype=dtype)}
    )
    largest = 2 * torch.linalg.eigvalsh(examples.x.mT @ examples.x / 12)[-1]
    assert 0.99 * largest < found < 1.01 * largest


def test_it_is_the_same_for_clients_alone_and_in_a_stack():
    objective, start = LinearRegression(5, dtype=torch.float64), {"weight": torch.ones(5, dtype=torch.float64)}
    clients = [steep(0.0), steep(20.0)]
    alone = [curvature(lambda at, on=on: gradient_one(objective, at, on, DRAWS), start) for on in clients]

    def together(at):
        rows = [
            gradient_one(objective, {"weight": at["weight"][i]}, on, DRAWS)["weight"] for i, on in enumerate(clients)
        ]
        return {"weight": torch.stack(rows)}

    stacked = curvature(together, {"weight": torch.ones(2, 5, dtype=torch.float64)}, clients=2)
    assert torch.allclose(stacked, torch.stack(alone), rtol=1e-12)


def test_steps_are_shortened_only_where_the_loss_is_too_steep():
    objective = LinearRegression(5, dtype=torch.float64)
    start, on = {"weight": torch.zeros(5, dtype=torch.float64)}, steep(30.0)

    def ended(how):
        return descend_one(objective, start, on, root(0), how).params["weight"]

    def error(weight):
        return float(objective.losses({"weight": weight}, on).mean())

    assert torch.equal(ended(Descent(lr=1e-5, steps=3, safe=True)), ended(Descent(lr=1e-5, steps=3)))
    assert error(ended(Descent(lr=0.1, steps=20))) > 1e6 * error(start["weight"])
    assert error(ended(Descent(lr=0.1, steps=20, safe=True))) < 0.1 * error(start["weight"])


def test_a_flat_loss_allows_the_whole_step():
    start = {"weight": torch.zeros(5, dtype=torch.float64)}
    assert step_part(Descent(lr=0.1, safe=True), lambda at: {"weight": torch.zeros(5)}, start) == 1


def test_a_network_far_from_a_safe_step_learns_all_the_same():
    network = Classification(Network(mlp(5, [8], 2), dtype=torch.float64), 2)
    x, y, weight = steep(100.0)
    on = Examples(x, (y > 0).long(), weight)
    start = network.init(root(1))
    end = descend_one(network, start, on, root(0), Descent(lr=10.0, steps=30, safe=True)).params
    assert network.losses(end, on).mean() < 0.5 * network.losses(start, on).mean()


def many_clients(n: int, m: int = 8, d: int = 6):
    """The Hessians of n clients with few examples, and their gradients at stacked models."""
    x = torch.randn(n, m, d, generator=torch.Generator().manual_seed(0))
    hessian = 2 * x.mT @ x / m
    return hessian, lambda at: {"weight": (hessian @ at["weight"][..., None])[..., 0] - 1}


def test_no_client_of_thousands_is_taken_for_flatter_than_it_is():
    hessian, gradient = many_clients(20_000)
    found = curvature(gradient, {"weight": torch.zeros(20_000, 6)}, clients=20_000)
    share = found / torch.linalg.eigvalsh(hessian)[:, -1]
    # Power iteration with as many gradients found less than half of it at seven of these clients.
    assert 0.99 < float(share.min()) <= float(share.max()) < 1.02


def test_flat_and_undefined_losses_have_flat_and_undefined_curvature():
    start = {"weight": torch.ones(3, 2)}
    flat = curvature(lambda at: {"weight": torch.zeros(3, 2)}, start, clients=3)
    assert flat.tolist() == [0, 0, 0]
    broken = curvature(lambda at: {"weight": torch.full((3, 2), torch.nan)}, start, clients=3)
    assert bool(broken.isnan().all())
