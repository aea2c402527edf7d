"""Which model learns from which data: models by name, users' own, and a default for each kind of data."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn, no_grad

from corymb.choices import Dropout
from corymb.core.client import Client, on_client
from corymb.core.federation import Federation, TooFewReplies
from corymb.core.objective import Examples, Objective, model_takes
from corymb.data.schema import DataSchema
from corymb.engines.host import one_line
from corymb.engines.room import isolated
from corymb.keys import root
from corymb.local import loss
from corymb.models import ModelLike, Network, char_lstm, cnn, ifca_cifar, mlp, resnet9
from corymb.models.adversarial import Convolutional, Dense
from corymb.models.flows import Affine, Diagonal, Flow, Pixels, Planar, Projected, RealNVP, Shift
from corymb.models.ifca_cifar import SIDE
from corymb.models.mlp import Perceptron
from corymb.objectives import Classification, Density, LinearRegression, Regression
from corymb.objectives.adversarial import ClusterGame
from corymb.objectives.partial import completed
from corymb.settings import InvalidInput, did_you_mean, first_line, require
from corymb.trees import Params

Model = ModelLike | Objective | str
START = 0.1
"""A linear layer starts at this part of torch's values: not at 0, where all clusters' models would be the same."""
OWN = "own"
"""What a model is called that is a Python object of the user's."""


@dataclass(frozen=True)
class Named:
    """A model that can be given by name."""

    description: str
    make: Callable[[DataSchema], ModelLike | Objective]


class Learner(NamedTuple):
    """An objective and the name its model goes by."""

    objective: Objective
    name: str


@dataclass(frozen=True)
class NearZero:
    """Makes a module whose parameters begin near 0.

    What a client's few examples do not determine stays as it began: a random start would be noise for good.
    """

    make: Perceptron

    def __call__(self) -> nn.Module:
        """A module with fresh parameters."""
        module = self.make()
        with no_grad():
            for value in module.parameters():
                value.mul_(START)
        return module


def _linear(schema: DataSchema) -> ModelLike:
    return NearZero(mlp(schema.size, [], outputs(schema)))


def _linear_regression(schema: DataSchema) -> Objective:
    require(schema.task == "regression", "Model 'linear-regression' is for regression: use 'linear' for classes.")
    return LinearRegression(schema.size, intercept=schema.standardise)  # centred data hide one that clusters differ in


def _mlp(schema: DataSchema) -> ModelLike:
    return mlp(schema.size, [hidden_of(schema)], outputs(schema))


def hidden_of(schema: DataSchema) -> int:
    """How wide a perceptron is."""
    return 32 if schema.size <= 100 else 200


def _cnn(schema: DataSchema) -> ModelLike:
    channels, height, width = schema.features if schema.picture else (0, 0, 1)
    require(
        height == width and height >= 4,
        f"Model 'cnn' wants square pictures [channels, side, side], the examples have shape {list(schema.features)}.",
    )
    return cnn(channels, height, outputs(schema))


def _resnet9(schema: DataSchema) -> ModelLike:
    side = min(schema.features[1:]) if schema.picture else 0
    require(
        side >= 8,
        f"Model 'resnet9' wants pictures [channels, rows, columns] of 8 or more, the examples have shape "
        f"{list(schema.features)}.",
    )
    return resnet9(schema.features[0], outputs(schema))


def _ifca_cifar(schema: DataSchema) -> ModelLike:
    channels, *sides = schema.features if schema.picture else (0, 0)
    require(
        channels == 3 and min(sides) >= SIDE,
        f"Model 'ifca-cifar' wants pictures in colour [3, rows, columns] of {SIDE} or more, as CIFAR-10 has them: the "
        f"examples have shape {list(schema.features)}.",
    )
    return ifca_cifar(outputs(schema))


def _char_lstm(schema: DataSchema) -> ModelLike:
    text = schema.codes and len(schema.features) == 1 and schema.task == "classification"
    require(
        text, "Model 'char-lstm' wants texts: codes of characters, and the next one of each, as shakespeare has them."
    )
    return char_lstm(outputs(schema))


