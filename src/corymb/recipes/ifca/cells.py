"""The cells of IFCA's experiments on real data (Ghosh, Chung, Yin, Ramchandran: NeurIPS 2020, TIT 2022).

A cell is `setting/method/seed` and returns plain numbers, which `recipe.py` tabulates. Settings that the papers leave
out are those of the authors' programs: see `papers/ifca/README.md`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from corymb.algorithms import IFCA, Alone, FedAvg, OneShot, Oracle
from corymb.clustering.agreement import matched_accuracy, purity
from corymb.core.client import Client, on_client
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.objective import Draws, Examples, Objective
from corymb.core.snapshot import Algorithm, Snapshot
from corymb.data.built_in import images
from corymb.data.built_in.digits import digits
from corymb.data.built_in.sources import CIFAR10, FEMNIST, MNIST
from corymb.data.built_in.writers import by_writer
from corymb.data.dataset import FederatedDataset
from corymb.data.fetching.home import cache_folder
from corymb.data.ragged import Ragged
from corymb.engines import Placement, VectorisedEngine
from corymb.evaluate import adjusted_rand_index, clusters_in_use, evaluate
from corymb.keys import fold, integers, root
from corymb.local import Descent, losses, scores
from corymb.models import ModelLike, Network, cnn, ifca_cifar, mlp
from corymb.objectives import Augmented, Classification, Crop, Flip, Light
from corymb.recipes.cells import device_name
from corymb.recipes.ifca import success
from corymb.recipes.quick_data import IN_PACKAGE
from corymb.trees import Params

GPU = torch.cuda.is_available()


def work(name: str) -> dict[str, Any]:
    """Run a cell."""
    if name.startswith("success-"):
        found = success.work(name)
    else:
        setting, method, seed = name.split("/")
        kind, _, size = setting.partition("-")
        found = KINDS[kind](size, method, int(seed))
    return {**found, "device": device_name()}


def federated(
    data: FederatedDataset, objective: Objective, *, tf32: bool = False, device: str | None = None
) -> Federation:
    """A federation of the clients of a data set, on a GPU if there is one."""
    where = Placement(device=device or ("cuda" if GPU else "cpu"), tf32=tf32)
    return Federation(VectorisedEngine(objective.to(where.device, where.dtype), data, where))


# ---- evaluation as in the authors' code


@on_client
def right_by_test_loss(client: Client, models: Params) -> tuple[Tensor, Tensor]:
    """Correct predictions of the model with the lowest loss on the client's labelled test examples, and their total."""
    tested = client.test.weight.sum()
    return scores(client, models)[losses(client, models, on=client.test).argmin()] * tested, tested


@on_client
def right_by_training_loss(client: Client, models: Params) -> tuple[Tensor, Tensor]:
    """Correct test predictions of the model with the lowest loss on the client's training examples, and their total."""
    tested = client.test.weight.sum()
    return scores(client, models)[losses(client, models).argmin()] * tested, tested


def accuracy(fed: Federation, models: Params, by: Any) -> float:
    """The share (%) of all clients' test examples that are classified correctly."""
    right, tested = fed.evaluation().clients.map(by, models).value
    return 100 * float(right.sum() / tested.sum())


def identity(labels: Tensor, truth: Tensor) -> float:
    """The share of clients in the cluster of their own group, under the best matching of clusters to groups."""
    return matched_accuracy(pairs(labels, truth))[0]


def pairs(labels: Tensor, truth: Tensor) -> Tensor:
    """The contingency table (clusters groups) of clients."""
    known = labels >= 0
    table = torch.zeros(int(max(labels.max(), truth.max())) + 1, int(truth.max()) + 1)
    return table.index_put_((labels[known], truth[known]), torch.ones(int(known.sum())), accumulate=True)


@dataclass(frozen=True)
class Followed:
    """The recorded course of a run."""

    end: Snapshot
    identity: list[float]
    repairs: list[int]
    seconds: float


