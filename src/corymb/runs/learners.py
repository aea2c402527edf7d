"""Models for the data: by name, user-defined, or a default for each kind of data."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn, no_grad

from corymb.choices import Dropout
from corymb.core.client import Client, on_client
from corymb.core.federation import Federation, TooFewReplies
from corymb.core.objective import Examples, Objective, model_takes
from corymb.data.schema import DataSchema
from corymb.engines.host import one_line
from corymb.engines.isolation import isolated
from corymb.keys import root
from corymb.local import loss
from corymb.models import ModelLike, Network, char_lstm, cnn, ifca_cifar, mlp, resnet9
from corymb.models.adversarial import Convolutional, Dense
from corymb.models.drawing import KeyedDraws
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
"""A linear layer starts at torch's initial values times this: at 0, the models of all clusters would be equal."""
OWN = "own"
"""The recorded name of a model given as a Python object."""


@dataclass(frozen=True)
class Named:
    """A model available by name."""

    description: str
    make: Callable[[DataSchema], ModelLike | Objective]


class Learner(NamedTuple):
    """An objective and the name of its model."""

    objective: Objective
    name: str


@dataclass(frozen=True)
class NearZero:
    """Makes a module whose parameters start near 0.

    Directions that a client's few examples do not determine keep their initial values, so a random start would add
    permanent noise.
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
    # Centring removes the overall intercept, but clusters may differ in theirs.
    return LinearRegression(schema.size, intercept=schema.standardise)


def _mlp(schema: DataSchema) -> ModelLike:
    return mlp(schema.size, [hidden_of(schema)], outputs(schema))


def hidden_of(schema: DataSchema) -> int:
    """The width of a perceptron's hidden layer."""
    return 32 if schema.size <= 100 else 200


def _cnn(schema: DataSchema) -> ModelLike:
    channels, height, width = schema.features if schema.picture else (0, 0, 1)
    require(
        height == width and height >= 4,
        f"Model 'cnn' needs square images [channels, side, side], but the examples have shape {list(schema.features)}.",
    )
    return cnn(channels, height, outputs(schema))


def _resnet9(schema: DataSchema) -> ModelLike:
    side = min(schema.features[1:]) if schema.picture else 0
    require(
        side >= 8,
        f"Model 'resnet9' needs images [channels, height, width] of at least 8 x 8, but the examples have shape "
        f"{list(schema.features)}.",
    )
    return resnet9(schema.features[0], outputs(schema))


def _ifca_cifar(schema: DataSchema) -> ModelLike:
    channels, *sides = schema.features if schema.picture else (0, 0)
    require(
        channels == 3 and min(sides) >= SIDE,
        f"Model 'ifca-cifar' needs colour images [3, height, width] of at least {SIDE} x {SIDE}, such as CIFAR-10, but "
        f"the examples have shape {list(schema.features)}.",
    )
    return ifca_cifar(outputs(schema))


def _char_lstm(schema: DataSchema) -> ModelLike:
    text = schema.codes and len(schema.features) == 1 and schema.task == "classification"
    require(
        text, "Model 'char-lstm' needs text: codes of characters, with the next character as label, as in shakespeare."
    )
    return char_lstm(outputs(schema))


def _flow(make: Callable[[int], Flow]) -> Callable[[DataSchema], Objective]:
    return lambda schema: Density(make(schema.size))


def _gaussian(schema: DataSchema) -> Objective:
    """A Gaussian density, of the principal components if there are many features."""
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
        f"Model 'clustergan-cnn' needs square images with a side of 4, 8, 12, ..., but the examples have shape "
        f"{list(schema.features)}.",
    )
    return ClusterGame(Convolutional(channels, height))


MODELS: Mapping[str, Named] = MappingProxyType(
    {
        "linear": Named("one linear layer with a bias, initialised near 0", _linear),
        "linear-regression": Named("y = x . theta, with an intercept for tables in raw units", _linear_regression),
        "mlp": Named("one hidden layer with ReLU: 32 wide for up to 100 inputs, else 200", _mlp),
        "cnn": Named("the convolutional network of McMahan et al. for square images", _cnn),
        "resnet9": Named("ResNet9 with group normalisation, for colour images; slow on a CPU", _resnet9),
        "ifca-cifar": Named(
            "IFCA's network for CIFAR-10: two convolutions with local response normalisation, on central 24 x 24 crops",
            _ifca_cifar,
        ),
        "char-lstm": Named("LEAF's two-layer LSTM for predicting the next character; slow on a CPU", _char_lstm),
        "gaussian": Named("a density: a Gaussian; of 30 principal components for more than 64 inputs", _gaussian),
        "affine": Named("a density: an affine flow with a full matrix, equivalent to a Gaussian", _flow(Affine)),
        "diagonal": Named("a density: an affine flow with a diagonal matrix", _flow(Diagonal)),
        "shift": Named("a density: a centre with variance 1 in every direction", _flow(Shift)),
        "planar": Named("a density: a planar flow of 8 layers", _flow(Planar)),
        "realnvp": Named("a density: 8 affine couplings; cyclic quadrant masks for square images", _realnvp),
        "clustergan": Named(
            "generator, critic and encoder with two hidden layers: 128 wide for up to 100 inputs, else 512", _clustergan
        ),
        "clustergan-cnn": Named("the same with its authors' convolutions, for images", _clustergan_cnn),
    }
)


