"""Generator, critic and encoder of ClusterGAN (Mukherjee et al. 2019): perceptrons, and convolutions for pictures.

All three are pure functions of one tree of parameters, so that they can be averaged, sent and vectorised like any
model. The generator turns noise and a cluster's code into an example, the critic judges examples, and the encoder
recovers noise and code. Each cluster has a row in each of `CODES`: a model of k clusters has k rows.

There is no batch normalisation, since running statistics cannot be averaged and batches would couple examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, leaky_relu, linear, relu

from corymb.keys import Key, fold, normal
from corymb.settings import require
from corymb.trees import Params

CODES = ("generator.code", "encoder.code", "encoder.code_bias")
"""Parameters with a row for each cluster."""
GENERATOR, CRITIC, ENCODER = "generator.", "critic.", "encoder."


class Latent(NamedTuple):
    """An example's latent variables, as estimated by the encoder."""

    noise: Tensor  # m q
    logits: Tensor  # m k


class Networks(Protocol):
    """The three networks, with their parameters in one tree."""

    noise: int
    """Dimensions of the noise."""

    def init(self, key: Key) -> Params:
        """Fresh parameters with one cluster, in float32 on the CPU."""
        ...

    def generate(self, params: Params, noise: Tensor, cluster: Tensor) -> Tensor:
        """Examples (m d) from noise (m q) and clusters (m)."""
        ...

    def judge(self, params: Params, x: Tensor) -> Tensor:
        """The critic's score of each example, higher for real ones: m."""
        ...

    def encode(self, params: Params, x: Tensor) -> Latent:
        """The noise and the cluster logits of each example."""
        ...

    def describe(self) -> str:
        """A description of the networks, for fingerprints and run records."""
        ...


class Dense:
    """Perceptrons with two hidden layers; examples are vectors of length `inputs`, within [0, 1] if `bounded`."""

    def __init__(self, inputs: int, *, hidden: int = 256, noise: int = 30, bounded: bool = False) -> None:
        require(inputs >= 1 and hidden >= 1 and noise >= 1, "Networks need inputs, hidden units and noise.")
        self.inputs, self.hidden, self.noise, self.bounded = inputs, hidden, min(noise, inputs), bounded

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate these networks: see `corymb.objectives.recipe`."""
        return {"inputs": self.inputs, "hidden": self.hidden, "noise": self.noise, "bounded": self.bounded}

    def init(self, key: Key) -> Params:
        """Fresh parameters, scaled to preserve the variance of activations."""
        d, h, q = self.inputs, self.hidden, self.noise
        shapes = {"generator.noise": (h, q), "generator.second": (h, h), "generator.last": (d, h)}
        shapes |= {f"{prefix}first": (h, d) for prefix in (CRITIC, ENCODER)}
        shapes |= {f"{prefix}second": (h, h) for prefix in (CRITIC, ENCODER)}
        shapes |= {"critic.last": (1, h), "encoder.noise": (q, h)}
        return {**drawn(key, shapes), **_codes(key, h, h)}

    def generate(self, params: Params, noise: Tensor, cluster: Tensor) -> Tensor:
        """Examples from noise and clusters; the code is added in the first layer."""
        inside = relu(layer(params, "generator.noise", noise) + params["generator.code"][cluster])
        made = layer(params, "generator.last", relu(layer(params, "generator.second", inside)))
        return made.sigmoid() if self.bounded else made

    def judge(self, params: Params, x: Tensor) -> Tensor:
        """The critic's score of each example."""
        return layer(params, "critic.last", self._body(params, CRITIC, x))[..., 0]

    def encode(self, params: Params, x: Tensor) -> Latent:
        """The noise of each example, and a logit for each cluster."""
        return heads(params, self._body(params, ENCODER, x))

    def _body(self, params: Params, prefix: str, x: Tensor) -> Tensor:
        inside = leaky_relu(layer(params, f"{prefix}first", x), 0.2)
        return leaky_relu(layer(params, f"{prefix}second", inside), 0.2)

    def describe(self) -> str:
        """A description of the networks' sizes."""
        within = ", within [0, 1]" if self.bounded else ""
        return f"perceptrons of 2 x {self.hidden} units on {self.inputs} numbers{within}, noise of {self.noise}"


