"""The fast path out of a single vmap gives the same result as torch's rules for autograd functions."""

import pytest
import torch
from torch.func import vmap

from corymb.core.client import Client, Memory, on_client
from corymb.core.federation import Federation
from corymb.core.objective import Examples
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.keys import fold, root
from corymb.local import Descent, descend, gradient, leaving, loss, losses, scores, single_vmap
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.trees import flatten, stack, take
from tests.tiny import DOUBLE, classification

DESCENTS = Descent(lr=0.1, steps=3), Descent(lr=0.1, epochs=1, batch=2, momentum=0.5)


@on_client
def everything(client, models):
    """All that leaves vmap: with models of all, of each, and in a vmap of the client's own."""
    own = descend(client, take(models, 0), DESCENTS[0])
    return {
        "fit": losses(client, models),
        "scores": scores(client, models),
        "own fit": losses(client, stack([own, take(models, 1)])),
        "slopes": gradient(client, own),
        "own": own,
        "batches": descend(client, own, DESCENTS[1]),
        "nested": vmap(lambda model: losses(client, take(stack([model]), slice(0, 1))))(models),
    }


DATA = classification()
FEATURES = DATA.train.x.shape[1]
OBJECTIVE = Classification(Network(mlp(FEATURES, [5], 3), dtype=torch.float64), 3)
MODELS = stack([OBJECTIVE.init(fold(root(5), j)) for j in range(2)])
ENGINE = VectorisedEngine(OBJECTIVE, DATA, DOUBLE)


def in_an_engine():
    answered = Federation(ENGINE).clients.map(everything, MODELS)
    assert answered.rejected == []
    return answered.value


def along(axis: int, n: int = 4, m: int = 6):
    """Clients along any axis, with models of their own."""
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(n, m, FEATURES, generator=draw).double(), torch.rand(n, m, generator=draw).double()
    on = Examples(x, torch.randint(3, (n, m), generator=draw), weight)
    own = stack([OBJECTIVE.init(fold(root(1), i)) for i in range(n)])
    lead = {name: value.movedim(0, -1) for name, value in own.items()}
    moved = Examples(*(t.movedim(0, axis) for t in on))

    def work(params, examples, key):
        memory = Memory({}, lengths={})
        client = Client(
            train=examples, test=examples, objective=OBJECTIVE, memory=memory, key=key, kernel=ENGINE.kernels
        )
        return descend(client, params, DESCENTS[0]), losses(client, MODELS)

    return vmap(work, in_dims=(-1, axis, 0))(lead, moved, fold(root(2), torch.arange(n)))


def test_both_ways_give_the_same_bits(monkeypatch):
    cases = [in_an_engine, lambda: along(0), lambda: along(1)]
    short = [flatten(case())[0] for case in cases]
    assert all(map(torch.equal, short[1], short[2]))  # wherever the axis is
    monkeypatch.setattr(leaving, "unwrap", lambda tensors: None)
    for found, case in zip(short, cases, strict=True):
        by_rules = flatten(case())[0]
        assert len(found) == len(by_rules)
        assert all(map(torch.equal, found, by_rules))


def test_differentiated_tensors_use_the_general_path(monkeypatch):
    """There a gradient through training is refused, not forgotten."""
    seen = []
    found = leaving.unwrap
    monkeypatch.setattr(leaving, "unwrap", lambda tensors: seen.append(found(tensors)) or seen[-1])
    next(iter(MODELS.values())).requires_grad_(True)
    try:
        Federation(ENGINE).clients.map(fit_of, MODELS)
    finally:
        next(iter(MODELS.values())).requires_grad_(False)
    assert seen
    assert all(one is None for one in seen)


@on_client
def fit_of(client, models):
    return losses(client, models).detach()


@on_client
def differentiated(client, models):
    return torch.func.grad(lambda model: loss(client, model))(take(models, 0))


@on_client
def differentiated_inside(client, models):
    return vmap(torch.func.grad(lambda model: loss(client, model)))(models)


@on_client
def beside_a_gradient(client, models):
    """A loss of something that nobody differentiates by."""
    fit = losses(client, models)
    return torch.func.grad(lambda scale: scale * losses(client, models).sum() + scale)(fit[0])


@pytest.mark.parametrize("engine", [LoopEngine, VectorisedEngine])
def test_a_gradient_through_losses_is_refused_and_not_zero(engine):
    fed = Federation(engine(OBJECTIVE, DATA, DOUBLE))
    for function in (differentiated, differentiated_inside):
        with pytest.raises(RuntimeError, match="have no backward"):
            fed.clients.map(function, MODELS)
    wanted = fed.clients.map(fit_of, MODELS).value.sum(1) + 1
    assert torch.allclose(fed.clients.map(beside_a_gradient, MODELS).value, wanted)


@on_client
def send_back(client, models):
    return take(models, 0)


@pytest.mark.parametrize("engine", [LoopEngine, VectorisedEngine])
def test_replies_carry_no_autograd_history(engine):
    own = {name: value.clone().requires_grad_(True) for name, value in MODELS.items()}
    found = Federation(engine(OBJECTIVE, DATA, DOUBLE)).clients.map(send_back, own).value
    assert not any(value.requires_grad for value in found.values())


@pytest.mark.parametrize("public", [False, True])
def test_into_a_vmap_and_out_again_is_vmap(monkeypatch, public):
    if public:  # a torch without those calls
        monkeypatch.setattr(single_vmap, "peek_interpreter_stack", None)

    def work(x, y):
        return x.sum() * y, torch.ones(2), x + torch.linspace(0, 1, 3), (y > 0).long()

    x, y = torch.arange(12.0).reshape(4, 3), torch.arange(-2.0, 2.0)
    for got, want in zip(single_vmap.over_rows(work, [x, y]), vmap(work)(x, y), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


@pytest.mark.parametrize("public", [False, True])
def test_gradients_inside_a_vmap_are_those_of_each_row(monkeypatch, public):
    if public:
        monkeypatch.setattr(single_vmap, "peek_interpreter_stack", None)
    draw = torch.Generator().manual_seed(0)
    w, b, x = (torch.randn(*shape, generator=draw).double() for shape in ((3, 2), (2,), (5, 4, 3)))

    def loss_of(weights, rows):
        return (rows @ weights[0] + weights[1]).tanh().square().mean()

    def both(weights, rows):
        value, found = single_vmap.value_and_gradients(lambda own: loss_of(own, rows), weights)
        return value, *found

    with torch.no_grad():
        got = vmap(lambda rows: both([w, b, torch.zeros(2)], rows))(x)
    for place, rows in enumerate(x):
        leaves = [w.clone().requires_grad_(), b.clone().requires_grad_()]
        value = loss_of(leaves, rows)
        for one, other in zip(got, (value, *torch.autograd.grad(value, leaves), torch.zeros(2)), strict=True):
            assert torch.allclose(one[place].to(other), other, atol=1e-12)
    assert not any(one.requires_grad for one in got)
    assert not w.requires_grad


def test_an_error_in_a_vmap_leaves_none_behind():
    def fails(x):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        single_vmap.over_rows(fails, [torch.ones(2)])
    assert single_vmap.peek_interpreter_stack() is None
    inside = vmap(lambda x: single_vmap.over_rows(lambda y: (y * x,), [torch.ones(2)])[0])(torch.arange(3.0))
    assert inside.tolist() == [[0, 0], [1, 1], [2, 2]]
