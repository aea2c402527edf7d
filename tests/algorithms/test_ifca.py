"""IFCA against a plain NumPy implementation, written from the paper independently of ours."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from corymb.algorithms import IFCA, ifca
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.trees import stack
from tests import tiny

ROUNDS, K = 5, 3
SIZES = (3, 11, 6, 8, 4, 9, 5, 12, 7)
TRUTH = (0, 0, 1, 0, 2, 0, 1, 0, 0)  # unequal clusters: six, two, one


# ---- the plain implementation


class Line:
    """y ≈ x·θ with squared loss."""

    @staticmethod
    def loss(theta, x, y):
        return np.mean((x @ theta["weight"] - y) ** 2)

    @staticmethod
    def gradient(theta, x, y):
        return {"weight": 2 * x.T @ (x @ theta["weight"] - y) / len(y)}


class Perceptron:
    """One hidden layer of ReLUs, softmax, cross-entropy."""

    @staticmethod
    def _forward(theta, x, y):
        before = x @ theta["1.weight"].T + theta["1.bias"]
        hidden = np.maximum(before, 0)
        logits = hidden @ theta["3.weight"].T + theta["3.bias"]
        logits = logits - logits.max(1, keepdims=True)
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        return before, hidden, probabilities

    @classmethod
    def loss(cls, theta, x, y):
        _, _, probabilities = cls._forward(theta, x, y)
        return -np.log(probabilities[np.arange(len(y)), y]).mean()

    @classmethod
    def gradient(cls, theta, x, y):
        before, hidden, down = cls._forward(theta, x, y)
        down = down.copy()
        down[np.arange(len(y)), y] -= 1
        down /= len(y)
        into = (down @ theta["3.weight"]) * (before > 0)
        return {
            "1.weight": into.T @ x,
            "1.bias": into.sum(0),
            "3.weight": down.T @ hidden,
            "3.bias": down.sum(0),
        }


def plain_ifca(learner, clients, models, participants, *, lr, steps, decay, option, divide_by="all", weighted=False):
    """Algorithm 2 of the paper; `participants` are the clients asked in each round."""
    history = []
    models = [dict(model) for model in models]
    for t, asked in enumerate(participants):
        rate = lr * decay**t
        chosen = {}
        for i in asked:
            fits = [learner.loss(model, *clients[i]) for model in models]
            chosen[i] = int(np.argmin(fits))
        new = [dict(model) for model in models]
        for j in range(len(models)):
            members = [i for i in asked if chosen[i] == j]
            if not members:
                continue
            if option == 1:
                gradients = [learner.gradient(models[j], *clients[i]) for i in members]
                number = {"all": len(clients), "asked": len(asked), "members": len(members)}[divide_by]
                for name in models[j]:
                    new[j][name] = models[j][name] - rate / number * sum(g[name] for g in gradients)
            else:
                trained = []
                for i in members:
                    theta = dict(models[j])
                    for _ in range(steps):
                        gradient = learner.gradient(theta, *clients[i])
                        theta = {name: theta[name] - rate * gradient[name] for name in theta}
                    trained.append(theta)
                weights = [len(clients[i][1]) if weighted else 1 for i in members]
                for name in models[j]:
                    new[j][name] = sum(w * theta[name] for w, theta in zip(weights, trained, strict=True)) / sum(
                        weights
                    )
        models = new
        history.append((models, chosen))
    return history


# ---- ours


class Recorder:
    """Which clients were asked, call by call."""

    def __init__(self, engine) -> None:
        self.engine, self.asked = engine, []

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def run(self, call, ids):
        self.asked.append(ids.tolist())
        return self.engine.run(call, ids)


LEARNERS = {
    "line": (Line, lambda: LinearRegression(3, dtype=torch.float64), tiny.regression),
    "perceptron": (
        Perceptron,
        lambda: Classification(Network(mlp(4, [6], 3), dtype=torch.float64), 3),
        tiny.classification,
    ),
}


def start(objective, n: int, k: int = K) -> Snapshot:
    models = stack([objective.init(fold(root(3), j)) for j in range(k)])
    return Snapshot(models=models, labels=torch.full((n,), -1), seed=4)


def ours(learner: str, engine: str, **settings):
    _, make, draw = LEARNERS[learner]
    objective, data = make(), draw(SIZES, TRUTH)
    recorder = Recorder(tiny.ENGINES[engine](objective, data, tiny.DOUBLE))
    begin = start(objective, len(SIZES))
    algorithm = IFCA(k=K, rounds=ROUNDS, repair=False, **settings)
    return list(drive(algorithm, Federation(recorder), begin)), recorder.asked, begin, data


def plain(learner: str, data, begin: Snapshot, asked, **settings):
    spans = [slice(int(a), int(b)) for a, b in zip(data.train.offsets[:-1], data.train.offsets[1:], strict=True)]
    clients = [(data.train.x[span].numpy(), data.train.y[span].numpy()) for span in spans]
    models = [{name: value[j].numpy() for name, value in begin.models.items()} for j in range(K)]
    return plain_ifca(LEARNERS[learner][0], clients, models, asked, **settings)


def distance(snapshots, history) -> float:
    return max(
        float(np.abs(at.models[name][j].numpy() - model[name]).max())
        for at, (models, _) in zip(snapshots, history, strict=True)
        for j, model in enumerate(models)
        for name in model
    )


def known_labels(history):
    """Each client's last label, after every round."""
    labels = [-1] * len(SIZES)
    for _, chosen in history:
        for i, label in chosen.items():
            labels[i] = label
        yield list(labels)


