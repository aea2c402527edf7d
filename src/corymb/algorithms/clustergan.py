"""ClusterGAN with FedAvg: a cluster for every example, by a generator with k codes and an encoder that finds them.

Mukherjee, Asnani, Lin, Kannan: ClusterGAN: Latent Space Clustering in Generative Adversarial Networks. AAAI 2019;
trained with FedAvg as the baseline of Chung: Efficient Clustering Frameworks for Federated Learning Systems. UC
Berkeley 2023, chapter 4. K: `k`; M: `local.steps`.

There is one model for all clients: generator, critic and encoder (`objectives/adversarial.py`). In every round each
client trains them on its own examples, and the server averages all three, weighted by the numbers of examples. An
example is in the cluster whose code the encoder finds most likely. Models and counts are sent; labels are not.

Departures from the papers:

* The cluster is read from the encoder's logits; the authors run k-means on its whole output, which needs pooled data.
* There is no batch normalisation. Clients start every round with a new Adam with its usual β (0.9, 0.999); the authors
  use (0.5, 0.9), and the report uses SGD with a step of 5e-3. Adam also runs in the steps that train other networks.
* If no model is given, networks are perceptrons, also for pictures; `model="clustergan-cnn"` has the authors' layers.
* Generator and encoder are trained in the first of six steps, not in the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from corymb.algorithms.parts.points.centres import space_of
from corymb.algorithms.parts.points.labels import members_of
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.objective import Examples
from corymb.core.snapshot import Snapshot
from corymb.keys import fold
from corymb.local import Descent, descend, loss
from corymb.models.adversarial import CODES
from corymb.objectives.adversarial import joined
from corymb.settings import check_types, require
from corymb.trees import Params, stack, take

POINTS = "share of examples in each cluster"
"""The name of the statistic that clients send besides their model; the server gets only sums over clients."""


@on_client
def play(client: Client, models: Params, *, local: Descent) -> Share[Tensor]:
    """All three networks after local training, weighted by the number of examples; the note is the loss before."""
    model, weight = take(models, 0), client.train.weight
    total = weight.sum()
    number = members_of(_label(client, models, client.train.x), weight, len(model[CODES[0]])).sum(-1)
    points = {POINTS: number / total.clamp_min(1)}
    return Share({**descend(client, model, local), **points}, weight=total.reshape(1), note=loss(client, model))


def _label(client: Client, models: Params, x: Tensor) -> Tensor:
    """The most likely code of each example."""
    return space_of(client, models, x)[:, -models[CODES[0]].shape[1] :].argmax(-1)


@on_client
def label_by_encoder(client: Client, models: Params, on: Examples, *, prior: bool = False) -> Tensor:
    """The cluster of every example: its most likely code. Used for evaluation at the client, never sent."""
    return _label(client, models, on.x)


@on_client
def serve_the_model(client: Client, models: Params, label: Tensor, share: Tensor | None) -> Params:
    """The only model."""
    return take(models, 0)


@dataclass(frozen=True, kw_only=True)
class ClusterGAN:
    """A cluster for every example, by a generative adversarial network; needs no labels."""

    k: int
    """Number of clusters."""
    rounds: int = 30
    """Rounds of training and averaging the networks."""
    local: Descent = Descent(lr=1e-3, steps=60, batch=64, optimiser="adam")
    """Local training in a round; one step in six trains the generator and the encoder, the others the critic."""

    serve = serve_the_model
    label_points = label_by_encoder
    prior = False
    model = "clustergan"
    """The model that it learns if none is given."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("k", "rounds"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}.")

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Train and average the networks, round after round."""
        at = start or self._fresh(fed)
        for t in range(at.round, self.rounds):
            replies = fed.clients.sum(play, at.models, local=self.local.at(t))
            sums = replies.value
            points = sums.total[POINTS][0].round().long().tolist()
            models = sums._replace(total={name: sums.total[name] for name in at.models}).mean(empty=at.models)
            notes = {"train_loss": float(sums.note.mean()), "points": points}
            yield (at := at.next(models=models, notes=notes))

    def _fresh(self, fed: Federation) -> Snapshot:
        key = fed.key("models")
        drawn = [fed.objective.init(fold(key, j)) for j in range(self.k)]
        known = all(name in drawn[0] for name in CODES)
        require(known, f"ClusterGAN learns networks with codes (model 'clustergan'), got {fed.objective.describe()}.")
        models = stack([joined(drawn)])
        return Snapshot(models=models, labels=torch.full((len(fed.names),), -1), seed=fed.seed, clock=fed.clock)