class Convolutional:
    """Square pictures within [0, 1] whose side is a multiple of 4: the layers of the authors' code for MNIST.

    Generator: `hidden` units, then channels 2c, c and the picture's, by two transposed convolutions. Critic and
    encoder: convolutions of c and 2c channels, then `hidden` units.
    """

    def __init__(self, channels: int, side: int, *, width: int = 64, hidden: int = 1024, noise: int = 30) -> None:
        require(side >= 4 and side % 4 == 0, f"Convolutions need pictures with a side of 4, 8, 12, ..., got {side}.")
        self.channels, self.side, self.width, self.hidden, self.noise = channels, side, width, hidden, noise

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate these networks: see `corymb.objectives.recipe`."""
        return {name: getattr(self, name) for name in ("channels", "side", "width", "hidden", "noise")}

    def init(self, key: Key) -> Params:
        """Fresh parameters, scaled to preserve the variance of activations."""
        c, h, q = self.width, self.hidden, self.noise
        deep = 2 * c * (self.side // 4) ** 2
        shapes: dict[str, tuple[int, ...]] = {"generator.noise": (h, q), "generator.second": (deep, h)}
        shapes |= {f"{prefix}third": (h, deep) for prefix in (CRITIC, ENCODER)} | {"critic.last": (1, h)}
        shapes |= {f"{prefix}first": (c, self.channels, 4, 4) for prefix in (CRITIC, ENCODER)}
        shapes |= {f"{prefix}second": (2 * c, c, 4, 4) for prefix in (CRITIC, ENCODER)} | {"encoder.noise": (q, h)}
        # Transposed kernels have input channels first, and a quarter of their weights contributes to each pixel.
        up = {"generator.third": (2 * c, c, 4, 4), "generator.last": (c, self.channels, 4, 4)}
        raised = {name: normal(fold(key, name), shape) * (2 / (shape[0] * 4)) ** 0.5 for name, shape in up.items()} | {
            f"{name}_bias": torch.zeros(shape[1]) for name, shape in up.items()
        }
        return {**drawn(key, shapes), **raised, **_codes(key, h, h)}

    def generate(self, params: Params, noise: Tensor, cluster: Tensor) -> Tensor:
        """Pictures from noise and clusters, upsampled from a quarter of the side."""
        inside = relu(layer(params, "generator.noise", noise) + params["generator.code"][cluster])
        deep = relu(layer(params, "generator.second", inside))
        picture = deep.unflatten(-1, (2 * self.width, self.side // 4, self.side // 4))
        for name in ("third", "last"):
            weight, bias = params[f"generator.{name}"], params[f"generator.{name}_bias"]
            picture = conv_transpose2d(relu(picture), weight, bias, stride=2, padding=1)
        made: Tensor = picture.sigmoid().flatten(1)
        return made

    def judge(self, params: Params, x: Tensor) -> Tensor:
        """The critic's score of each picture."""
        return layer(params, "critic.last", self._body(params, CRITIC, x))[..., 0]

    def encode(self, params: Params, x: Tensor) -> Latent:
        """The noise of each example, and a logit for each cluster."""
        return heads(params, self._body(params, ENCODER, x))

    def _body(self, params: Params, prefix: str, x: Tensor) -> Tensor:
        picture = x.reshape(-1, self.channels, self.side, self.side)
        for name in ("first", "second"):
            weight, bias = params[f"{prefix}{name}"], params[f"{prefix}{name}_bias"]
            picture = leaky_relu(conv2d(picture, weight, bias, stride=2, padding=1), 0.2)
        return leaky_relu(layer(params, f"{prefix}third", picture.flatten(1)), 0.2)

    def describe(self) -> str:
        """A description of the networks' sizes."""
        what = f"convolutions of {self.width} and {2 * self.width} channels, {self.hidden} units"
        return f"{what}, on pictures of {self.channels} x {self.side} x {self.side}, noise of {self.noise}"


def layer(params: Params, name: str, x: Tensor) -> Tensor:
    """Apply the linear layer `name`."""
    return linear(x, params[name], params[f"{name}_bias"])


def heads(params: Params, body: Tensor) -> Latent:
    """The encoder's two outputs: noise and cluster logits."""
    logits = linear(body, params["encoder.code"], params["encoder.code_bias"])
    return Latent(layer(params, "encoder.noise", body), logits)


def drawn(key: Key, shapes: Mapping[str, tuple[int, ...]]) -> Params:
    """Normal weights (He et al. 2015) of layers with output units on the first axis, and biases of 0."""
    params: Params = {}
    for name, shape in shapes.items():
        inputs = torch.Size(shape[1:]).numel()
        params |= {name: normal(fold(key, name), shape) * (2 / inputs) ** 0.5, f"{name}_bias": torch.zeros(shape[0])}
    return params


def _codes(key: Key, hidden: int, body: int) -> Params:
    """The codes of one cluster."""
    generated, encoded, bias = CODES
    return {
        generated: normal(fold(key, generated), (1, hidden)),
        encoded: normal(fold(key, encoded), (1, body)) * (2 / body) ** 0.5,
        bias: torch.zeros(1),
    }
