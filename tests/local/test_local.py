from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb import keys
from corymb.core.client import Client, Examples, Memory
from corymb.core.objective import Draws
from corymb.local import Descent, descend, descend_with_loss, gradient, loss, losses, one_hot, score, scores
from corymb.local.descent import Batches, Stepper
from corymb.local.reference import descend_one, gradient_one, measure_one, training_losses, weighted_mean
from corymb.objectives import LinearRegression
from corymb.settings import InvalidInput
from tests.tiny import farthest

OBJECTIVE = LinearRegression(3, dtype=torch.float64)
DRAWS = Draws(keys.root(0))


def examples(m: int, seed: int = 0) -> Examples:
    key = keys.root(seed)
    x, y = keys.normal(key, (m, 3), torch.float64), keys.normal(keys.fold(key, 1), (m,), torch.float64)
    return Examples(x, y, torch.ones(m, dtype=torch.float64))


def model(seed: int = 0):
    return {"weight": keys.normal(keys.fold(keys.root(seed), "model"), (3,), torch.float64)}


# ---- batches


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)
hows = st.builds(
    lambda batch, length, epochs: Descent(batch=batch, **{"epochs" if epochs else "steps": length}),
    st.integers(1, 10),
    st.integers(1, 7),
    st.booleans(),
)


def padded(sizes: list[int], extra: int) -> torch.Tensor:
    longest = max(sizes) + extra
    return (torch.arange(longest) < torch.tensor(sizes)[:, None]).double()


@given(sizes, st.integers(0, 3), hows, st.integers(0, 99))
def test_a_client_gets_the_same_batches_alone_and_in_a_padded_stack(sizes, extra, how, seed):
    key = keys.fold(keys.root(seed), torch.arange(len(sizes)))
    stacked = list(Batches(how, padded(sizes, extra), key))
    for i, m in enumerate(sizes):
        alone = [rows.tolist() for rows, _ in Batches(how, torch.ones(m), key[i])]
        together = [
            [row for row in rows[i].tolist() if row >= 0]
            for rows, active in stacked
            if active is None or bool(active[i])
        ]
        assert alone == together
        trailing = [rows.tolist() for rows, _ in Batches(how, padded(sizes, extra)[i], key[i])]
        assert alone == trailing


