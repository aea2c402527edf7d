"""Image augmentation at the client, by key: pictures are shifted, mirrored, cropped, covered or changed in brightness.

How a picture is changed depends only on its own key (from the client, the step and its position among the client's
examples), so the same picture changes in the same way on every engine and in every batch. Losses and scores outside of
training use the unchanged pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from corymb.core.objective import Draws, Examples, Objective
from corymb.keys import Key, fold, happens, integers, uniform
from corymb.local.reference import training_losses
from corymb.settings import require
from corymb.trees import Params, align_leading


class Change(Protocol):
    """A random change of pictures. A frozen dataclass, so that it can be sent and describes itself."""

    def __call__(self, x: Tensor, keys: Key) -> Tensor:
        """Pictures [examples, channels, height, width] changed, each by its own key."""
        ...


@dataclass(frozen=True)
class Flip:
    """Mirrors left and right, with a probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.probability <= 1, f"probability must be in [0, 1], got {self.probability}.")

    def __call__(self, x: Tensor, keys: Key) -> Tensor:
        """Pictures, some of them mirrored."""
        return torch.where(align_leading(happens(keys, self.probability), x), x.flip(-1), x)


@dataclass(frozen=True)
class Translate:
    """Shifts by up to this many pixels in each direction; pixels that move in from outside are 0."""

    pixels: int = 2

    def __post_init__(self) -> None:
        require(self.pixels >= 0, f"pixels must be 0 or more, got {self.pixels}.")

    def __call__(self, x: Tensor, keys: Key) -> Tensor:
        """Pictures of the same size, shifted."""
        by = integers(keys, 2 * self.pixels + 1, (2,)) - self.pixels
        return _columns(_columns(x, by[..., 0], x.shape[-2], -2), by[..., 1], x.shape[-1], -1)


@dataclass(frozen=True)
class Crop:
    """Cuts out a square of this side at a random place."""

    side: int

    def __post_init__(self) -> None:
        require(self.side >= 1, f"side must be at least 1, got {self.side}.")

    def __call__(self, x: Tensor, keys: Key) -> Tensor:
        """Pictures of `side` pixels, each from its own place."""
        height, width = x.shape[-2:]
        fits = self.side <= min(height, width)
        require(fits, f"A crop of {self.side} pixels does not fit into pictures of {height} x {width}: lower side.")
        top = integers(fold(keys, "top"), height - self.side + 1)
        left = integers(fold(keys, "left"), width - self.side + 1)
        return _columns(_columns(x, top, self.side, -2), left, self.side, -1)


@dataclass(frozen=True)
class Cutout:
    """Covers a square of this side with 0; its centre is anywhere in the picture."""

    side: int = 8

    def __post_init__(self) -> None:
        require(self.side >= 1, f"side must be at least 1, got {self.side}.")

    def __call__(self, x: Tensor, keys: Key) -> Tensor:
        """Pictures, each with a square set to 0."""
        covered = []
        for name, length in (("top", x.shape[-2]), ("left", x.shape[-1])):
            first = integers(fold(keys, name), length) - self.side // 2
            place = torch.arange(length, device=x.device)
            covered.append((place >= first.unsqueeze(-1)) & (place < first.unsqueeze(-1) + self.side))
        hole = covered[0].unsqueeze(-1) & covered[1].unsqueeze(-2)
        return torch.where(hole.unsqueeze(-3), 0, x)


@dataclass(frozen=True)
class Light:
    """Adds up to ±`brightness` to all pixels of a picture, and multiplies their distance from its mean."""

    brightness: float = 63 / 255
    contrast: tuple[float, float] = (0.2, 1.8)

    def __call__(self, x: Tensor, keys: Key) -> Tensor:
        """Pictures, each with its own brightness and contrast."""
        added = (2 * uniform(fold(keys, "brightness")) - 1) * self.brightness
        low, high = self.contrast
        factor = low + (high - low) * uniform(fold(keys, "contrast"))
        lit = x + align_leading(added, x).to(x.dtype)
        mean = lit.mean((-2, -1), keepdim=True)
        return (lit - mean) * align_leading(factor, x).to(x.dtype) + mean


def _columns(x: Tensor, first: Tensor, length: int, axis: int) -> Tensor:
    """`length` rows or columns of each picture, starting at its own `first`; those outside of the picture are 0."""
    place = first.unsqueeze(-1) + torch.arange(length, device=x.device)  # m length
    shape = [1] * x.dim()
    shape[0], shape[axis] = place.shape[0], length
    place = place.reshape(shape)
    wanted = list(x.shape)
    wanted[axis] = length
    taken = x.gather(axis, place.clamp(0, x.shape[axis] - 1).expand(wanted))
    return torch.where((place >= 0) & (place < x.shape[axis]), taken, 0)


class Augmented:
    """An objective that is trained on randomly changed pictures and evaluated on unchanged ones."""

    def __init__(self, inner: Objective, changes: Sequence[Change]) -> None:
        self.inner, self.changes = inner, tuple(changes)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not set yet while a copy is made
            raise AttributeError(name)
        return getattr(self.inner, name)

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """The inner objective's training losses, on changed pictures."""
        return self.losses_of_changed(params, self.changed(examples, draws), draws)

    def losses_of_changed(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """Training losses on pictures that have already been changed."""
        return training_losses(self.inner, params, examples, draws)

    def changed(self, examples: Examples, draws: Draws) -> Examples:
        """The examples with pictures changed for this step. An engine may change those of many clients at once."""
        x = examples.x
        require(x.dim() == 4, f"Augmentation needs pictures [channels, height, width], got {list(x.shape[1:])}.")
        keys = fold(draws.keys(len(x)), "augmentation")
        for number, change in enumerate(self.changes):
            x = change(x, fold(keys, number))
        return examples._replace(x=x)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Self:
        """The same objective on another device or in another precision."""
        return type(self)(self.inner.to(device, dtype), self.changes)

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this objective: see `corymb.objectives.recipe`."""
        return {"inner": self.inner, "changes": self.changes}

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        return f"{self.inner.describe()}, trained on pictures changed by {', '.join(map(repr, self.changes))}"
