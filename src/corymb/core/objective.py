"""What is learned, and the examples it is learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol, Self, TypeGuard

import torch
from torch import Tensor

from corymb.keys import Key, fold
from corymb.settings import InvalidInput, first_line, said
from corymb.trees import Params


class Examples(NamedTuple):
    """Examples, each with a weight. Weight 0 marks padding: such rows do not count in any mean."""

    x: Tensor
    y: Tensor
    weight: Tensor


class Draws(NamedTuple):
    """What is random in one step of training: the same for an example alone, in a batch and in a padded stack."""

    key: Key
    """The client's, for this training."""
    step: int | Tensor = 0
    rows: Tensor | None = None
    """Where each example stands among all of the client's; None where these are all of them."""

    def keys(self, m: int) -> Key:
        """A key for each of m examples: m."""
        rows = torch.arange(m, device=self.key.device) if self.rows is None else self.rows
        return fold(fold(self.key, "training", self.step), rows)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What differs from client to client, for vmap."""
        return (self.key,) if self.rows is None else (self.key, self.rows)

    def of(self, tensors: tuple[Tensor, ...]) -> Draws:
        """One client's, from its own tensors."""
        return Draws(tensors[0], self.step, *tensors[1:])


class Objective(Protocol):
    """What is learned. It knows nothing of the federation; everything is per example and never reduced early.

    Law: an example's loss does not depend on the other examples. Your own score is a class with these members; nothing
    elsewhere refers to scores by name. An objective that trains on another loss than it reports is also a `Trained`. An
    objective may also have `measures` (`corymb.objectives.measures`): further metrics of its predictions, and the
    trivial prediction that they are compared with.
    """

    @property
    def score_name(self) -> str:
        """The name of what `scores` returns, for metrics: `accuracy` becomes `test_accuracy`."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a higher score is better."""
        ...

    @property
    def squared(self) -> float | None:
        """c if the loss is c (ŷ − y)²; None for any other loss."""
        ...

    def init(self, key: Key) -> Params:
        """A fresh model."""
        ...

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The loss of each example, differentiable in `params`."""
        ...

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """The reported score of each example: 0/1 accuracy, log-density, squared error."""
        ...

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """A model's prediction for each example: logits, or a number."""
        ...

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """The mixture of the predictions of c models (c m ...), with weights (c); of the same kind as `predict`'s."""
        ...

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """The score of each example, from predictions."""
        ...

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Self:
        """The same objective on another device or in another precision."""
        ...

    def describe(self) -> str:
        """A description for fingerprints and run records: equal exactly if the objectives are."""
        ...


class Trained(Protocol):
    """An objective whose gradients are of another loss than `losses`: with dropout, or with weights of classes."""

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """What a step of training makes smaller, for each example. An example's depends on its own draws alone."""
        ...


def has_training_losses(objective: object) -> TypeGuard[Trained]:
    """Whether an objective is `Trained`, by itself or by what it wraps.

    From Python 3.12 on, `isinstance` of a protocol does not see what a wrapper hands on in `__getattr__`.
    """
    return hasattr(objective, "training_losses")


class Coordinates(NamedTuple):
    """Other coordinates for the models of an objective; an objective that has such for descent has `whitened`."""

    objective: Objective
    """The same losses, for examples and models in these coordinates."""
    examples: Callable[[Examples], Examples]
    into: Callable[[Params], Params]
    back: Callable[[Params], Params]


def whitened(objective: Objective) -> Coordinates | None:
    """The coordinates in which features have second moment I, as far as an objective knows them."""
    there: Coordinates | None = getattr(objective, "whitened", None)
    return there


@contextmanager
def model_takes(x: Tensor | None = None) -> Iterator[None]:
    """Whatever goes wrong inside is a model that cannot take the examples: one line, with what to do about it."""
    try:
        yield
    except InvalidInput:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        shape = "" if x is None else f" (one batch of x has shape {list(x.shape)})"
        hint = "" if x is None else _hint(error, x)
        raise InvalidInput(f"The model cannot take this data: {first_line(error)}{shape}{hint}.") from error


def _hint(error: Exception, x: Tensor) -> str:
    """What else to say where numbers meet a model that embeds codes, or codes one that does not, or too few of them."""
    if x.dim() == 4 and x.shape[1] == 1 and "3D" in said(error):
        return "; features with two axes are taken as pictures: for windows of a signal say scale='none' (--scale none)"
    if x.is_floating_point():
        embeds = "for embedding" in said(error)
        return "; it embeds codes: say that they are (scale='codes', --scale codes)" if embeds else ""
    if isinstance(error, IndexError):
        return f"; codes are up to {int(x.max())}: its embedding wants more rows than that"
    return "; the features are codes: it has to embed them" if "dtype" in said(error) else ""
