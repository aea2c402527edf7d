"""Keyed randomness for modules, instead of the global generator: initial values and dropout."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from corymb.core.objective import Draws
from corymb.keys import Key, fold_each, happens
from corymb.models.attention import attend
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
_ATTENTION = ("multi_head_attention_forward", "scaled_dot_product_attention")
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
        elif name == "scaled_dot_product_attention" and self.draws is not None and _draws(name, args, kwargs):
            with self:
                return attend(*args, **kwargs)
        elif _draws(name, args, kwargs):
            hint = "set its dropout to 0" if name in _ATTENTION else "use nn.Dropout"
            raise InvalidInput(
                f"The model draws from a global generator ({name}), which would make runs irreproducible: {hint}, or "
                "remove it."
            )
        return func(*args, **kwargs)

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


def _draws(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a function other than dropout draws random numbers."""
    if name == "multi_head_attention_forward":
        return bool(kwargs.get("training", True)) and _argument(args, kwargs, 9, "dropout_p") > 0
    if name == "scaled_dot_product_attention":
        return _argument(args, kwargs, 4, "dropout_p") > 0
    if name in ("rrelu", "rrelu_"):
        return _argument(args, kwargs, 3, "training") > 0
    return name in _RANDOM or name in ("gumbel_softmax", "native_dropout")


def _argument(args: Any, kwargs: Any, place: int, name: str) -> float:
    return float(args[place] if len(args) > place else kwargs.get(name, 0))