def _flow(make: Callable[[int], Flow]) -> Callable[[DataSchema], Objective]:
    return lambda schema: Density(make(schema.size))


def _gaussian(schema: DataSchema) -> Objective:
    """In a space of principal components where examples are long."""
    d = schema.size
    return Density(Affine(d) if d <= 64 else Projected(Affine(30), d))


def _realnvp(schema: DataSchema) -> Objective:
    d = schema.size
    if schema.picture and schema.features[1] == schema.features[2] >= 2:
        return Density(Pixels(RealNVP(d, side=schema.features[1], mask="cyclic")))
    return Density(RealNVP(d, mask="halves"))


def _clustergan(schema: DataSchema) -> Objective:
    return ClusterGame(Dense(schema.size, hidden=128 if schema.size <= 100 else 512, bounded=schema.picture))


def _clustergan_cnn(schema: DataSchema) -> Objective:
    channels, height, width = schema.features if schema.picture else (0, 0, 1)
    require(
        height == width and height % 4 == 0,
        f"Model 'clustergan-cnn' wants square pictures with a side of 4, 8, 12, ...: the examples have shape "
        f"{list(schema.features)}.",
    )
    return ClusterGame(Convolutional(channels, height))


MODELS: Mapping[str, Named] = MappingProxyType(
    {
        "linear": Named("one linear layer with a bias, near 0 at first", _linear),
        "linear-regression": Named(
            "y = x . theta, with an intercept for tables in units of their own", _linear_regression
        ),
        "mlp": Named("one hidden layer with ReLU: 32 wide for up to 100 inputs, else 200", _mlp),
        "cnn": Named("the convolutional network of McMahan et al. for square pictures", _cnn),
        "resnet9": Named("ResNet9 with group normalisation, for pictures in colour; slow on a CPU", _resnet9),
        "ifca-cifar": Named(
            "IFCA's network for CIFAR-10: two convolutions, local responses, the middle 24 x 24 of pictures",
            _ifca_cifar,
        ),
        "char-lstm": Named("LEAF's two-layer LSTM: characters in, the next one out; slow on a CPU", _char_lstm),
        "gaussian": Named("a density: a Gaussian; of 30 principal components for more than 64 inputs", _gaussian),
        "affine": Named("a density: an affine flow with a full matrix, that is a Gaussian", _flow(Affine)),
        "diagonal": Named("a density: an affine flow with a diagonal matrix", _flow(Diagonal)),
        "shift": Named("a density: a centre with variance 1 in every direction", _flow(Shift)),
        "planar": Named("a density: a planar flow of 8 layers", _flow(Planar)),
        "realnvp": Named("a density: 8 affine couplings; cyclic quadrant masks for square pictures", _realnvp),
        "clustergan": Named(
            "generator, critic and encoder with two hidden layers: 128 wide for up to 100 inputs, else 512", _clustergan
        ),
        "clustergan-cnn": Named("the same with its authors' convolutions, for pictures", _clustergan_cnn),
    }
)


ENOUGH = 10
"""Training examples for each parameter of a perceptron; with fewer, a table gets a linear model."""


FOR_CODES = (
    "give a model that embeds them (model=..., --model); 'char-lstm' does, where they are characters and labels the "
    "next ones, as in shakespeare"
)
"""What to do about features that no model by name is right for without being told."""


def default_model(schema: DataSchema, examples: int) -> str:
    """The name of the model to use if none is given, by what the examples are like and how many there are in all."""
    require(not schema.codes, f"The features are codes, not numbers: {FOR_CODES}.")
    if schema.task == "density":
        return "affine" if schema.size <= 64 else "gaussian"
    if schema.linear:
        return "linear-regression"
    if schema.task == "regression" and not schema.picture:
        return "linear"
    hidden = hidden_of(schema)
    parameters = hidden * (schema.size + 1) + outputs(schema) * (hidden + 1)
    if schema.standardise and examples < ENOUGH * parameters:
        return "linear"  # measured: on noisy tables of this size a perceptron overfits, and nowhere is it better
    square = schema.picture and schema.features[1] == schema.features[2] >= 16
    return "cnn" if square else "mlp"


