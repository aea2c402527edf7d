"""Algorithms by name, with defaults chosen for the data: step size, number of rounds, true clusters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from corymb.algorithms.catalogue import CATALOGUE, entry_of
from corymb.algorithms.fedavg import FedAvg
from corymb.core.engine import Engine
from corymb.core.snapshot import Algorithm
from corymb.data.dataset import FederatedDataset
from corymb.data.loading import as_dataset
from corymb.data.schema import DataSchema, schema_of
from corymb.lazy import is_place
from corymb.local import Descent
from corymb.runs.learners import Model, default_model
from corymb.runs.own.algorithm import class_at, place_of
from corymb.runs.serving import labels_points
from corymb.settings import InvalidInput, from_dict, to_dict

FromData = Mapping[str, Callable[[Any], Any]]
"""Settings taken from the data instead of the user, by name."""


class Defaults(NamedTuple):
    """Overrides of an algorithm's own defaults; None leaves the default in place."""

    lr: float | None = None
    rounds: int | None = None
    decay: float = 1.0
    """Decay of the step size per round: with a constant step, clients that differ pull the mean off the optimum."""
    safe: bool = False
    """Whether clients shorten steps if their loss is too steep for `lr`."""
    whiten: bool = False
    """Whether descent on a linear model uses coordinates in which the features are uncorrelated."""
    steps: int | None = None
    """Local steps per round."""
    batch: int | None = None
    gradient_lr: float | None = None
    """The step size for averaged gradients, which clients cannot shorten; None uses `lr`."""
    keep: str | None = None
    """The model that clients keep in local training (`Alone.keep`)."""
    weights: str | None = None
    """How clients are weighted in a mean of models."""
    accept: str | None = None
    """The criterion that makes a split of a cluster final."""
    compare: str | None = None
    """What k-means on local models compares."""
    finish: bool = False
    """Whether FedAvg continues to train the clusters at the end, if the algorithm has a setting for that; for at most
    as many rounds as the algorithm is given, if any."""


def defaults_for(schema: DataSchema, examples: int = 0, model: Model | None = None) -> Defaults:
    """The defaults for this many training examples of a schema; docs/explanation/defaults.md explains their choice.

    `model` is the model requested by the user, if any.

    >>> defaults_for(DataSchema(task="classification", features=(64,), classes=("0", "1"))) == Defaults(
    ...     lr=0.3, rounds=40
    ... )
    True
    """
    if schema.task == "density":
        return Defaults()
    if schema.standardise:
        kind = _TABLE_OF_CLASSES if schema.task == "classification" else _TABLE_OF_NUMBERS
        large = schema.task == "classification" and default_model(schema, examples) != "linear"
        whiten = kind.whiten and (model is None or (isinstance(model, str) and model in LINEAR))
        return (_LARGE_TABLE if large else kind)._replace(gradient_lr=_gradient_lr(schema), whiten=whiten)
    if schema.picture and default_model(schema, examples) == "cnn":
        return _PICTURES
    if schema.task == "classification" and not schema.picture and schema.size <= 100:
        return Defaults(lr=0.3, rounds=40)
    return Defaults()


_TABLE = Defaults(
    rounds=80,
    decay=0.97,
    safe=True,
    keep="penalised",
    weights="examples",
    accept="evidence",
    compare="directions",
    finish=True,
)
_TABLE_OF_NUMBERS = _TABLE._replace(lr=0.1, steps=5, whiten=True)
_TABLE_OF_CLASSES = _TABLE._replace(lr=3.0, decay=0.94, steps=5)
_LARGE_TABLE = _TABLE._replace(lr=1.0, rounds=60, decay=0.96, steps=50, batch=64, keep="best")
"""A perceptron needs many steps, and a step on a batch is much cheaper than one on all examples."""
_PICTURES = Defaults(lr=0.1, steps=5, batch=16)
"""A round of a convolutional network takes seconds with these, for fifty clients on one core."""
WHITENED_LR, WHITENED_STEPS = 0.3, 1
"""With uncorrelated features one step goes a long way; clients that take several pull the mean off the optimum."""
CLUSTER_ROUNDS, CLUSTER_DECAY = 300, 0.99
"""For whitened descent within clusters, where the features are correlated differently than over all clients."""
LINEAR = ("linear", "linear-regression")
"""Names of models whose descent can be whitened."""
ALONE_ROUNDS, ALONE_STEPS = 60, 10
"""For local training, in which a client keeps the best of its models and so cannot overfit by training too long."""
IN_ITS_OWN_COORDINATES = {"weight_decay", "proximal", "clip_gradient", "mu", "pull"}
"""Settings that are lengths in the model's own coordinates: if one is given, descent is not whitened."""
ONCE = "alone"
"""The name of settings for local training that happens once, not in every round."""
ADAM_LR = 0.01
"""The default step size of Adam, whose steps do not scale with the gradient."""


