"""Means and scales, and the objective that applies them to the examples at the clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.core.objective import Coordinates, Draws, Examples, Objective
from corymb.keys import Key
from corymb.local.reference import training_losses
from corymb.objectives.linear_form import LinearForm, linear_form, logit_form
from corymb.objectives.measures import measures_of
from corymb.objectives.module import limited, unlimited
from corymb.trees import Params, map_tensors

UNLIMITED = torch.tensor(torch.inf)
AS_THEY_ARE = torch.empty(0)


class Standard(NamedTuple):
    """Means and scales of the features, and of the targets of a regression (0 and 1 for classes)."""

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    limit: Tensor = UNLIMITED
    """Standard deviations beyond which features grow logarithmically; infinite for no limit."""
    target_limit: Tensor = UNLIMITED
    """The same for targets, in training only: scores use the original targets."""
    root: Tensor = AS_THEY_ARE
    """The matrix (d d) that decorrelates standardised features, for whitened descent; empty if it is not used."""

    def restored(self, z: Tensor) -> Tensor:
        """Standardised features in the units of the data; those beyond the limit are no longer limited."""
        return unlimited(z, self.limit) * self.scale + self.mean

    def uncentred(self) -> Standard:
        """The standardisation without centring targets, which keep their sign; limits stay as far from their mean."""
        moved = self.target_limit + (self.target_mean / self.target_scale).abs()
        return self._replace(target_mean=torch.zeros_like(self.target_mean), target_limit=moved)


class Standardised:
    """An objective that sees standardised examples; its predictions and scores are in the units of the data."""

    def __init__(self, inner: Objective, standard: Standard) -> None:
        self.inner, self.standard = inner, standard
        self.score_name = inner.score_name
        self.higher_is_better = inner.higher_is_better
        self.squared = inner.squared
        self._limits, self._limits_targets = (
            bool(limit.isfinite().any()) for limit in (standard.limit, standard.target_limit)
        )
        self.measures = measures_of(inner)
        self.whitened = None if not len(standard.root) else self._whitened(standard.root)

    @property
    def linear(self) -> LinearForm | None:
        """The inner objective's form, applied to standardised examples."""
        return self._after(linear_form(self.inner))

    @property
    def logits(self) -> LinearForm | None:
        """The inner objective's form, applied to standardised examples."""
        return self._after(logit_form(self.inner))

    def _after(self, form: LinearForm | None) -> LinearForm | None:
        return None if form is None else form.after(self._features, self._learned_targets)

    @property
    def score_unit(self) -> Tensor:
        """The factor from a squared error in standard units to one in the units of the data."""
        return self.standard.target_scale.square()

    @property
    def loss_unit(self) -> float | None:
        """The inner objective's `loss_unit`, if its losses have no natural zero."""
        return getattr(self.inner, "loss_unit", None)

    @property
    def flow(self) -> object | None:
        """The inner objective's flow, if it is a density."""
        return getattr(self.inner, "flow", None)

    @property
    def space(self) -> Callable[[Params, Tensor], Tensor] | None:
        """The coordinates in which the inner objective compares standardised examples, if it defines them."""
        own = getattr(self.inner, "space", None)
        return None if own is None else lambda params, x: own(params, self.seen(x))

    def learned_targets(self, y: Tensor) -> Tensor:
        """Targets as used in training (limited), in the units of the data."""
        if not self._limits_targets:
            return y
        return self._learned_targets(y) * self.standard.target_scale + self.standard.target_mean

    def seen(self, x: Tensor) -> Tensor:
        """Examples as the inner objective sees them."""
        return self._features(x)

    def _whitened(self, root: Tensor) -> Coordinates | None:
        """The coordinates of whitened descent on the inner objective, with examples standardised once per descent."""
        form, d = linear_form(self.inner) or logit_form(self.inner), len(root)
        assert form is not None  # checked by `can_whiten`
        back = torch.linalg.inv(root.double()).to(root)

        def examples(on: Examples) -> Examples:
            learned = self._learned(on)
            return learned._replace(x=learned.x @ root)

        def turned(params: Params, matrix: Tensor) -> Params:
            theta = form.coefficients(params)
            found = form.parameters(torch.cat([theta[..., :d] @ matrix, theta[..., d:]], -1))
            return {name: found[name] for name in params}

        return Coordinates(
            self.inner, examples, lambda params: turned(params, back), lambda params: turned(params, root)
        )

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Standardised:
        """The same objective on another device or in another precision."""
        return Standardised(self.inner.to(device, dtype), map_tensors(lambda t: t.to(device, dtype), self.standard))

    def recipe(self) -> dict[str, Any]:
        """The arguments that rebuild this objective elsewhere: see `corymb.objectives.recipe`."""
        return {"inner": self.inner, "standard": self.standard}

    def init(self, key: Key) -> Params:
        """A fresh model."""
        return self.inner.init(key)

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The loss of each example, in standard units."""
        return self.inner.losses(params, self._learned(examples))

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """The loss of each example in training, in standard units."""
        return training_losses(self.inner, params, self._learned(examples), draws)

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """The score of each example, in the units of the data: a squared error grows with the square of the scale."""
        return self.inner.scores(params, self._standardised(examples)) * self.score_unit

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The prediction for each example of raw features, in the units of the data."""
        return self.inner.predict(params, self._features(x)) * self.standard.target_scale + self.standard.target_mean

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """One prediction from those of several models, in the units of the data."""
        return self.inner.mix(predictions, weights)

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """The score of each example from predictions, both in the units of the data."""
        return self.inner.grade(predictions, examples._replace(x=self._features(examples.x)))

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        return f"{self.inner.describe()}, features standardised"

    def _learned(self, examples: Examples) -> Examples:
        """Standardised examples for the loss, with extreme targets limited."""
        x, y, weight = examples
        return Examples(self._features(x), self._learned_targets(y), weight)

    def _learned_targets(self, y: Tensor) -> Tensor:
        limits, y = self._limits_targets and y.is_floating_point(), self._targets(y)
        return limited(y, self.standard.target_limit) if limits else y

    def _standardised(self, examples: Examples) -> Examples:
        x, y, weight = examples
        return Examples(self._features(x), self._targets(y), weight)

    def _targets(self, y: Tensor) -> Tensor:
        return (y - self.standard.target_mean) / self.standard.target_scale if y.is_floating_point() else y

    def _features(self, x: Tensor) -> Tensor:
        x = (x - self.standard.mean) / self.standard.scale
        return limited(x, self.standard.limit) if self._limits else x
