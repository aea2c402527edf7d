"""RealNVP (Dinh, Sohl-Dickstein, Bengio 2017): affine couplings, with checkerboard or cyclic quadrant masks.

A coupling leaves the coordinates of its mask unchanged, and scales and shifts others by a network of these. Cyclic
masks are from Kirichenko, Izmailov, Wilson 2020: each quadrant of a picture determines the change of the next one in
turn, so that pixels cannot be predicted from their neighbours. Networks are perceptrons; there is no normalisation
layer.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from corymb.keys import Key, fold, normal
from corymb.models.flows.base import Plain
from corymb.settings import require
from corymb.trees import Params

Mask = Literal["checkerboard", "cyclic", "halves"]


class RealNVP(Plain):
    """Affine couplings. `side` is the side of a square picture, whose channels come first."""

    def __init__(
        self, inputs: int, *, side: int | None = None, mask: Mask = "checkerboard", layers: int = 8, hidden: int = 64
    ) -> None:
        super().__init__(inputs)
        self.side, self.mask, self.layers, self.hidden = side, mask, layers, hidden
        self._moved: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
        require(layers >= 1 and hidden >= 1, f"RealNVP needs layers and hidden units, got {layers} and {hidden}.")
        require(inputs >= 2, f"RealNVP needs examples with two numbers or more, got {inputs}.")
        if mask != "halves":
            square = side is not None and side >= 2 and inputs % side**2 == 0
            wanted = f"Mask {mask!r} needs square pictures: {inputs} numbers do not form pictures of side {side}"
            require(square, f"{wanted}; give side, or mask='halves'.")

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this flow: see `corymb.objectives.recipe`."""
        options = {"side": self.side, "mask": self.mask, "layers": self.layers, "hidden": self.hidden}
        return {"inputs": self.inputs, **options}

    def init(self, key: Key) -> Params:
        """Networks with outputs near 0, so that couplings start near the identity."""
        d, h = self.inputs, self.hidden
        sizes = {"first": (h, d), "second": (h, h), "scale": (d, h), "shift": (d, h)}
        params: Params = {}
        for layer in range(self.layers):
            for name, shape in sizes.items():
                gain = 1.4 if name in ("first", "second") else 0.1
                drawn = normal(fold(key, name, layer), shape) * (gain / shape[1] ** 0.5)
                params |= {f"{layer}.{name}": drawn, f"{layer}.{name}_bias": torch.zeros(shape[0])}
        return params

    def forward(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the couplings in order; the determinant is the product of the scales."""
        log_det = x.new_zeros(x.shape[0])
        for layer in range(self.layers):
            scale, shift = self._coupling(params, layer, x)
            x, log_det = x * scale.exp() + shift, log_det + scale.sum(-1)
        return x, log_det

    def inverse(self, params: Params, z: Tensor) -> Tensor:
        """Invert the couplings in reverse order; the coordinates that a coupling reads are not changed by it."""
        for layer in reversed(range(self.layers)):
            scale, shift = self._coupling(params, layer, z)
            z = (z - shift) * (-scale).exp()
        return z

    def _coupling(self, params: Params, layer: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """The log-scale, in (−2, 2), and the shift of every coordinate; 0 for unchanged ones."""
        reads, changes = self._masks_on(x.device, x.dtype)[layer % len(self.masks)]

        def dense(name: str, value: Tensor) -> Tensor:
            return value @ params[f"{layer}.{name}"].mT + params[f"{layer}.{name}_bias"]

        inside = torch.relu(dense("second", torch.relu(dense("first", x * reads))))
        return 2 * torch.tanh(dense("scale", inside) / 2) * changes, dense("shift", inside) * changes

    def _masks_on(self, device: torch.device, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """The masks on a device, cached."""
        if (device, dtype) not in self._moved:
            self._moved[device, dtype] = [(r.to(device, dtype), c.to(device, dtype)) for r, c in self.masks]
        return self._moved[device, dtype]

    @cached_property
    def masks(self) -> list[tuple[Tensor, Tensor]]:
        """For each coupling in turn, the coordinates that are read and those that are changed."""
        if self.side is None or self.mask == "halves":
            first = torch.arange(self.inputs) < self.inputs // 2
            return [(first.float(), (~first).float()), ((~first).float(), first.float())]
        row, column = torch.meshgrid(torch.arange(self.side), torch.arange(self.side), indexing="ij")
        channels = self.inputs // self.side**2
        if self.mask == "checkerboard":
            even = ((row + column) % 2 == 0).flatten().repeat(channels)
            return [(even.float(), (~even).float()), ((~even).float(), even.float())]
        below, right = row >= (self.side + 1) // 2, column >= (self.side + 1) // 2
        quadrants = [~below & ~right, ~below & right, below & right, below & ~right]
        flat = [quadrant.flatten().repeat(channels).float() for quadrant in quadrants]
        return [(flat[place], flat[(place + 1) % 4]) for place in range(4)]

    def describe(self) -> str:
        """The flow's couplings, masks and size."""
        what = f"{self.layers} couplings of {self.hidden} hidden units, {self.mask} masks"
        return f"RealNVP on {self.inputs} numbers, {what}, side {self.side}"