def _gradient_lr(schema: DataSchema) -> float:
    """A stable step size for averaged gradients.

    The squared error of d standardised features has curvature at most 2 (d + 1), which is reached if all features are
    perfectly correlated; cross-entropy has less.
    """
    return min(0.1, 0.5 / (schema.size + 1))


def with_defaults(algorithm: type, given: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """Complete settings, as plain values: those given, else the defaults for the data, else the algorithm's own.

    Nested settings are completed field by field, so that giving `local.lr` does not affect `local.steps`.
    """
    settings, name = dict(given), _name_in_catalogue(algorithm)
    if name == "alone" and defaults.keep is not None:
        if {"rounds", "local"} & given.keys():  # the user asks for training
            defaults = defaults._replace(keep="best")
        steps = None if defaults.steps is None else max(defaults.steps, ALONE_STEPS)
        defaults = defaults._replace(rounds=ALONE_ROUNDS, steps=steps, decay=1.0, whiten=False)
    if given.get("averaging") == "gradients" and defaults.gradient_lr is not None:
        defaults = defaults._replace(lr=defaults.gradient_lr, safe=False, decay=1.0, whiten=False)
    if given.get("privacy"):  # privacy weights clients equally, and does not cover later stages
        defaults = defaults._replace(weights=None, finish=False)
    if given.keys() & IN_ITS_OWN_COORDINATES:
        defaults = defaults._replace(whiten=False)
    stage = defaults._replace(rounds=CLUSTER_ROUNDS, decay=CLUSTER_DECAY) if defaults.whiten else defaults
    if name in ("fedx", "fedsoft"):
        defaults = stage
    if name == "fedsoft":  # its models are drawn together in every round, and short steps cannot keep them apart
        defaults = defaults._replace(decay=1.0)
    for field in dataclasses.fields(algorithm):
        own, value = field.default, given.get(field.name, {})
        if field.name == "rounds" and defaults.rounds is not None:
            settings.setdefault("rounds", defaults.rounds)
        elif field.name in ("keep", "weights", "accept", "compare") and getattr(defaults, field.name) is not None:
            settings.setdefault(field.name, getattr(defaults, field.name))
        elif field.name == "finish" and field.name not in given and defaults.finish:
            training: dict[str, Any] = {**to_dict(FedAvg()), **with_defaults(FedAvg, {}, stage)}
            settings["finish"] = {**training, "rounds": min(training["rounds"], given.get("rounds", math.inf))}
        elif isinstance(value, Mapping) and isinstance(own, Descent):
            once = field.name == ONCE
            settings[field.name] = _descent(own, value, defaults._replace(steps=None) if once else defaults)
        elif isinstance(value, Mapping) and dataclasses.is_dataclass(own) and not isinstance(own, type):
            settings[field.name] = {**to_dict(own), **with_defaults(type(own), value, stage)}
    return settings


def _descent(own: Descent, given: Mapping[str, Any], defaults: Defaults) -> dict[str, Any]:
    """Complete the settings of descent. A step size given by the user is used as it is: not shortened or decayed."""
    suited, steps = to_dict(own), defaults.steps
    if "lr" not in given and given.get("optimiser") == "adam":
        suited["lr"] = ADAM_LR
    elif "lr" not in given and defaults.lr is not None and own.optimiser == "sgd":
        suited |= {"lr": defaults.lr, "decay": defaults.decay, "safe": defaults.safe}
        if defaults.whiten and not given.keys() & IN_ITS_OWN_COORDINATES:
            suited |= {"lr": WHITENED_LR, "whiten": True}
            steps = None if steps is None else WHITENED_STEPS
    if steps is not None:
        suited["steps"] = steps
    if defaults.batch is not None:
        suited["batch"] = defaults.batch
    if "epochs" in given:
        suited["steps"] = None  # steps and epochs are mutually exclusive
    if "linear_decay" in given:
        suited["decay"] = 1.0
    return {**suited, **given}


# ---- algorithms by name


def class_of(name: str) -> type[Algorithm]:
    """The class of an algorithm: from the catalogue by name, or user-defined by `package.module:Class`."""
    return class_at(name) if is_place(name) else entry_of(name).algorithm


def _name_in_catalogue(kind: type) -> str | None:
    place = place_of(kind)  # compare paths, not classes: those would all be imported
    return next((name for name, entry in CATALOGUE.items() if entry.place == place), None)


def name_of(algorithm: Algorithm) -> str:
    """The name of an algorithm in the catalogue, or the import path of its class."""
    return _name_in_catalogue(type(algorithm)) or place_of(type(algorithm))


def started(algorithm: Algorithm) -> Algorithm | None:
    """The part of an algorithm that continues from given models; None if there is none."""
    name = _name_in_catalogue(type(algorithm))
    return CATALOGUE[name].started(algorithm) if name else algorithm


def from_data(kind: type[Algorithm]) -> FromData:
    """The settings of an algorithm that come from the data: the true clusters of an oracle."""
    name = _name_in_catalogue(kind)
    return {"groups": _true_clusters} if name and CATALOGUE[name].role == "oracle" else {}


def _true_clusters(data: FederatedDataset | Engine) -> list[int]:
    name, truth = "a federation", None
    if isinstance(data, FederatedDataset):
        name, truth = repr(data.name), data.in_order().truth  # the order of clients on every engine
    if truth is None:
        raise InvalidInput(f"The true clusters of {name} are unknown, which this algorithm needs.")
    clusters: list[int] = truth.tolist()
    return clusters


def configure(
    algorithm: str | type[Algorithm],
    data: Any,
    *,
    model: Model | None = None,
    **settings: Any,
) -> Algorithm:
    """An algorithm with the defaults that suit the data; settings that you give take precedence.

    Name the algorithm, or pass `package.module:Class` or a class; pass the data as for `fit`. An engine whose clients
    hold their data, such as a federation, also works. Pass the `model` that you will pass to `fit`, if any: a network
    on a regression table needs other steps than the linear model that is the default there.

    >>> from corymb.datasets import digits
    >>> ifca = configure("ifca", digits(clients=8), k=4)
    >>> ifca.rounds, ifca.local.lr
    (40, 0.3)
    """
    kind = class_of(algorithm) if isinstance(algorithm, str) else algorithm
    data = data if hasattr(data, "open") and hasattr(data, "fingerprint") else as_dataset(data)  # engines pass through
    filled = {name: value(data) for name, value in from_data(kind).items() if name not in settings}
    # Algorithms that cluster examples have models of their own, and learn the same with labels as without.
    suited = Defaults() if labels_points(kind) else defaults_for(schema_of(data), int(data.sizes.sum()), model)
    complete = with_defaults(kind, {**filled, **settings}, suited)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    # A misspelt setting is reported before a missing one, by from_dict.
    known = settings.keys() <= {field.name for field in fields}
    for field in fields if known else ():
        if field.name not in complete and field.default is field.default_factory:
            name = algorithm if isinstance(algorithm, str) else algorithm.__name__
            raise InvalidInput(f"{name} needs {field.name}: give it as --{field.name} or {field.name}=....")
    return from_dict(kind, complete)
