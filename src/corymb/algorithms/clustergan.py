"""ClusterGAN with FedAvg: a cluster for every example, by a generator with k codes and an encoder that finds them.

Mukherjee, Asnani, Lin, Kannan: ClusterGAN: Latent Space Clustering in Generative Adversarial Networks. AAAI 2019;
trained with FedAvg as the baseline of Chung: Efficient Clustering Frameworks for Federated Learning Systems. UC
Berkeley 2023, chapter 4. K: `k`; M: `local.steps`.

There is one model for everybody: generator, critic and encoder (`objectives/adversarial.py`). In every round each
client plays the game on its own examples, and the server averages all three by the number of examples. An example is in
the cluster whose code the encoder finds likeliest in it. Labels stay at home: models and counts leave.

Departures from the papers:

* The cluster is read off the encoder's logits; the authors run k-means on its whole output, which takes pooled data.
* No batch normalisation; clients begin every round with a new Adam, with its usual β (0.9, 0.999), where the authors
  have (0.5, 0.9) and the report has SGD with a step of 5e-3. Adam goes on through the steps in which others move.
* Networks are perceptrons where no model is given, also for pictures; `model="clustergan-cnn"` has the authors' layers.
* Generator and encoder move in the first of six steps, not in the last.
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
"""What clients say beside their model: only sums over clients come back."""


@on_client
def play(client: Client, models: Params, *, local: Descent) -> Share[Tensor]:
    """All three networks after local training, weighted by the number of examples; the note is the loss before."""
    model, weight = take(models, 0), client.train.weight
    total = weight.sum()
    number = members_of(_label(client, models, client.train.x), weight, len(model[CODES[0]])).sum(-1)
    said = {POINTS: number / total.clamp_min(1)}
    return Share({**descend(client, model, local), **said}, weight=total.reshape(1), note=loss(client, model))


def _label(client: Client, models: Params, x: Tensor) -> Tensor:
    """The likeliest code of each example."""
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
    """Clusters."""
    rounds: int = 30
    """Rounds of training and averaging the networks."""
    local: Descent = Descent(lr=1e-3, steps=60, batch=64, optimiser="adam")
    """What a client does in a round; one step in six is the generator's and the encoder's, the others the critic's."""

    serve = serve_the_model
    label_points = label_by_encoder
    prior = False
    model = "clustergan"
    """What it learns where no model is given."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("k", "rounds"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}.")

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        """Play and average, round after round."""
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
