"""Objectives (losses, scores and predictions per example), and the examples they are evaluated on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol, Self, TypeGuard

import torch
from torch import Tensor

from corymb.keys import Key, fold, fold_number, fold_rows
from corymb.settings import InvalidInput, error_text, first_line
from corymb.trees import Params


class Examples(NamedTuple):
    """Examples, each with a weight. Weight 0 marks padding: such rows do not count in any mean."""

    x: Tensor
    y: Tensor
    weight: Tensor


class Draws(NamedTuple):
    """The randomness of one training step: the same for an example alone, in a batch and in a padded stack."""

    key: Key
    """The client's key for this training."""
    step: int | Tensor = 0
    rows: Tensor | None = None
    """Each example's index among all of the client's; None if these are all of them."""
    step_key: Key | None = None
    """The client's key for this step, if it is computed already (`with_step_key`)."""

    def with_step_key(self) -> Draws:
        """The same draws, for which `keys` does not read the number of the step."""
        if self.key.dim() or self.key.device.type != "cpu":
            return self._replace(step_key=fold(self.key, "training", self.step))
        number = fold_number(fold_number(int(self.key), "training"), int(self.step))
        return self._replace(step_key=torch.tensor(number))

    def keys(self, m: int) -> Key:
        """A key for each of m examples: m."""
        rows = torch.arange(m, device=self.key.device) if self.rows is None else self.rows
        of_step = fold(self.key, "training", self.step) if self.step_key is None else self.step_key
        return fold_rows(of_step, rows)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that differ between clients, for vmap."""
        return tuple(t for t in (self.key, self.rows, self.step_key) if t is not None)

    def of(self, tensors: tuple[Tensor, ...]) -> Draws:
        """The draws of one client, from its own tensors."""
        given = iter(tensors)
        key = next(given)
        rows, step_key = (None if own is None else next(given) for own in (self.rows, self.step_key))
        return Draws(key, self.step, rows, step_key)


class Objective(Protocol):
    """What is learned: a loss, a score and a prediction per example. It knows nothing of the federation.

    Law: an example's loss does not depend on the other examples. A custom objective is a class with these members;
    nothing else refers to scores by name. An objective that trains on another loss than it reports is also a `Trained`.
    An objective may also have `measures` (`corymb.objectives.measures`): further metrics of its predictions, and the
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
        """The mixture of the predictions of c models (c m ...) with weights (c), in the form that `predict` returns."""
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
    """An objective that trains on another loss than `losses`: with dropout, or with class weights."""

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """The training loss of each example; it depends only on that example and its own draws."""
        ...


def has_training_losses(objective: object) -> TypeGuard[Trained]:
    """Whether an objective, or the one it wraps, is `Trained`.

    Since Python 3.12, `isinstance` with a protocol ignores attributes that a wrapper forwards in `__getattr__`.
    """
    return hasattr(objective, "training_losses")


class Coordinates(NamedTuple):
    """A change of coordinates for an objective's models; objectives that have one expose it as `whitened`."""

    objective: Objective
    """The same losses, for examples and models in these coordinates."""
    examples: Callable[[Examples], Examples]
    into: Callable[[Params], Params]
    back: Callable[[Params], Params]


def whitened(objective: Objective) -> Coordinates | None:
    """The coordinates in which features have second moment I, if the objective knows them."""
    coordinates: Coordinates | None = getattr(objective, "whitened", None)
    return coordinates


@contextmanager
def model_takes(x: Tensor | None = None) -> Iterator[None]:
    """Turn errors raised inside into one line saying that the model cannot take the data, with advice."""
    try:
        yield
    except InvalidInput:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        shape = "" if x is None else f" (one batch of x has shape {list(x.shape)})"
        hint = "" if x is None else _hint(error, x)
        raise InvalidInput(f"The model cannot take this data: {first_line(error)}{shape}{hint}.") from error


def _hint(error: Exception, x: Tensor) -> str:
    """Advice for features that were read as pictures or codes, and a model that takes something else."""
    if x.dim() == 4 and x.shape[1] == 1 and "3D" in error_text(error):
        return "; features with two axes are read as pictures: for windows of a signal use scale='none' (--scale none)"
    if x.is_floating_point():
        embeds = "for embedding" in error_text(error)
        return "; it embeds codes: declare the features as such (scale='codes', --scale codes)" if embeds else ""
    if isinstance(error, IndexError):
        return f"; codes go up to {int(x.max())}: its embedding needs more rows than that"
    return "; the features are codes: use a model that embeds them" if "dtype" in error_text(error) else ""