def outputs(schema: DataSchema) -> int:
    """How many outputs a network needs."""
    return 1 if schema.task == "regression" else len(schema.classes)


def learner_for(model: Model | None, schema: DataSchema, *, examples: int = 0, dropout: Dropout = "on") -> Learner:
    """The objective that fits a model to data of this schema; without a model, to so many training examples.

    A model is a function that makes a `torch.nn.Module`, a module, an objective, one of the names in `MODELS`, or
    the place of any of these: `package.module:name`.
    """
    name = model if isinstance(model, str) else OWN if model is not None else default_model(schema, examples)
    found = _named(name, schema) if isinstance(name, str) and name != OWN else model
    if not isinstance(found, nn.Module) and hasattr(found, "losses"):
        return Learner(completed(found), name)
    if not callable(found):
        raise InvalidInput(
            f"The model is a {type(found).__name__}: wanted a torch.nn.Module, a function that makes one, or an "
            "objective with init, losses and scores."
        )
    try:
        with isolated():
            network = Network(found, dropout=dropout)
    except InvalidInput:
        raise
    except Exception as error:  # a function of the user's own that does not make a model
        raise InvalidInput(f"The model {name!r} cannot be made: {one_line(error)}.") from error
    if schema.task == "regression":
        return Learner(Regression(network), name)
    return Learner(Classification(network, len(schema.classes)), name)


def _named(name: str, schema: DataSchema) -> Any:
    if ":" in name:
        return imported(name)
    require(
        name in MODELS, f"There is no model {name!r}. {did_you_mean(name, MODELS)} Your own is package.module:function."
    )
    return MODELS[name].make(schema)


def imported(place: str, what: str = "the model") -> Any:
    """What `package.module:name` refers to; modules in the working folder are found too."""
    module_name, _, name = place.partition(":")
    with _working_folder_importable():
        require(
            re.fullmatch(r"\w+(\.\w+)*:\w+", place) is not None, f"{place!r} is not of the form package.module:name."
        )
        try:
            with isolated():
                module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise InvalidInput(f"The module {module_name!r} cannot be imported: {first_line(error)}.") from error
            raise InvalidInput(f"There is no module {module_name!r} to take {what} {place!r} from.") from None
        except Exception as error:  # whatever is wrong with somebody's module, it cannot be used
            raise InvalidInput(f"The module {module_name!r} cannot be imported: {one_line(error)}.") from error
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


TRIED = 256
"""Examples that a model is tried on before a run."""


@on_client
def try_model(client: Client, model: Params) -> Tensor:
    """A model's loss on a few examples; fails if the model does not accept them."""
    return loss(client, model, on=Examples(*(t[:TRIED] for t in client.train)))


def check_model(fed: Federation) -> None:
    """Try the model at one client before the first round, so that a mismatch is reported in one line.

    What fails there is tried everywhere: an error is the model's only if it is everybody's.
    """
    clients, model = fed.evaluation().clients, fed.objective.init(root(0))
    with model_takes(), suppress(TooFewReplies):  # losses that are not finite may be some clients' fault: the run tells
        try:
            clients[:1].map(try_model, model)
        except TooFewReplies:
            clients.map(try_model, model)


@contextmanager
def of_standardised(features: bool) -> Iterator[None]:
    """What to do where a model finds no row for a code, if features are standardised, and codes with them."""
    try:
        yield
    except InvalidInput as error:
        if not (features and isinstance(error.__cause__, IndexError)):
            raise
        how = "features are standardised: where the model takes codes out of them, say scale='none' (--scale none)"
        raise InvalidInput(f"{str(error).removesuffix('.')}; {how}.") from error
