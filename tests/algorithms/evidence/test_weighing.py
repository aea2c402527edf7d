"""What clients report on models: held-out examples are never trained on, and label skew does not look like clusters."""

from __future__ import annotations

import pytest
import torch

from corymb.algorithms.evidence.weighing import (
    choose_and_train,
    publish_ridge,
    report_losses,
    train_on_kept,
    train_side_by_side,
)
from corymb.algorithms.parts.work import Work
from corymb.core.client import Client, Examples, Memory
from corymb.keys import root
from corymb.local import Descent
from corymb.local.held_out import hold_out
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.trees import stack, take

WORK = Work(local=Descent(lr=0.2, steps=5))
NET = Classification(Network(mlp(3, [4], 3), dtype=torch.float64), 3)
LINE = LinearRegression(3, dtype=torch.float64)


def _client(objective: Classification | LinearRegression, y: torch.Tensor) -> Client:
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    train = Examples(x, y, torch.ones(len(y), dtype=torch.float64))
    memory = Memory({}, lengths={"train": len(y), "test": 0})
    return Client(train=train, test=None, objective=objective, memory=memory, key=root(1))


def _classes(number: int = 20) -> torch.Tensor:
    return torch.arange(number) % 3


def test_held_out_labels_change_no_model() -> None:
    y = _classes()
    held = hold_out(_client(NET, y).train).held.weight > 0
    other = torch.where(held, (y + 1) % 3, y)
    models = stack([NET.init(root(j)) for j in range(3)])
    one, none = take(models, 2), take(models, slice(0, 0))
    for fn, args, options in (
        (train_on_kept, (one,), {"alone": WORK.local}),
        (choose_and_train, (take(models, slice(0, 2)), none, one), {"work": WORK, "biased": True}),
        (train_side_by_side, (take(models, 0), take(models, 1), one, torch.tensor(0)), {"k": 2, "work": WORK}),
    ):
        before, after = (fn(_client(NET, labels), *args, **options) for labels in (y, other))
        values = [getattr(reply, "value", reply) for reply in (before, after)]
        assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])
        if fn is choose_and_train:
            assert torch.equal(before.label, after.label)
            assert not torch.allclose(before.note.plain.mean, after.note.plain.mean)


def test_ridge_leaves_held_out_targets_out() -> None:
    y = torch.linspace(-1, 1, 12, dtype=torch.float64)
    held = hold_out(_client(LINE, y).train).held.weight > 0
    before, after = (publish_ridge(_client(LINE, targets)) for targets in (y, torch.where(held, 99.0, y)))
    assert torch.equal(before["weight"], after["weight"])


def test_means_and_covariances_are_those_of_the_held_out_losses() -> None:
    y = torch.linspace(-1, 1, 40, dtype=torch.float64)
    client, models = _client(LINE, y), stack([LINE.init(root(j)) for j in range(3)])
    reported = report_losses(client, models)
    held = hold_out(client.train).held.weight > 0
    losses = torch.stack([LINE.losses(take(models, j), client.train)[held] for j in range(3)])
    assert torch.allclose(reported.plain.mean, losses.mean(1))
    assert torch.allclose(reported.plain.spread, torch.cov(losses))
    assert torch.equal(reported.held.mean, reported.plain.mean)  # no classes: no class bias
    assert int(reported.number) == int(held.sum())


def test_a_class_bias_of_its_own_makes_up_for_other_frequencies() -> None:
    """A model with wrong class frequencies is as good as one with the right ones, once biases are fitted."""
    y = torch.cat([torch.zeros(70), torch.ones(5), torch.full((5,), 2.0)]).long()
    client = _client(NET, y)
    even = {name: torch.zeros_like(value) for name, value in NET.init(root(0)).items()}
    last = max(name for name in even if name.endswith("bias"))
    knows = {**even, last: torch.tensor([70.0, 5, 5], dtype=torch.float64).log()}
    reported = report_losses(client, stack([even, knows]))
    assert reported.plain.mean[0] > 1.5 * reported.plain.mean[1]
    assert reported.held.mean[0] == pytest.approx(float(reported.held.mean[1]), rel=0.1)


def test_one_example_is_trained_on_and_nothing_is_held_out() -> None:
    reported = report_losses(_client(NET, _classes(1)), stack([NET.init(root(0))]))
    assert int(reported.number) == 0
    assert torch.isfinite(reported.fit).all()
    assert float(reported.held.mean) == 0


def test_a_model_that_explodes_is_the_worst_not_a_reason_to_be_rejected() -> None:
    bad = {name: torch.full_like(value, torch.nan) for name, value in NET.init(root(0)).items()}
    reported = report_losses(_client(NET, _classes()), stack([NET.init(root(0)), bad]))
    assert all(torch.isfinite(leaf).all() for leaf in (reported.fit, reported.held.mean, reported.held.spread))
    assert reported.fit.argmin() == 0
