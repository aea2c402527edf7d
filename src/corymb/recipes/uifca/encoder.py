"""An image encoder trained with FedAvg and without labels, whose representations some cells cluster.

Every client makes a few distorted views of each of its images, locally and once, and groups images into crowds. The
encoder learns to distinguish the views of an image from those of other images in its crowd
(`objectives/contrastive.py`). Clients then represent their images by it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import affine_grid, grid_sample

from corymb.algorithms import FedAvg
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.data.dataset import FederatedDataset
from corymb.data.ragged import Ragged, offsets_of
from corymb.engines import Placement, VectorisedEngine
from corymb.local import Descent
from corymb.models import Network
from corymb.objectives.contrastive import Contrastive
from corymb.trees import Params, take

VIEWS, CROWD = 4, 64
MOST = 2048
"""At most this many images of a client are used to train the encoder."""
FEATURES = 128
GPU = torch.cuda.is_available()
TRAINING = FedAvg(rounds=60 if GPU else 8, local=Descent(lr=1e-3, steps=25, batch=1, optimiser="adam"))
TEMPERATURE = 0.2
BODY = "0."
"""Prefix of the parameters of the representation; the others belong to the head, which is only used in training."""


def network() -> nn.Module:
    """A small convolutional body with a linear head."""
    body = nn.Sequential(
        nn.Conv2d(1, 32, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 49, FEATURES),
        nn.ReLU(),
    )
    return nn.Sequential(body, nn.Linear(FEATURES, 64))


def distorted(pictures: Tensor, rng: np.random.Generator) -> Tensor:
    """Apply a small random rotation, scaling, shear and translation to each image."""
    n = len(pictures)

    def draw(most: float) -> Tensor:
        return torch.from_numpy(rng.uniform(-most, most, n).astype(np.float32))

    angle, size = draw(math.pi / 9), 1 + draw(0.2)
    rows = [
        [size * (1 + draw(0.2)) * angle.cos(), draw(0.4) - size * angle.sin(), draw(0.15)],
        [size * angle.sin(), size * angle.cos(), draw(0.15)],
    ]
    matrix = torch.stack([torch.stack(row, 1) for row in rows], 1)
    shape = list(pictures.shape)
    return grid_sample(pictures, affine_grid(matrix, shape, align_corners=False), align_corners=False)


def crowds_of(data: FederatedDataset, seed: int) -> FederatedDataset:
    """The same images in crowds: each row is (CROWD, VIEWS, 1, side, side). Nothing is held out.

    A client's last crowd is padded with images of its first one.
    """
    rng = np.random.default_rng(seed)
    parts = []
    for first, last in pairwise(data.train.offsets.tolist()):
        rows = rng.permutation(np.arange(first, last))[:MOST]
        parts.append(np.resize(rows, (-(-len(rows) // CROWD), CROWD)))
    chosen = torch.from_numpy(np.concatenate(parts)).flatten()
    views = torch.stack([distorted(data.train.x[chosen], rng) for _ in range(VIEWS)], 1)
    x, y = views.unflatten(0, (-1, CROWD)), torch.zeros(len(chosen) // CROWD, dtype=torch.int64)
    offsets = offsets_of(torch.tensor([len(part) for part in parts]))
    empty = Ragged(x[:0], y[:0], torch.zeros_like(offsets))
    return replace(data, train=Ragged(x, y, offsets), test=empty, classes=())


def trained(data: FederatedDataset, seed: int, how: FedAvg = TRAINING, temperature: float = 0.2) -> Params:
    """The encoder's parameters after FedAvg on the clients of `data`."""
    place = Placement("cuda" if GPU else "cpu", torch.float32)
    objective = Contrastive(Network(network), temperature).to(place.device, place.dtype)
    fed = Federation(VectorisedEngine(objective, crowds_of(data, seed), place))
    *_, end = drive(how, fed, seed=seed)
    return take(end.models, 0)


def represented(data: FederatedDataset, params: Params) -> FederatedDataset:
    """Every client's images as features of the encoder."""
    body = network()[0]  # type: ignore[index]
    own = {name.removeprefix(BODY): value for name, value in params.items() if name.startswith(BODY)}
    device = next(iter(own.values())).device

    def features(rows: Ragged) -> Ragged:
        with torch.no_grad():
            parts = [functional_call(body, own, (part.to(device),)).cpu() for part in rows.x.split(4096)]
        return rows._replace(x=torch.cat(parts))

    return replace(data, name=f"{data.name}, represented", train=features(data.train), test=features(data.test))
