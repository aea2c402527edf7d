"""Keyed randomness for modules, instead of the global generator: initial values and dropout."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from corymb.core.objective import Draws
from corymb.keys import Key, fold_each, happens
from corymb.models.attention import attend, attend_by_heads
from corymb.models.recurrent import LAYERS, one_layer_after_another, rate_between_layers
from corymb.settings import InvalidInput

_RANDOM = {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "multinomial"}
_RANDOM |= {"normal", "bernoulli", "poisson", "binomial", "orthogonal_", "sparse_", "trunc_normal_"}
_RANDOM |= {f"{kind}_" for kind in ("uniform", "normal", "bernoulli", "exponential", "random")}
_RANDOM |= {f"{kind}_" for kind in ("log_normal", "cauchy", "geometric")}
_RANDOM |= {f"{way}_{kind}_" for way in ("kaiming", "xavier") for kind in ("uniform", "normal")}


class KeyedDraws(TorchFunctionMode):
    """A mode in which random draws use its own generator; the global one is neither read nor seeded."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed % 2**63)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") in _RANDOM:
            kwargs["generator"] = kwargs.get("generator") or self.generator
        return func(*args, **kwargs)


_DROPOUTS = {"dropout", "dropout_", "alpha_dropout", "alpha_dropout_"}
_BY_CHANNEL = {"dropout1d": 3, "dropout2d": 3, "dropout3d": 5}
_BY_CHANNEL |= {name: 2 for name in ("feature_dropout", "feature_dropout_", "feature_alpha_dropout")}
"""Dropout of whole channels, and the least number of input axes: with fewer, the first axis would be channels."""
_ATTENTION: dict[str, Callable[..., Any]] = {
    "multi_head_attention_forward": attend_by_heads,
    "scaled_dot_product_attention": attend,
}
_ALPHA = 1.7580993408473766  # minus SELU's lower limit, which replaces dropped inputs in alpha dropout


class KeyedDropout(TorchFunctionMode):
    """A mode in which dropout draws from each example's own keys; any other random function raises InvalidInput.

    The same features of an example are therefore dropped whatever else is in its batch, on every engine. Without
    `draws` the model is evaluated, and dropout raises InvalidInput as well.
    """

    def __init__(self, draws: Draws | None, m: int) -> None:
        super().__init__()
        self.draws, self.m = draws, m
        self.layers = 0
        """The number of dropout layers that have drawn so far."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in _DROPOUTS or name in _BY_CHANNEL:
            x, p, training = _arguments(*args, **kwargs)
            if training and p > 0:
                return self._drop(name, x, float(p))
        elif _inner_rate(name, args, kwargs) > 0:
            if self.draws is None:
                raise InvalidInput(
                    f"The model applies dropout in evaluation, too: give {name} dropout_p=0.0 unless self.training."
                )
            with self:
                return self._with_dropout_outside(func, name, *args, **kwargs)
        elif _draws(name, args, kwargs):
            raise InvalidInput(
                f"The model draws from a global generator ({name}), which would make runs irreproducible: use "
                "nn.Dropout, or remove it."
            )
        return func(*args, **kwargs)

    @staticmethod
    def _with_dropout_outside(func: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """A function of torch's that has dropout inside, computed so that this mode sees it."""
        return _ATTENTION[name](*args, **kwargs) if name in _ATTENTION else one_layer_after_another(func, *args)

    @cached_property
    def _keys(self) -> Key:
        assert self.draws is not None
        return self.draws.keys(self.m)

    def _drop(self, name: str, x: Tensor, p: float) -> Tensor:
        if self.draws is None:
            raise InvalidInput(
                f"The model applies dropout in evaluation, too: write {name}(x, p, training=self.training), or use "
                "nn.Dropout."
            )
        self.layers += 1
        if not x.numel():
            return x
        if x.dim() < _BY_CHANNEL.get(name, 1) or x.shape[0] % self.m:
            raise InvalidInput(
                f"The model's {name} has an input of shape {list(x.shape)} for {self.m} examples: wanted examples on "
                "the first axis; change the model, or use dropout='off'."
            )
        rest = (x.shape[1], *[1] * (x.dim() - 2)) if name in _BY_CHANNEL else x.shape[1:]
        dropped = happens(fold_each(self._keys, self.layers), p, (x.shape[0] // self.m, *rest))
        kept = (~dropped.reshape(x.shape[0], *rest)).to(x.dtype)
        if "alpha" in name:
            scale = 0.0 if p == 1 else ((1 + _ALPHA**2 * p) * (1 - p)) ** -0.5
            return x * kept * scale + (kept - 1 + p) * (_ALPHA * scale)
        return x * kept * (0.0 if p == 1 else 1 / (1 - p))


def _arguments(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
) -> tuple[Tensor, float, bool]:
    """The arguments of dropout in `torch.nn.functional`, and in `torch`, where `training` is named `train`."""
    return input, p, training and train


def _inner_rate(name: str, args: Any, kwargs: Any) -> float:
    """The rate of the dropout inside a function of torch's, for attention or recurrent layers."""
    if name == "multi_head_attention_forward":
        training = _argument(args, kwargs, 13, "training", default=1)
        return _argument(args, kwargs, 10, "dropout_p") * training
    if name == "scaled_dot_product_attention":
        return _argument(args, kwargs, 4, "dropout_p")
    return rate_between_layers(args) if name in LAYERS and len(args) == 9 else 0.0


def _draws(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a function without a keyed version draws random numbers."""
    if name in ("rrelu", "rrelu_"):
        return _argument(args, kwargs, 3, "training") > 0
    return name in _RANDOM or name in ("gumbel_softmax", "native_dropout")


def _argument(args: Any, kwargs: Any, place: int, name: str, *, default: float = 0) -> float:
    return float(args[place] if len(args) > place else kwargs.get(name, default))
