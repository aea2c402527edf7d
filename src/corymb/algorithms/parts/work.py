"""What a client does with a model it chose or was given, and how much that counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.func import vmap

from corymb.algorithms.parts.sharing import Sent
from corymb.core.client import Client, Examples, Share, Shares, on_client
from corymb.local import Descent, descend, gradient, losses, one_hot, part
from corymb.trees import Params

Averaging = Literal["models", "gradients"]
Weights = Literal["clients", "examples"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """A round's work: training or a gradient, on which examples, with what weight."""

    local: Descent
    averaging: Averaging = "models"
    weights: Weights = "clients"
    fresh: tuple[int, int] | None = None
    """(t, T): examples are cut into 2T parts; round t chooses on one and works on another."""

    def parts(self, client: Client) -> tuple[Examples, Examples]:
        """The examples to choose on, and those to work on."""
        if self.fresh is None:
            return client.train, client.train
        t, rounds = self.fresh
        return part(client.train, 2 * t, 2 * rounds), part(client.train, 2 * t + 1, 2 * rounds)

    def on(self, client: Client, model: Params, examples: Examples) -> Params:
        """The model trained on these examples, or its gradient there."""
        if self.averaging == "models":
            return descend(client, model, self.local, on=examples)
        return gradient(client, model, on=examples)

    def weight(self, client: Client) -> Tensor | float:
        """1, or the client's number of examples."""
        return 1.0 if self.weights == "clients" else client.train.weight.sum()


@on_client
def work_on_own(client: Client, model: Params, label: Tensor, *, k: int, work: Work) -> Share[Tensor]:
    """Work on the only model sent, that of the client's cluster; the note is its loss beforehand."""
    fit = losses(client, {name: value.unsqueeze(0) for name, value in model.items()})
    value = work.on(client, model, client.train)
    return Share(value, weight=one_hot(label, k) * work.weight(client), label=label, note=fit)


@on_client
def work_softly(client: Client, sent: Sent, *, work: Work, temperature: float) -> Shares[Tensor]:
    """Work on every model; each counts by λ_j ∝ exp(−m F(θ_j) / temperature). The note is every model's loss."""
    models = sent.models()
    choosing, working = work.parts(client)
    fit = losses(client, models, on=choosing)
    shares = (-choosing.weight.sum() * fit / temperature).softmax(0)
    value = vmap(lambda model: work.on(client, model, working))(models)
    return Shares(value, weight=shares * work.weight(client), label=shares.argmax(), note=fit)