every_engine = pytest.mark.parametrize("engine", tiny.ENGINES)
every_learner = pytest.mark.parametrize("learner", LEARNERS)
some_or_all = pytest.mark.parametrize("participants", [None, 5, 0.4])


@every_engine
@every_learner
@some_or_all
def test_option_two_is_the_papers(learner, engine, participants):
    local = Descent(lr=0.1, steps=3, decay=0.9)
    snapshots, asked, begin, data = ours(learner, engine, local=local, participants=participants)
    assert {len(ids) for ids in asked} == {{None: 9, 5: 5, 0.4: 4}[participants]}
    assert participants is None or len({tuple(ids) for ids in asked}) > 1
    history = plain(learner, data, begin, asked, lr=0.1, steps=3, decay=0.9, option=2)
    assert distance(snapshots, history) < 1e-9
    assert [at.labels.tolist() for at in snapshots] == list(known_labels(history))
    assert len(set(snapshots[-1].labels.tolist()) - {-1}) > 1
    wrong = plain(learner, data, begin, asked, lr=0.1, steps=3, decay=0.9, option=2, weighted=True)
    assert distance(snapshots, wrong) > 1e-4


@every_engine
@every_learner
@some_or_all
def test_option_one_is_the_papers(learner, engine, participants):
    """The sum of gradients over n, all clients: over those asked or over the cluster would be another algorithm."""
    local = Descent(lr=0.8, steps=7, decay=0.9)  # steps are option II's
    snapshots, asked, begin, data = ours(learner, engine, local=local, participants=participants, averaging="gradients")
    settings = {"lr": 0.8, "steps": 1, "decay": 0.9, "option": 1}
    history = plain(learner, data, begin, asked, **settings)
    assert distance(snapshots, history) < 1e-9
    assert [at.labels.tolist() for at in snapshots] == list(known_labels(history))
    wrong = ["members"] if participants is None else ["members", "asked"]
    for divide_by in wrong:
        assert distance(snapshots, plain(learner, data, begin, asked, **settings, divide_by=divide_by)) > 1e-3


@every_engine
def test_clients_may_count_by_their_examples(engine):
    snapshots, asked, begin, data = ours("line", engine, local=Descent(lr=0.1, steps=3), weights="examples")
    history = plain("line", data, begin, asked, lr=0.1, steps=3, decay=1.0, option=2, weighted=True)
    assert distance(snapshots, history) < 1e-9


@every_engine
def test_an_epoch_without_batches_is_a_step(engine):
    one, *_ = ours("line", engine, local=Descent(lr=0.1, epochs=3))
    other, *_ = ours("line", engine, local=Descent(lr=0.1, steps=3))
    assert tiny.farthest(one[-1].models, other[-1].models) == 0


@every_engine
@every_learner
@pytest.mark.parametrize("averaging", ["models", "gradients"])
def test_ties_go_to_the_lowest_index_and_an_empty_cluster_keeps_its_model(learner, engine, averaging):
    _, make, draw = LEARNERS[learner]
    objective = make()
    begin = start(objective, len(SIZES), 1)
    same = {name: value.expand(3, *value.shape[1:]).clone() for name, value in begin.models.items()}
    far = {
        name: value + 50 * torch.tensor([1.0, 0.0, 0.0]).reshape(-1, *[1] * (value.dim() - 1))
        for name, value in same.items()
    }
    algorithm = IFCA(k=3, rounds=1, averaging=averaging, local=Descent(lr=0.05, steps=1), repair=False)
    for models, label in ((same, 0), (far, 1)):
        fed = Federation(tiny.ENGINES[engine](objective, draw(SIZES, TRUTH), tiny.DOUBLE))
        (at,) = drive(algorithm, fed, Snapshot(models=models, labels=begin.labels))
        assert at.labels.tolist() == [label] * len(SIZES)
        for name, value in at.models.items():
            moved = [not torch.equal(value[j], models[name][j]) for j in range(3)]
            assert moved == [j == label for j in range(3)]


def test_a_step_that_must_diverge_is_warned_of_once(caplog):
    with caplog.at_level(logging.WARNING, logger="corymb.algorithms"):
        ours("line", "loop", local=Descent(lr=0.3), averaging="gradients")
        assert caplog.records == []
        snapshots, *_ = ours("line", "loop", local=Descent(lr=3.0), averaging="gradients")
    assert len(snapshots) == ROUNDS
    (record,) = caplog.records
    assert "diverge" in record.getMessage()


# ---- how it reads


SOURCE = Path(ifca.__file__).read_text()


def test_the_file_is_short():
    assert len(SOURCE.splitlines()) <= 130


def test_an_algorithms_file_does_not_depend_on_where_clients_are():
    assert re.findall(r"(?i)\b(?:engine|device|pad|padded|padding|chunk|cuda|kernel)s?\b", SOURCE) == []
    assert re.findall(r"(?i)\b(?:engine|device|pad|padded|padding|chunk)s?\b", "one Engine, two chunks, a padding")
