"""Small versions of IFCA's cells: every setting runs, and its reported numbers are right."""

import pytest
import torch

from corymb.core.snapshot import Snapshot
from corymb.data.built_in.mnist import Images
from corymb.data.built_in.writers import Writers
from corymb.keys import root
from corymb.models import Network, ifca_cifar
from corymb.objectives import Classification, Flip
from corymb.recipes.ifca import cells


class Stands:
    """In a source's place."""

    def __init__(self, data):
        self.load = lambda: data


def some_images(shape, train=200, test=80) -> Images:
    draw = torch.Generator().manual_seed(0)

    def part(m):
        x = torch.randint(256, (m, *shape), generator=draw).to(torch.uint8)
        return x.numpy(), torch.randint(10, (m,), generator=draw).to(torch.uint8).numpy()

    return Images(*part(train), *part(test))


def test_clients_with_their_own_kind_are_counted_with_clusters_matched():
    truth = torch.tensor([0, 0, 1, 1])
    assert cells.identity(torch.tensor([1, 1, 0, 0]), truth) == 1
    assert cells.identity(torch.tensor([3, 3, 3, 0]), truth) == 0.75
    assert cells.identity(torch.tensor([1, -1, -1, 0]), truth) == 1


@pytest.mark.parametrize("method", ["ifca", "global", "local"])
def test_rotated_mnist(method, monkeypatch):
    monkeypatch.setattr(cells, "MNIST", Stands(some_images((28, 28))))
    monkeypatch.setattr(cells, "TEST_IMAGES", 80)
    found = cells.rotated_mnist("24x8", method, 0, rounds=2)
    assert 0 <= found["accuracy"] <= 100
    assert found["clients"] == 24
    if method != "local":
        assert len(found["identity"]) == 2


def test_rotated_cifar_is_trained_with_a_penalty_on_two_layers(monkeypatch):
    monkeypatch.setattr(cells, "CIFAR10", Stands(some_images((3, 32, 32), 100, 20)))
    monkeypatch.setattr(cells, "TEST_PICTURES", 20)
    monkeypatch.setattr(cells, "CIFAR_STEP", cells.Descent(lr=0.1, decay=0.9, steps=1, batch=2))
    found = cells.rotated_cifar("10x10", "ifca", 0, rounds=1)
    assert found["rounds"] == 1
    objective = cells.Penalised(Classification(Network(ifca_cifar()), 10), (Flip(),))
    params, x = objective.init(root(0)), torch.rand(2, 3, 32, 32)
    on = cells.Examples(x, torch.tensor([1, 2]), torch.ones(2))
    draws = cells.Draws(root(1))
    plain = cells.Augmented.losses_of_changed(objective, params, objective.changed(on, draws), draws)
    added = objective.training_losses(params, on, draws) - plain
    want = 0.002 * sum(float(params[name].square().sum()) for name in ("10.weight", "12.weight"))
    assert torch.allclose(added, torch.full((2,), want), rtol=1e-4)


@pytest.mark.parametrize("method", ["trunk", "ifca-2", "one-shot-2", "global-1", "local", "ifca-shared-2"])
def test_femnist(method, monkeypatch, tmp_path):
    monkeypatch.setenv("CORYMB_CACHE", str(tmp_path))
    x, y, *_ = some_images((28, 28), 80)
    writer = (torch.arange(80) % 8).numpy()
    data = Writers(x, y, writer, tuple(f"w{i}" for i in range(8)), (torch.arange(80) % 5 == 0).numpy())
    monkeypatch.setattr(cells, "FEMNIST", Stands(data))
    for name, value in (("WIDTH", 8), ("TRUNK_ROUNDS", 1), ("FEMNIST_ROUNDS", 4), ("TESTED_EVERY", 2)):
        monkeypatch.setattr(cells, name, value)
    monkeypatch.setattr(cells, "STARTING_ROUNDS", 1)
    found = cells.work(f"femnist/{method}/0")
    assert 0 <= found["accuracy"] <= 100
    assert found["clients"] == 8
    assert found["device"]
    kept = list((tmp_path / "recipes").glob("*.safetensors")) if (tmp_path / "recipes").exists() else []
    assert len(kept) == (method != "ifca-shared-2")


def test_the_best_evaluation_of_a_run_is_reported_with_the_last():
    def run():
        for t in range(1, 61):
            yield Snapshot(models={"w": torch.tensor([float(t)])}, labels=torch.tensor([0, 2]), round=t)

    found = cells.best_of(run(), lambda models: -abs(float(models["w"][0]) - 40))
    assert found == {"accuracy": 0.0, "last": -20.0, "clusters": 2, "rounds": 60}