ENOUGH = 10
"""Training examples required per parameter of a perceptron; with fewer, the default for a table is a linear model."""


FOR_CODES = (
    "give a model that embeds them (model=..., --model); 'char-lstm' does so for text whose labels are the next "
    "characters, as in shakespeare"
)
"""Advice for features that are codes, for which there is no default model."""


def default_model(schema: DataSchema, examples: int) -> str:
    """The name of the default model for a schema and a total number of training examples."""
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
        return "linear"  # measured: on noisy tables of this size a perceptron overfits, and is never better
    square = schema.picture and schema.features[1] == schema.features[2] >= 16
    return "cnn" if square else "mlp"


def outputs(schema: DataSchema) -> int:
    """The number of outputs of a network."""
    return 1 if schema.task == "regression" else len(schema.classes)


def learner_for(model: Model | None, schema: DataSchema, *, examples: int = 0, dropout: Dropout = "on") -> Learner:
    """The objective for a model and data of this schema; without a model, the default for this many examples.

    A model is a function that returns a `torch.nn.Module`, a module, an objective, its class, a function that returns
    one, one of the names in `MODELS`, or the import path of any of these: `package.module:name`.
    """
    name = model if isinstance(model, str) else OWN if model is not None else default_model(schema, examples)
    found = _made(_named(name, schema) if isinstance(name, str) and name != OWN else model, name)
    if not isinstance(found, nn.Module) and hasattr(found, "losses"):
        return Learner(completed(found), name)
    if not callable(found):
        raise InvalidInput(
            f"The model is a {type(found).__name__}: wanted a torch.nn.Module, a function that returns one, or an "
            "objective with init, losses and scores."
        )
    try:
        with isolated():
            network = Network(found, dropout=dropout)
    except InvalidInput:
        raise
    except Exception as error:  # raised by the user's function
        raise InvalidInput(f"The model {name!r} cannot be created: {one_line(error)}.") from error
    if schema.task == "regression":
        return Learner(Regression(network), name)
    return Learner(Classification(network, len(schema.classes)), name)


def _made(found: Any, name: str) -> Any:
    """The objective, if its class or a function that returns it was given; otherwise the argument itself."""
    of_class = isinstance(found, type) and not issubclass(found, nn.Module) and hasattr(found, "losses")
    if not of_class and not isinstance(found, FunctionType):
        return found
    try:
        with isolated(), KeyedDraws(0):  # a function that returns a module draws random parameters
            made = found()
    except Exception as error:
        if not of_class:
            return found  # the error is reported where the module is built
        raise InvalidInput(
            f"The objective {found.__name__} cannot be created without arguments: {one_line(error)}. Give an "
            f"instance, {found.__name__}(...), or a function that returns one."
        ) from error
    return found if isinstance(made, nn.Module) or not hasattr(made, "losses") else made


def _named(name: str, schema: DataSchema) -> Any:
    if ":" in name:
        return imported(name)
    require(
        name in MODELS,
        f"There is no model {name!r}. {did_you_mean(name, MODELS)} For your own: package.module:function.",
    )
    return MODELS[name].make(schema)


def imported(place: str, what: str = "the model") -> Any:
    """Import the object at `package.module:name`; modules in the working folder are found too."""
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
        except Exception as error:  # the user's module may raise anything
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
"""The number of examples on which a model is tried before a run."""


@on_client
def try_model(client: Client, model: Params) -> Tensor:
    """A model's loss on a few examples; fails if the model does not accept them."""
    return loss(client, model, on=Examples(*(t[:TRIED] for t in client.train)))


def check_model(fed: Federation) -> None:
    """Try the model at one client before the first round, so that a mismatch is reported in one line.

    If that fails, it is tried at all clients: only if all of them fail is the model to blame.
    """
    clients, model = fed.evaluation().clients, fed.objective.init(root(0))
    with (
        model_takes(),
        suppress(TooFewReplies),
    ):  # non-finite losses may be due to single clients: the run reports those
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
