"""Which model learns from which data: models by name, users' own, and a sensible one for every kind of data."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

from torch import nn

from corymb.core.client import Objective
from corymb.data.schema import DataSchema
from corymb.models import ModelLike, Network, cnn, mlp
from corymb.objectives import Classification, LinearRegression, Regression
from corymb.settings import InvalidInput, did_you_mean, require

Dropout = Literal["refuse", "off"]
Model = ModelLike | Objective | str
OWN = "own"
"""The name of a model that has none: a Python object."""


@dataclass(frozen=True)
class Named:
    """A model that has a name."""

    description: str
    make: Callable[[DataSchema], ModelLike | Objective]


class Learner(NamedTuple):
    """An objective and the name its model goes by."""

    objective: Objective
    name: str


def _linear(kind: DataSchema) -> ModelLike:
    return mlp(kind.size, [], outputs(kind))


def _linear_regression(kind: DataSchema) -> Objective:
    require(kind.task == "regression", "Model 'linear-regression' is for regression: use 'linear' for classes.")
    return LinearRegression(kind.size)


def _mlp(kind: DataSchema) -> ModelLike:
    return mlp(kind.size, [32 if kind.size <= 100 else 200], outputs(kind))


def _cnn(kind: DataSchema) -> ModelLike:
    channels, height, width = kind.features if kind.picture else (0, 0, 1)
    require(
        height == width and height >= 4,
        f"Model 'cnn' wants square pictures [channels, side, side], the examples have shape {list(kind.features)}.",
    )
    return cnn(channels, height, outputs(kind))


MODELS: Mapping[str, Named] = MappingProxyType(
    {
        "linear": Named("one linear layer with a bias", _linear),
        "linear-regression": Named("y = x . theta without an intercept, as the papers have it", _linear_regression),
        "mlp": Named("one hidden layer with ReLU: 32 wide for up to 100 inputs, else 200", _mlp),
        "cnn": Named("the convolutional network of McMahan et al. for square pictures", _cnn),
    }
)


def default_model(kind: DataSchema) -> str:
    """The name of the model that is used where none is given."""
    require(not kind.codes, "The features are codes, not numbers: give a model that embeds them (model=..., --model).")
    if kind.linear:
        return "linear-regression"
    if kind.task == "regression" and not kind.picture:
        return "linear"
    square = kind.picture and kind.features[1] == kind.features[2] >= 16
    return "cnn" if square else "mlp"


def outputs(kind: DataSchema) -> int:
    """How many numbers a network gives for an example."""
    return 1 if kind.task == "regression" else len(kind.classes)


def learner_for(model: Model | None, kind: DataSchema, *, dropout: Dropout = "refuse") -> Learner:
    """The objective for data of this kind with `model`.

    A model is a function that makes a `torch.nn.Module`, a module, an objective, one of the names in `MODELS`, or
    where to find any of these: `package.module:name`.
    """
    name = model if isinstance(model, str) else OWN if model is not None else default_model(kind)
    found = _named(name, kind) if isinstance(name, str) and name != OWN else model
    if not isinstance(found, nn.Module) and hasattr(found, "losses"):
        return Learner(cast(Objective, found), name)
    if not callable(found):
        raise InvalidInput(
            f"The model is a {type(found).__name__}: wanted a torch.nn.Module, a function that makes one, or an "
            "objective with init, losses and scores."
        )
    network = Network(found, dropout=dropout)
    if kind.task == "regression":
        return Learner(Regression(network), name)
    return Learner(Classification(network, len(kind.classes)), name)


def _named(name: str, kind: DataSchema) -> Any:
    if ":" in name:
        return _imported(name)
    require(
        name in MODELS, f"There is no model {name!r}. {did_you_mean(name, MODELS)} Your own is package.module:function."
    )
    return MODELS[name].make(kind)


def _imported(place: str) -> Any:
    """What stands under `package.module:name`; the working folder is looked at too."""
    module_name, _, name = place.partition(":")
    with _working_folder_importable():
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise  # the module is there, but something that it wants is not
            raise InvalidInput(f"There is no module {module_name!r} to take the model {place!r} from.") from None
        except ValueError:
            raise InvalidInput(f"{place!r} is not of the form package.module:name.") from None
    if not hasattr(module, name):
        public = [other for other in vars(module) if not other.startswith("_")]
        raise InvalidInput(f"Module {module_name!r} has no {name!r}. {did_you_mean(name, public)}")
    return getattr(module, name)


@contextmanager
def _working_folder_importable() -> Iterator[None]:
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)