def follow(algorithm: Algorithm, fed: Federation, truth: Tensor, seed: int) -> Followed:
    """Run to the end, and record after every round the share of clients in the cluster of their own group."""
    began, found, repairs, last = time.monotonic(), [], [], None
    for last in drive(algorithm, fed, seed=seed):
        found.append(round(identity(last.labels, truth), 4))
        if "collapse" in last.notes:
            repairs.append(last.round)
    assert last is not None
    if GPU:
        torch.cuda.synchronize()
    return Followed(last, found, repairs, round(time.monotonic() - began, 1))


def end_of(algorithm: Algorithm, fed: Federation, seed: int) -> Snapshot:
    """The last snapshot of a run. Earlier snapshots and the client memory before them are released on the way."""
    last = None
    for last in drive(algorithm, fed, seed=seed):
        fed.commit(last.clock, {last.clock})
    assert last is not None
    return last


# ---- Table 1: rotated MNIST

TABLE_1_ROUNDS, TEST_IMAGES = 300, 10_000
MNIST_STEP = Descent(lr=0.1, steps=10)
"""Ten steps on all of a client's examples, without decay."""


def rotated_mnist(size: str, method: str, seed: int, rounds: int = TABLE_1_ROUNDS) -> dict[str, Any]:
    """Rotated MNIST: size `4800x50` is 4800 clients of 50 images each, tested on one sixth as many other clients."""
    n, m = map(int, size.split("x"))
    x, y, x_test, y_test = MNIST.load()
    rotate = partial(images.rotated, flat=True, seed=seed)
    data = rotate(x, y, x_test, y_test, clients=n, per_client=m)
    testers = rotate(x_test, y_test, x_test, y_test, clients=n // 6, per_client=4 * TEST_IMAGES // (n // 6))
    objective = Classification(Network(mlp(784, [200], 10)), 10)
    return compared(method, data, testers, objective, rounds, seed)


def collapse(size: str, method: str, seed: int) -> dict[str, Any]:
    """Sixty rounds, to see whether two rotations end up sharing one model.

    Sizes may end in `-unbalanced` (clusters of 10, 20, 30 and 40 %) or `-k5`.
    """
    numbers, _, variant = size.partition("-")
    n, m = map(int, numbers.split("x"))
    data = images.rotated(*MNIST.load(), clients=n, per_client=m, flat=True, seed=seed)
    if variant == "unbalanced":
        truth = truth_of(data)
        keep = [(truth == j).nonzero().flatten()[: n // 4 * (j + 1) // 4] for j in range(4)]
        data = data.subset(torch.cat(keep).tolist())
    fed = federated(data, Classification(Network(mlp(784, [200], 10)), 10))
    algorithm = IFCA(k=5 if variant == "k5" else 4, rounds=60, local=MNIST_STEP, repair=method == "ifca")
    run = follow(algorithm, fed, truth_of(data), seed)
    return {**clusters_of(run, data), "accuracy": accuracy(fed, run.end.models, right_by_test_loss)}


def truth_of(data: FederatedDataset) -> Tensor:
    """The true clusters of simulated data."""
    assert data.truth is not None
    return data.truth


def clusters_of(run: Followed, data: FederatedDataset) -> dict[str, Any]:
    """The agreement of a run's clusters with the truth, its repairs and its duration."""
    labels, truth = run.end.labels, truth_of(data)
    return {
        "ari": adjusted_rand_index(labels, truth),
        "purity": purity(pairs(labels, truth)),
        "identity": run.identity,
        "repairs": run.repairs,
        "seconds": run.seconds,
    }


def compared(
    method: str, data: FederatedDataset, testers: FederatedDataset, objective: Objective, rounds: int, seed: int
) -> dict[str, Any]:
    """IFCA with or without repair, one global model, or local models, evaluated as the authors do."""
    fed = federated(data, objective)
    if method == "local":
        return {**alone(fed, Alone(rounds=10, local=MNIST_STEP), seed), "clients": len(data)}
    algorithms: dict[str, Algorithm] = {
        "ifca": IFCA(k=len(truth_of(data).unique()), rounds=rounds, local=MNIST_STEP),
        "ifca-plain": IFCA(k=len(truth_of(data).unique()), rounds=rounds, local=MNIST_STEP, repair=False),
        "global": FedAvg(rounds=rounds, local=MNIST_STEP),
    }
    run = follow(algorithms[method], fed, truth_of(data), seed)
    found = accuracy(federated(testers, objective), run.end.models, right_by_test_loss)
    return {"accuracy": found, "rounds": rounds, "clients": len(data), **clusters_of(run, data)}


def alone(fed: Federation, algorithm: Alone, seed: int) -> dict[str, Any]:
    """Local training: every client's own model on its share of the test examples, rotated like the client's data."""
    began = time.monotonic()
    last = end_of(algorithm, fed, seed)
    metrics = evaluate(fed, algorithm, last)
    found, examples = (100 * metrics[f"test_accuracy{over}"] for over in ("", "_examples"))
    return {
        "accuracy": found,
        "accuracy_examples": examples,
        "rounds": algorithm.rounds,
        "seconds": round(time.monotonic() - began, 1),
    }


# ---- Table 1: rotated CIFAR-10

CIFAR_ROUNDS, TEST_PICTURES = 600, 10_000
CIFAR_STEP = Descent(lr=0.25, decay=0.99, epochs=5, batch=50)
PENALISED, PENALTY = ("10.weight", "12.weight"), 0.004
"""The layers of width 384 and 192, and the factor of their L2 penalty λ/2 ‖w‖²."""


class Penalised(Augmented):
    """IFCA's training loss on CIFAR-10: cross-entropy on augmented images, plus an L2 penalty on two layers."""

    def losses_of_changed(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """Cross-entropy and penalty."""
        weights = torch.stack([params[name].square().sum() for name in PENALISED]).sum()
        return super().losses_of_changed(params, examples, draws) + PENALTY / 2 * weights

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        return f"{super().describe()}, {PENALTY} / 2 times the squares of {', '.join(PENALISED)}"


def rotated_cifar(size: str, method: str, seed: int, rounds: int = CIFAR_ROUNDS) -> dict[str, Any]:
    """Rotated CIFAR-10: size `200x500` is 200 clients of 500 images, half of the clients upside down.

    A tenth of the clients takes part in each round.
    """
    n, m = map(int, size.split("x"))
    x, y, x_test, y_test = CIFAR10.load()
    rotate = partial(images.rotated, rotations=2, seed=seed)
    data = rotate(x, y, x_test, y_test, clients=n, per_client=m)
    objective = Penalised(Classification(Network(ifca_cifar()), 10), (Crop(24), Flip(), Light()))
    if method == "local":
        few = data.subset([i for j in range(2) for i in (truth_of(data) == j).nonzero().flatten()[:10].tolist()])
        fed = federated(few, objective, tf32=True)
        return {**alone(fed, Alone(rounds=60, local=replace(CIFAR_STEP, lr=0.1)), seed), "clients": len(few)}
    testers = rotate(x_test, y_test, x_test, y_test, clients=n // 5, per_client=2 * TEST_PICTURES // (n // 5))
    algorithms: dict[str, Algorithm] = {
        "ifca": IFCA(k=2, rounds=rounds, local=CIFAR_STEP, participants=0.1),
        "ifca-plain": IFCA(k=2, rounds=rounds, local=CIFAR_STEP, participants=0.1, repair=False),
        "global": FedAvg(rounds=rounds, local=CIFAR_STEP, participants=0.1),
    }
    fed = federated(data, objective, tf32=True)
    run = follow(algorithms[method], fed, truth_of(data), seed)
    found = accuracy(federated(testers, objective, tf32=True), run.end.models, right_by_test_loss)
    return {"accuracy": found, "rounds": rounds, "clients": len(data), **clusters_of(run, data)}


# ---- Table 2: FEMNIST, all layers but the last trained beforehand and frozen

FEMNIST_STEP = Descent(lr=0.004, epochs=1, batch=10)
TRUNK_ROUNDS, FEMNIST_ROUNDS, TESTED_EVERY, STARTING_ROUNDS = 2000, 4000, 20, 20
LAST = 9
"""The index of the last layer in the network."""
WIDTH, CLASSES = 2048, 62


def femnist(size: str, method: str, seed: int) -> dict[str, Any]:
    """IFCA, a global model or local models, trained on the features of one pretrained network."""
    data = by_writer(FEMNIST.load(), classes=[str(i) for i in range(CLASSES)], name="femnist")
    began = time.monotonic()
    if method.startswith("ifca-shared-"):
        found = shared_layers(data, int(method.removeprefix("ifca-shared-")), seed)
    else:
        trunk = trained_trunk(data, seed)
        if method == "trunk":
            found = {"accuracy": accuracy(federated(data, pixels_to_classes()), trunk, right_by_training_loss)}
        else:
            found = last_layers(features_of(data, trunk), data, method, seed)
    return {**found, "clients": len(data), "seconds": round(time.monotonic() - began, 1)}


def pixels_to_classes() -> Classification:
    """The whole network."""
    return Classification(Network(cnn(1, 28, CLASSES, width=WIDTH)), CLASSES)


def trained_trunk(data: FederatedDataset, seed: int) -> Params:
    """The network after FedAvg with three clients per round, from which all methods start; cached on disk."""
    from safetensors.torch import load_file, save_file

    place = cache_folder() / "recipes" / f"femnist-trunk-{seed}-{TRUNK_ROUNDS}.safetensors"
    if place.is_file():
        return {name: value.to("cuda" if GPU else "cpu") for name, value in load_file(place).items()}
    algorithm = FedAvg(rounds=TRUNK_ROUNDS, participants=3, local=FEMNIST_STEP, weights="examples")
    end = end_of(algorithm, federated(data, pixels_to_classes(), tf32=True), seed)
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(".part")
    save_file({name: value.cpu().contiguous() for name, value in end.models.items()}, part)
    part.replace(place)
    return end.models


def features_of(data: FederatedDataset, trunk: Params) -> FederatedDataset:
    """Every client's images as features of the frozen layers, which each client would compute once for itself."""
    body = nn.Sequential(*list(cnn(1, 28, CLASSES, width=WIDTH)().children())[:LAST])
    own = {name: value[0] for name, value in trunk.items() if not name.startswith(f"{LAST}.")}
    device = next(iter(own.values())).device

    def seen(rows: Ragged) -> Ragged:
        with torch.no_grad():
            parts = [functional_call(body, own, (x.to(device).float() / 255,)).cpu() for x in rows.x.split(1024)]
        return rows._replace(x=torch.cat(parts))

    return replace(data, name="femnist, features", train=seen(data.train), test=seen(data.test))


def last_layers(features: FederatedDataset, pixels: FederatedDataset, method: str, seed: int) -> dict[str, Any]:
    """Train the last layer by a method: the best test accuracy of evaluations every twenty rounds, as in the paper."""
    fed = federated(features, Classification(Network(mlp(WIDTH, [], CLASSES)), CLASSES))
    if method == "local":
        epochs = round(FEMNIST_ROUNDS * 6 / len(features))
        found = alone(fed, Alone(rounds=epochs, local=FEMNIST_STEP), seed)
        return {**found, "accuracy": found["accuracy_examples"]}  # as the authors count
    kind, _, k = method.rpartition("-")
    inside = FedAvg(rounds=FEMNIST_ROUNDS, participants=6, local=FEMNIST_STEP, weights="examples")
    start = None
    if kind == "ifca":
        start = partitioned(fed, int(k), seed)
        algorithm: Algorithm = IFCA(
            k=int(k),
            rounds=FEMNIST_ROUNDS,
            participants=6,
            local=FEMNIST_STEP,
            weights="examples",
            repair=False,
        )
    elif kind == "one-shot":
        algorithm = Oracle(groups=tuple(by_pixels(pixels, int(k), seed)), inner=inside)
    else:
        algorithm = inside
    right = right_by_training_loss
    return best_of(drive(algorithm, fed, start, seed=seed), partial(accuracy, fed, by=right))


def best_of(run: Iterable[Snapshot], tested: Any) -> dict[str, Any]:
    """The best and the last of the evaluations every twenty rounds, and the number of clusters in use at the end."""
    found, last = [], None
    for last in run:
        if last.round % TESTED_EVERY == 0:
            found.append(tested(last.models))
    assert last is not None
    return {"accuracy": max(found), "last": found[-1], "clusters": clusters_in_use(last.labels), "rounds": last.round}


def partitioned(fed: Federation, k: int, seed: int) -> Snapshot:
    """The authors' initialisation: k random groups of clients, each of which trains a model for twenty rounds."""
    groups = integers(fold(root(seed), "groups", torch.arange(len(fed.names))), k)
    groups[:k] = torch.arange(k)  # no group is empty
    short = FedAvg(rounds=STARTING_ROUNDS, participants=6, local=FEMNIST_STEP, weights="examples")
    end = end_of(Oracle(groups=tuple(groups.tolist()), inner=short), fed, seed)
    return Snapshot(models=end.models, labels=torch.full_like(end.labels, -1), seed=seed)


def by_pixels(data: FederatedDataset, k: int, seed: int) -> list[int]:
    """One-shot clusters: k-means on every client's own linear classifier of raw pixels."""
    flat = replace(data, train=flattened(data.train), test=flattened(data.test))
    fed = federated(flat, Classification(Network(mlp(784, [], CLASSES)), CLASSES))
    once = OneShot(k=k, alone=Descent(lr=0.05, steps=300), inner=FedAvg(rounds=1))
    end = end_of(once, fed, seed)
    used = end.labels.unique().tolist()
    return [used.index(label) for label in end.labels.tolist()]


def flattened(rows: Ragged) -> Ragged:
    """Images as vectors."""
    return rows._replace(x=rows.x.flatten(1))


def shared_layers(data: FederatedDataset, k: int, seed: int) -> dict[str, Any]:
    """IFCA's weight sharing as the paper describes it: all clients together train all layers but the last."""
    shared = tuple(f"{place}.*" for place in (0, 3, 7))
    algorithm = IFCA(
        k=k,
        rounds=FEMNIST_ROUNDS,
        participants=6,
        local=FEMNIST_STEP,
        weights="examples",
        shared=shared,
        repair=False,
    )
    fed = federated(data, pixels_to_classes(), tf32=True)
    return best_of(drive(algorithm, fed, seed=seed), partial(accuracy, fed, by=right_by_training_loss))


# ---- the quick version

QUICK_ROUNDS, QUICK_TEST = 30, 2000


def quick(size: str, method: str, seed: int) -> dict[str, Any]:
    """A small version of Table 1 with four rotations, on a part of `mnist` or on the package's `digits`."""
    data, network, about = QUICK_DATA[size](seed)
    found = compared(method, data, data, Classification(Network(network), 10), QUICK_ROUNDS, seed)
    return {**found, "data": about}


def _part_of_mnist(seed: int) -> tuple[FederatedDataset, ModelLike, str]:
    x, y, x_test, y_test = MNIST.load()
    tested = x_test[:QUICK_TEST], y_test[:QUICK_TEST]
    data = images.rotated(x, y, *tested, clients=80, per_client=60, flat=True, seed=seed)
    return data, mlp(784, [50], 10), f"MNIST: 80 clients of 60 images, {QUICK_TEST:,} test images"


def _digits_of_the_package(seed: int) -> tuple[FederatedDataset, ModelLike, str]:
    return digits(seed), mlp(64, [32], 10), IN_PACKAGE


QUICK_DATA = {"mnist": _part_of_mnist, "digits": _digits_of_the_package}
KINDS = {"rmnist": rotated_mnist, "collapse": collapse, "rcifar": rotated_cifar, "femnist": femnist, "quick": quick}
