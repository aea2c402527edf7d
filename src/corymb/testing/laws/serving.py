"""Laws of serving: scores of what a client is served, one model or a mixture, agree with a direct computation."""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.core.client import Client, Served, on_client
from corymb.core.engine import each
from corymb.core.objective import Examples, Objective
from corymb.local import serve_assigned, serve_mixture, served_loss, served_predictions, served_score
from corymb.testing.assertions import CLOSE, farthest
from corymb.testing.engines import AnyEngine
from corymb.testing.laws.engines import N, ask, models_of, small_federation
from corymb.testing.learners import LEARNERS
from corymb.testing.small_data import SmallRows
from corymb.trees import Params, take

K = 3
SHARES = torch.tensor(
    [[1.0, 0, 0], [0.2, 0.3, 0.5], [0.0, 0, 0], [2.0, 1, 1], [0.0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]]
).double()
"""Rows with one model, with several, with none (the best one is served), and with sums other than 1."""
LABELS = torch.tensor([0, 2, -1, 1, -1, 0])


@on_client
def serve_both(client: Client, models: Params, label: Tensor, share: Tensor | None) -> dict[str, Tensor]:
    """The loss and the score of what the client is served, and the weights of the models in it."""
    served = serve_mixture(client, models, label, share)
    weights = served.weights if isinstance(served, Served) else torch.zeros(1)
    return {
        "loss": served_loss(client, served),
        "score": served_score(client, served),
        "loss on test": served_loss(client, served, on=client.test),
        "weights": weights,
    }


@on_client
def serve_one(client: Client, models: Params, label: Tensor, share: Tensor | None) -> dict[str, Tensor]:
    """The loss and the score of the one model that the client is served, and the sum of its predictions."""
    served, test = serve_assigned(client, models, label, share), client.test
    predicted = served_predictions(client, served)
    counted = (test.weight > 0).reshape(-1, *[1] * (predicted.dim() - 1))
    return {
        "loss": served_loss(client, served),
        "score": served_score(client, served),
        "said": torch.where(counted, predicted, 0).sum(0),
    }


def check_mixture(learner: str, engine: AnyEngine) -> None:
    """A mixture's loss is its negative log-likelihood or the squared error of its mean, which is also scored."""
    models, data = models_of(learner, K), LEARNERS[learner].data()
    objective = small_federation(learner, "loop").objective
    got = ask(small_federation(learner, engine), serve_both, models, each(LABELS), each(SHARES))
    for client in range(N):
        train, test = (_examples(rows, client) for rows in (data.train, data.test))
        weights = _weights(objective, models, SHARES[client], train)
        want = {
            "loss": _loss_by_hand(objective, models, weights, train),
            "score": _score_by_hand(objective, models, weights, test),
            "loss on test": _loss_by_hand(objective, models, weights, test),
            "weights": weights,
        }
        assert farthest(take(got, client), want) < CLOSE, f"client {client}"
        mixed = objective.mix(torch.stack([objective.predict(take(models, j), test.x) for j in range(K)]), weights)
        mean = _mean_prediction(objective, models, weights, test)
        assert farthest(mixed.softmax(-1) if mixed.dim() > 1 else mixed, mean) < CLOSE, f"client {client}"


def check_one_model(learner: str, engine: AnyEngine) -> None:
    """Without shares a client is served the model of its label; one without a label, the model that fits it best."""
    models, data = models_of(learner, K), LEARNERS[learner].data()
    fed = small_federation(learner, engine)
    objective = small_federation(learner, "loop").objective
    one = ask(fed, serve_one, models, each(LABELS), None)
    mixed = ask(fed, serve_both, models, each(LABELS), None)
    common = one.keys() & mixed.keys()
    assert farthest({name: mixed[name] for name in common}, {name: one[name] for name in common}) < CLOSE
    for client in range(N):
        train, test = (_examples(rows, client) for rows in (data.train, data.test))
        label = int(LABELS[client]) if LABELS[client] >= 0 else int(_losses(objective, models, train).argmin())
        model = take(models, label)
        want = {
            "loss": objective.losses(model, train).mean(),
            "score": objective.scores(model, test).mean(),
            "said": objective.predict(model, test.x).sum(0),
        }
        assert farthest(take(one, client), want) < CLOSE, f"client {client}"


# ---- direct computation


def _examples(rows: SmallRows, client: int) -> Examples:
    span = slice(int(rows.offsets[client]), int(rows.offsets[client + 1]))
    return Examples(rows.x[span], rows.y[span], torch.ones(span.stop - span.start).double())


def _losses(objective: Objective, models: Params, on: Examples) -> Tensor:
    return torch.stack([objective.losses(take(models, j), on).mean() for j in range(K)])


def _weights(objective: Objective, models: Params, share: Tensor, train: Examples) -> Tensor:
    if float(share.sum()) > 0:
        return share / share.sum()
    return (torch.arange(K) == _losses(objective, models, train).argmin()).double()


def _mean_prediction(objective: Objective, models: Params, weights: Tensor, on: Examples) -> Tensor:
    """The mean of the models' probabilities, or of the numbers they predict: m ..."""
    total = torch.zeros(())
    for j in range(K):
        predicted = objective.predict(take(models, j), on.x)
        total = total + weights[j] * (predicted.softmax(-1) if predicted.dim() > 1 else predicted)
    return total


def _loss_by_hand(objective: Objective, models: Params, weights: Tensor, on: Examples) -> Tensor:
    mean = _mean_prediction(objective, models, weights, on)
    if objective.squared is not None:
        return objective.squared * (mean - on.y).square().mean()
    return -mean[torch.arange(len(on.y)), on.y].log().mean()


def _score_by_hand(objective: Objective, models: Params, weights: Tensor, on: Examples) -> Tensor:
    mean = _mean_prediction(objective, models, weights, on)
    if mean.dim() > 1:
        return (mean.argmax(-1) == on.y).double().mean()
    return (mean - on.y).square().mean()
