"""The cells of Chung's report on UIFCA (UC Berkeley 2023, chapter 4), which `recipe.py` tabulates.

A cell is `setting/method/seed` and returns plain numbers. On a machine without a GPU it uses fewer images
(`PER_CLASS`), whose number each cell records, unless the environment variable `CORYMB_WHOLE` is set.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from corymb.algorithms import UIFCA, ClusterGAN, FedAvg, KFed, Oracle
from corymb.core.objective import Examples
from corymb.core.snapshot import Algorithm
from corymb.data.built_in import points
from corymb.data.dataset import FederatedDataset
from corymb.data.ragged import Ragged, select
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.local.reference import descend_one
from corymb.models.flows import Affine, Pixels, Projected, RealNVP
from corymb.models.flows.coupling import Mask
from corymb.objectives import Density
from corymb.recipes.cells import device_name, whole
from corymb.recipes.uifca import encoder
from corymb.runs.fit import fit
from corymb.runs.run import Run

SYNTHETIC = ("gaussians", "subspace", "two-gaussians")
"""Settings whose cells are too small to benefit from a GPU."""
WHOLE = torch.cuda.is_available() or bool(os.environ.get("CORYMB_WHOLE"))
PER_CLASS = None if WHOLE else 250
"""Images of each cluster: all, or few without a GPU; the number of rounds is reduced likewise."""
STEP = Descent(lr=1e-3, steps=25, batch=128, optimiser="adam", clip_gradient=100.0)
GAME = Descent(lr=1e-3, steps=100, batch=64, optimiser="adam")
REALNVP = UIFCA(k=10, density="realnvp", rounds=10, exchanges=4 if WHOLE else 2, local=STEP)


def flow(side: int = 14, mask: Mask = "cyclic", hidden: int = 64) -> Density:
    """A RealNVP density of small images."""
    return Density(Pixels(RealNVP(side**2, side=side, mask=mask, hidden=hidden)))


# ---- the data of a setting


def data_of(setting: str, seed: int, side: int = 28) -> FederatedDataset:
    """The data of a setting such as `subspace-0.25` or `rotated-3-0.5`."""
    kind, *rest = setting.split("-")
    p = float(rest[-1])
    if kind == "gaussians":
        return points.gaussians(seed, p=p)
    if kind in ("subspace", "subspace10"):
        return points.subspace(seed, p=p, k=10 if kind == "subspace10" else 4)
    if kind == "rotated":
        return points.mnist_rotation_points(seed, p=p, digit=int(rest[0]), side=side, per_class=PER_CLASS)
    return points.mnist_digits(seed, p=p, side=side, per_class=PER_CLASS)


def clusters_of(setting: str) -> int:
    """The number of clusters of a setting."""
    return 10 if setting.startswith(("digits", "representations", "subspace10")) else 4


# ---- the methods


METHODS: Mapping[str, Callable[[int], Algorithm]] = {
    "kfed": lambda k: KFed(k=k),
    "affine": lambda k: UIFCA(k=k),
    "affine-best-of-3": lambda k: UIFCA(k=k, restarts=3),
    "affine-kfed": lambda k: UIFCA(k=k, init="kfed"),
    "shift-best-of-5": lambda k: UIFCA(k=k, density="shift", restarts=5),
    "diagonal-best-of-5": lambda k: UIFCA(k=k, density="diagonal", restarts=5),
    "realnvp": lambda k: _with_k(REALNVP, k),
    "clustergan": lambda k: ClusterGAN(k=k, rounds=60 if WHOLE else 6, local=GAME),
    "realnvp-kfed": lambda k: _with_k(REALNVP, k, init="kfed"),
    "gaussian": lambda k: UIFCA(k=k, density="gaussian", rounds=30),
    "gaussian-kfed": lambda k: UIFCA(k=k, density="gaussian", rounds=30, init="kfed"),
    "gaussian-best-of-20": lambda k: UIFCA(k=k, density="gaussian", rounds=30, restarts=20),
    "gaussian-kfed-best-of-5": lambda k: UIFCA(k=k, density="gaussian", rounds=30, init="kfed", restarts=5),
    "gaussian-kfed-prior": lambda k: UIFCA(k=k, density="gaussian", rounds=30, init="kfed", prior=True),
}


def _with_k(algorithm: UIFCA, k: int, **options: Any) -> UIFCA:
    return replace(algorithm, k=k, **options)


def cluster_points(setting: str, method: str, seed: int) -> dict[str, Any]:
    """A cell of a table: how well a method clusters the examples."""
    algorithm = METHODS[method](clusters_of(setting))
    small = method.startswith("realnvp")
    data = data_of(setting, seed, side=14 if small else 28)
    synthetic = setting.startswith(SYNTHETIC)
    device: Any = "cpu" if synthetic else "auto"
    run = whole(fit(algorithm, data, flow() if small else None, seed=seed, evaluate_every=0, device=device))
    return {**_numbers(run), "images": int(data.sizes.sum())}


REPRESENTED = (
    *("kfed", "gaussian", "gaussian-best-of-20"),
    *("gaussian-kfed", "gaussian-kfed-prior", "gaussian-kfed-best-of-5"),
)


def cluster_representations(setting: str, method: str, seed: int) -> dict[str, Any]:
    """Train an encoder without labels, and run every method on its representations of the images.

    The method's name may give the encoder's temperature and number of rounds: `encoder-0.5-200`.
    """
    data = data_of(setting, seed)
    _, *asked = method.split("-")
    how = replace(encoder.TRAINING, rounds=int(asked[1])) if asked else encoder.TRAINING
    params = encoder.trained(data, seed, how, float(asked[0]) if asked else encoder.TEMPERATURE)
    seen = encoder.represented(data, params)
    runs = {
        name: whole(fit(METHODS[name](10), seen, _gaussian_of(name), seed=seed, evaluate_every=0))
        for name in REPRESENTED
    }
    return {"methods": {name: dict(run.metrics) for name, run in runs.items()}, "images": int(data.sizes.sum())}


def _gaussian_of(method: str) -> Density | None:
    return None if method == "kfed" else Density(Projected(Affine(30), encoder.FEATURES))


def _numbers(run: Run) -> dict[str, Any]:
    return {"metrics": dict(run.metrics), "seconds": run.seconds, "rounds": len(run.history)}


# ---- Table 4.2: can two flows distinguish two digits?


def ablation(setting: str, method: str, seed: int) -> dict[str, Any]:
    """Two RealNVPs, trained on twos and on threes: the share of images that are more likely under their own model."""
    pictures = points.mnist_digits(seed, p=1.0, side=14, per_class=PER_CLASS)
    data = _only(pictures, (2, 3))
    if "background" in method:
        data = points.random_background(data, seed)
    mask: Mask = "cyclic" if "cyclic" in method else "checkerboard"
    rounds = 40 if WHOLE else 12
    oracle = Oracle(groups=(0, 1), inner=FedAvg(rounds=rounds, local=STEP))
    run = whole(fit(oracle, data, flow(mask=mask), seed=seed, evaluate_every=0))
    found = {part: _right(run, rows) for part, rows in (("train", data.train), ("test", data.test))}
    return {**found, "images": int(data.sizes.sum())}


def _only(data: FederatedDataset, digits: Sequence[int]) -> FederatedDataset:
    """The clients of some digits, relabelled from 0, where each client has one digit."""

    def part(rows: Ragged) -> Ragged:
        chosen = select(rows, torch.tensor(digits))
        return chosen._replace(y=torch.searchsorted(torch.tensor(digits), chosen.y))

    return FederatedDataset(
        name=data.name,
        names=tuple(data.names[digit] for digit in digits),
        train=part(data.train),
        test=part(data.test),
        task="density",
        classes=tuple(str(digit) for digit in digits),
    )


def _right(run: Run, rows: Ragged) -> float:
    labels = np.concatenate([run.assign_points(part.numpy()) for part in rows.x.split(4096)])
    return float((labels == rows.y.numpy()).mean())


# ---- the figures


def curve(setting: str, method: str, seed: int) -> dict[str, Any]:
    """The data of Figure 4.3: purity after every cluster round."""
    algorithm = UIFCA(k=clusters_of(setting), init="kfed" if method == "kfed" else "random")
    data = data_of(setting, seed)
    run = whole(fit(algorithm, data, seed=seed, evaluate_every=algorithm.exchanges, device="cpu"))
    return {"purity": [row["metrics"]["purity"] for row in run.history if "metrics" in row]}


def one_cluster_round(setting: str, method: str, seed: int) -> dict[str, Any]:
    """The data of Figure 4.4: purity while models train on fixed labels, and the purity of those labels."""
    data = data_of(setting, seed, side=14)
    k = clusters_of(setting)
    start = whole(fit(KFed(k=k), data, seed=seed, evaluate_every=0)).metrics["purity"]
    algorithm = _with_k(REALNVP, k, init="kfed", rounds=1, exchanges=40 if WHOLE else 10)
    run = whole(fit(algorithm, data, flow(), seed=seed, evaluate_every=1))
    rows = [row for row in run.history if "metrics" in row and row["stage"].startswith("rounds")]
    return {"start": start, "purity": [row["metrics"]["purity"] for row in rows]}


def overfitting(setting: str, method: str, seed: int) -> dict[str, Any]:
    """The data of Figure 4.6: the mean loss of right and wrong members of cluster 1 under both models as they train.

    Two Gaussian clusters in 32 dimensions with m points in total; a third of each assigned set belongs to the other.
    """
    m = int(method.removeprefix("m"))
    data = points.gaussians(seed, k=2, m=m // 2, scale=1.0, test=0)
    x, true = data.train.x.double(), data.train.y
    wrong = torch.arange(len(true)) % 3 == 0
    given = torch.where(wrong, 1 - true, true)
    objective = Density(Affine(32), dtype=torch.float64)
    models = [objective.init(fold(root(seed), "models")) for _ in range(2)]
    how, losses = Descent(lr=0.005, steps=10, optimiser="adam"), []
    for t in range(40):
        for j in range(2):
            own = Examples(x[given == j], true[given == j], torch.ones(int((given == j).sum()), dtype=torch.float64))
            models[j] = descend_one(objective, models[j], own, root(t), how).params
        first = given == 0
        each = [-objective.predict(model, x) for model in models]
        losses.append([float(each[j][first & (wrong == w)].mean()) for w in (False, True) for j in range(2)])
    return {"losses": losses, "columns": ["right, model 1", "right, model 2", "wrong, model 1", "wrong, model 2"]}


# ---- dispatch

KINDS: Mapping[str, Callable[[str, str, int], dict[str, Any]]] = {
    "ablation": ablation,
    "curve": curve,
    "one_cluster_round": one_cluster_round,
    "overfitting": overfitting,
}


def work(job: str) -> dict[str, Any]:
    """Run one cell; returns plain numbers."""
    *kind, setting, method, seed = job.split("/")
    on_pictures = cluster_representations if method.startswith("encoder") else cluster_points
    run = ablation if setting == "ablation" else KINDS[kind[0]] if kind else on_pictures
    found = run(setting, method, int(seed))
    return {**found, "device": "CPU" if setting.startswith(SYNTHETIC) else device_name()}