@given(st.integers(1, 12), st.integers(1, 13), st.integers(1, 3), st.integers(0, 99))
def test_an_epoch_is_every_example_once_and_its_last_batch_is_short(m, batch, epochs, seed):
    rows = [rows.tolist() for rows, _ in Batches(Descent(epochs=epochs, batch=batch), torch.ones(m), keys.root(seed))]
    each = -(-m // batch)
    assert len(rows) == epochs * each
    for epoch in range(epochs):
        batches = rows[epoch * each : (epoch + 1) * each]
        assert sorted(chain(*batches)) == list(range(m))
        assert [len(b) for b in batches[:-1]] == [batch] * (each - 1)
        assert len(batches[-1]) == m - batch * (each - 1)


@given(st.integers(1, 12), st.integers(1, 13), st.integers(1, 9), st.integers(0, 99))
def test_steps_are_counted_whatever_the_size_and_pass_through_all_examples(m, batch, steps, seed):
    rows = [rows.tolist() for rows, _ in Batches(Descent(steps=steps, batch=batch), torch.ones(m), keys.root(seed))]
    each = -(-m // batch)
    assert len(rows) == steps
    for epoch in range(steps // each):
        assert sorted(chain(*rows[epoch * each : (epoch + 1) * each])) == list(range(m))


def test_a_batch_is_no_wider_than_what_the_largest_client_has():
    """Else thousands of clients with a few examples each would compute padding for most of the time."""
    key = keys.fold(keys.root(0), torch.arange(2))
    how = Descent(steps=2, batch=64, safe=True)
    assert {rows.shape for rows, _ in Batches(how, padded([4, 2], 0), key)} == {(2, 4)}
    sampled = Batches.sample(how, padded([4, 2], 0), key)
    assert sampled is not None
    assert sampled.shape == (2, 4)


@pytest.mark.parametrize("how", [Descent(epochs=2, batch=10), Descent(steps=50, batch=10)], ids=["epochs", "steps"])
def test_only_clients_that_begin_a_pass_draw_its_order(how, monkeypatch):
    """A client with a single batch begins one at every step; it must not make all others draw theirs again."""
    sizes, drawn, order = [5] * 49 + [1000], list[int](), Batches._order
    monkeypatch.setattr(Batches, "_order", lambda self, key: (drawn.append(self.weight.numel()), order(self, key))[1])
    list(Batches(how, padded(sizes, 0), keys.fold(keys.root(0), torch.arange(50))))
    assert sum(drawn) <= 50 * 1000 + 1000 + 49 * 50 * 5  # all at first, the largest again, the small ones each time


def test_epochs_are_ordered_differently():
    rows = [tuple(rows.tolist()) for rows, _ in Batches(Descent(epochs=5, batch=8), torch.ones(8), keys.root(0))]
    assert len(set(rows)) == 5


def test_without_a_batch_every_step_takes_everything():
    for how, steps in ((Descent(), 1), (Descent(steps=4), 4), (Descent(epochs=3), 3)):
        assert list(Batches(how, torch.ones(5), keys.root(0))) == [(None, None)] * steps


@given(st.lists(st.booleans(), min_size=1, max_size=10), st.integers(1, 5), st.integers(0, 99))
def test_examples_of_weight_zero_are_in_no_batch_wherever_they_stand(mask, batch, seed):
    """Points that a client leaves out (`on=` with weights) count as little as padding."""
    weight = torch.tensor(mask).double()
    rows = [rows.tolist() for rows, _ in Batches(Descent(epochs=1, batch=batch), weight, keys.root(seed))]
    assert sorted(chain(*rows)) == [i for i, some in enumerate(mask) if some]


# ---- steps, against torch.optim

OPTIMISERS = {
    "sgd": (Descent(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (Descent(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "decay": (Descent(lr=0.1, weight_decay=0.3), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.3)),
    "momentum and decay": (
        Descent(lr=0.1, momentum=0.5, weight_decay=0.3),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.3),
    ),
    "adam": (Descent(lr=0.05, optimiser="adam"), lambda p: torch.optim.Adam(p, lr=0.05)),
    "adam and decay": (
        Descent(lr=0.05, optimiser="adam", weight_decay=0.3),
        lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.3),
    ),
}
PROXIMAL = {
    "proximal": OPTIMISERS["sgd"],
    "proximal and momentum": OPTIMISERS["momentum"],
    "proximal and decay": OPTIMISERS["momentum and decay"],
    "proximal and adam": OPTIMISERS["adam"],
}


def start() -> list[torch.Tensor]:
    return [keys.normal(keys.fold(keys.root(1), j), shape, torch.float64) for j, shape in enumerate([(4, 2), (3,), ()])]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", [*OPTIMISERS, *PROXIMAL])
def test_steps_are_those_of_torch(name, fused, monkeypatch):
    if not fused:
        monkeypatch.setattr("corymb.local.descent.can_fuse", lambda *_: False)
    how, make = {**OPTIMISERS, **PROXIMAL}[name]
    mu = 0.7 if name in PROXIMAL else 0.0
    ours, theirs, begin = start(), [p.requires_grad_() for p in start()], start()
    stepper = Stepper(replace(how, proximal=mu), ours)
    optimiser = make(theirs)
    for step in range(8):
        grads = [keys.normal(keys.fold(keys.root(2), step, j), p.shape, torch.float64) for j, p in enumerate(ours)]
        stepper.step([g.clone() for g in grads])
        for p, g, b in zip(theirs, grads, begin, strict=True):
            p.grad = g + mu * (p.detach() - b)
        optimiser.step()
        assert farthest(ours, [p.detach() for p in theirs]) < 1e-12


@pytest.mark.parametrize("how", [Descent(lr=0.1, momentum=0.9), Descent(lr=0.05, optimiser="adam")])
def test_steps_do_not_depend_on_how_tensors_lie_in_memory(how):
    """Fused optimisers read memory from end to end, and vmap gives transposed gradients."""
    plain = [torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(0, 3)]
    transposed = [p.t().clone().t() for p in plain]
    mixed = [plain[0].clone(), plain[1].clone()]
    steppers = [Stepper(how, params) for params in (plain, transposed, mixed)]
    for step in range(3):
        grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(step + 1))
        for stepper, like in zip(steppers, (grad, grad, grad.t().clone().t()), strict=True):
            stepper.step([like, torch.zeros(0, 3)])
    assert farthest(transposed, plain) < 1e-6
    assert farthest(mixed, plain) == 0


@pytest.mark.parametrize("how", [Descent(lr=0.1, momentum=0.9), Descent(lr=0.05, optimiser="adam")])
def test_parameters_of_several_types_step_together(how):
    """As those of a model that keeps one layer in double precision."""
    kinds = torch.float32, torch.float64
    both, alone = [torch.ones(3, dtype=kind) for kind in kinds], [torch.ones(3, dtype=kind) for kind in kinds]
    stepper, steppers = Stepper(how, both), [Stepper(how, [p]) for p in alone]
    for step in range(3):
        grads = [torch.arange(3, dtype=kind) - step for kind in kinds]
        stepper.step(grads)
        for one, grad in zip(steppers, grads, strict=True):
            one.step([grad])
    assert farthest(both, alone) < 1e-6


def test_fused_steps_are_counted_exactly_whatever_the_default_type_is():
    def end() -> torch.Tensor:
        stepper = Stepper(Descent(lr=0.1, optimiser="adam"), [torch.zeros(3, dtype=torch.float32)])
        stepper.taken = 300  # bfloat16 counts to 256
        stepper.step([torch.ones(3, dtype=torch.float32)])
        return stepper.params[0]

    usual, want = torch.get_default_dtype(), end()
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = end()
    finally:
        torch.set_default_dtype(usual)
    assert farthest([got], [want]) < 1e-6


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_client_that_is_done_moves_no_more(name, fused, monkeypatch):
    if not fused:
        monkeypatch.setattr("corymb.local.descent.can_fuse", lambda *_: False)
    how, _ = OPTIMISERS[name]
    stacked = [p.expand(2, *p.shape).clone() for p in start()]
    alone = start()
    both, one = Stepper(how, stacked), Stepper(how, alone)
    for step in range(5):
        grads = [keys.normal(keys.fold(keys.root(2), step, j), p.shape, torch.float64) for j, p in enumerate(alone)]
        if step < 3:
            one.step([g.clone() for g in grads])
        active = torch.tensor([True, step < 3])
        both.step([g.expand(2, *g.shape).clone() for g in grads], None if step < 3 else active)
    assert farthest([p[1] for p in stacked], alone) < 1e-12
    assert farthest([p[0] for p in stacked], alone) > 1e-3


def test_steps_do_not_touch_the_gradients_they_are_given():
    how = Descent(lr=0.1, momentum=0.5, weight_decay=0.1, proximal=0.1)
    params, grads = start(), start()
    Stepper(how, params).step(grads)
    assert farthest(grads, start()) == 0


# ---- one client


@given(st.lists(st.tuples(st.floats(-9, 9), st.sampled_from([0.0, 1.0, 2.5])), min_size=1, max_size=8))
def test_a_weighted_mean_ignores_weight_zero(rows):
    values = torch.tensor([value if weight else float("nan") for value, weight in rows], dtype=torch.float64)
    weight = torch.tensor([weight for _, weight in rows], dtype=torch.float64)
    total = sum(weight for _, weight in rows)
    want = sum(value * weight for value, weight in rows) / total if total else 0.0
    assert abs(float(weighted_mean(values, weight)) - want) < 1e-12


def test_a_weighted_mean_is_of_the_last_axis():
    values, weight = torch.tensor([[1.0, 3.0], [5.0, 9.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    assert weighted_mean(values, weight).tolist() == [2, 5]
    assert weighted_mean(torch.zeros(2, 0), torch.zeros(2, 0)).tolist() == [0, 0]


def test_weight_zero_has_no_gradient():
    params, on = model(), examples(4)
    on = on._replace(weight=torch.tensor([1.0, 1.0, 0.0, 0.0]).double())
    far = on._replace(x=torch.where(on.weight[:, None] > 0, on.x, 1e200))
    assert farthest(gradient_one(OBJECTIVE, params, far, DRAWS), gradient_one(OBJECTIVE, params, on, DRAWS)) < 1e-12


def by_hand(params, on: Examples):
    """Gradient of the weighted mean of (y − x·θ)²."""
    left = on.x @ params["weight"] - on.y
    return {"weight": 2 * (on.x * (left * on.weight)[:, None]).sum(0) / on.weight.sum()}


@given(st.integers(1, 8), st.integers(0, 99))
def test_gradients_and_losses_are_those_of_the_formula(m, seed):
    on, params = examples(m, seed), model(seed)
    on = on._replace(weight=torch.arange(1, m + 1).double())
    assert farthest(gradient_one(OBJECTIVE, params, on, DRAWS), by_hand(params, on)) < 1e-9
    models = {"weight": torch.stack([params["weight"], 2 * params["weight"]])}
    want = [((on.x @ w - on.y) ** 2 * on.weight).sum() / on.weight.sum() for w in models["weight"]]
    assert farthest(measure_one("losses", OBJECTIVE, models, on), torch.stack(want)) < 1e-9


@given(st.integers(1, 8), hows, st.integers(0, 99))
def test_descent_is_a_step_for_every_batch(m, how, seed):
    on, params, key = examples(m, seed), model(seed), keys.root(seed)
    want = params["weight"].clone()
    for rows, _ in Batches(how, on.weight, key):
        want -= how.lr * by_hand({"weight": want}, Examples(*(t[rows] for t in on)))["weight"]
    got = descend_one(OBJECTIVE, params, on, key, how)
    assert torch.allclose(got.params["weight"], want, rtol=1e-12, atol=1e-12)
    rows, _ = next(iter(Batches(how, on.weight, key)))
    first = Examples(*(t[rows] for t in on)) if rows is not None else on
    assert torch.allclose(got.loss, ((first.x @ params["weight"] - first.y) ** 2).mean(), rtol=1e-12)
    assert farthest(params, model(seed)) == 0  # the start is not written to


def client(m: int = 5) -> Client:
    memory = Memory({}, lengths={"train": m, "test": 3})
    return Client(
        train=examples(m), test=examples(3, 9), objective=OBJECTIVE, memory=memory, key=keys.fold(keys.root(4), "me")
    )


def test_a_client_uses_its_training_examples_unless_told_otherwise():
    me, params = client(), model()
    models = {"weight": torch.stack([params["weight"], -params["weight"]])}
    assert torch.equal(losses(me, models), measure_one("losses", OBJECTIVE, models, me.train))
    assert torch.equal(losses(me, models, on=me.test), measure_one("losses", OBJECTIVE, models, me.test))
    assert torch.equal(scores(me, models), measure_one("scores", OBJECTIVE, models, me.test))
    assert torch.equal(scores(me, models, on=me.train), measure_one("scores", OBJECTIVE, models, me.train))
    assert torch.equal(loss(me, params), losses(me, models)[0])
    assert torch.equal(score(me, params), scores(me, models)[0])
    assert farthest(gradient(me, params), gradient_one(OBJECTIVE, params, me.train, DRAWS)) == 0
    assert farthest(gradient(me, params, on=me.test), gradient_one(OBJECTIVE, params, me.test, DRAWS)) == 0


def test_descent_tells_the_loss_before_it():
    me, params = client(), model()
    after, before = descend_with_loss(me, params, Descent(lr=0.1, steps=3))
    assert torch.allclose(before, loss(me, params), rtol=1e-12)
    assert farthest(after, descend(me, params, Descent(lr=0.1, steps=3))) == 0


def test_another_purpose_gives_other_batches():
    me, params, how = client(), model(), Descent(steps=1, batch=2)
    one, again, other = (descend(me, params, how, purpose=p) for p in ("batches", "batches", "others"))
    assert farthest(one, again) == 0
    assert farthest(one, other) > 1e-6
    assert farthest(one, descend_one(OBJECTIVE, params, me.train, me.key("batches"), how).params) == 0


def test_there_is_no_backward_through_what_a_client_does():
    me = client()
    params = {"weight": model()["weight"].requires_grad_()}
    for result in (loss(me, params), descend(me, params, Descent(steps=1))["weight"].sum()):
        with pytest.raises(RuntimeError, match=r"have no backward.*: use gradient\(client, params\)"):
            torch.autograd.grad(result, params["weight"])
        constant = (result.detach() * params["weight"]).sum()
        assert torch.equal(torch.autograd.grad(constant, params["weight"])[0], result.detach().expand(3))
    assert not loss(me, model()).requires_grad


def test_an_objective_that_gives_more_than_a_number_for_each_example_is_refused():
    class Wide(LinearRegression):
        def losses(self, params, examples):
            return super().losses(params, examples)[:, None]

    me = client(1)
    me.objective = Wide(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"values of shape \[1, 1\], wanted \[1\]"):
        gradient(me, model())


def test_the_rate_decays_by_the_round_and_only_once():
    how = Descent(lr=0.4, decay=0.5)
    assert how.at(0).lr == 0.4
    assert how.at(3).lr == 0.05
    assert how.at(3).at(3).lr == 0.05
    assert Descent(lr=0.4).at(7) == Descent(lr=0.4)


def test_the_step_size_may_fall_in_a_straight_line():
    how = Descent(lr=0.4, linear_decay=4)
    assert [how.at(t).lr for t in range(6)] == pytest.approx([0.4, 0.3, 0.2, 0.1, 0.1, 0.1])
    assert how.at(2).at(2) == how.at(2)
    with pytest.raises(InvalidInput, match="decay or linear_decay, not both"):
        Descent(decay=0.9, linear_decay=4)
    with pytest.raises(InvalidInput, match="linear_decay must be at least 1"):
        Descent(linear_decay=0)


def test_one_hot_marks_one_of_k():
    assert one_hot(torch.tensor(1), 3).tolist() == [0, 1, 0]
    assert one_hot(torch.tensor(-1), 2).tolist() == [0, 0]


class Doubled(LinearRegression):
    """It trains on twice what it measures."""

    def training_losses(self, params, on, draws):
        return 2 * self.losses(params, on)


class Wrapped:
    """Hands everything on, as one does who watches or changes a part of an objective."""

    def __init__(self, inner) -> None:
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_one_that_is_wrapped_trains_on_its_own_loss():
    """From Python 3.12 on, `isinstance` of a protocol does not see what `__getattr__` hands on."""
    own, on, params = Doubled(3, dtype=torch.float64), examples(5), model()
    assert farthest(training_losses(Wrapped(own), params, on, DRAWS), 2 * own.losses(params, on)) == 0
    assert farthest(training_losses(Wrapped(OBJECTIVE), params, on, DRAWS), OBJECTIVE.losses(params, on)) == 0


def test_a_descent_is_wanted():
    client = Client(train=examples(3), test=None, objective=OBJECTIVE, memory=Memory({}, lengths={}), key=keys.root(0))
    with pytest.raises(TypeError, match=r"descend wants a Descent, such as Descent\(lr=0.1, steps=10\), got a dict"):
        descend(client, model(), {"lr": 0.1})
