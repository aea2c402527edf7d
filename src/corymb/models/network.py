"""Any `torch.nn.Module` as a pure function of its parameters, with keyed initialisation."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from corymb.keys import Key
from corymb.settings import InvalidInput
from corymb.trees import Params

ModelLike = nn.Module | Callable[[], nn.Module]


class Network:
    """A module, and how to make its parameters.

    `model` is a function that makes a module, or a module whose layers have `reset_parameters`. Layers that couple
    examples (batch normalisation) are refused; dropout is refused too unless `dropout="off"`.

    Frozen parameters (`requires_grad=False`) are part of the module, not of its parameters: they keep the values that
    the module came with (of a function: of its first module), the same for every cluster, are not trained and do not
    travel. A frozen batch normalisation only scales by what it has kept, and is welcome.
    """

    def __init__(
        self,
        model: ModelLike,
        *,
        dropout: Literal["refuse", "off"] = "refuse",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model, self.dropout, self.device, self.dtype = model, dropout, torch.device(device), dtype
        module = self._make(0)
        refuse_coupled(module, dropout)
        names = [name for name, _ in module.named_parameters()]
        self.trainable = {name for name, p in module.named_parameters() if p.requires_grad}
        if not self.trainable:
            what = "only frozen parameters" if names else "no parameters"
            raise InvalidInput(f"The model {type(module).__name__} has {what}: there is nothing to learn.")
        if len(self.trainable) < len(names):
            module = copy.deepcopy(module)  # its frozen values are used: a function may give the same module again
        self.module = _deterministic(module).to(device=device, dtype=dtype)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Network:
        """The same network elsewhere, or in another precision."""
        return Network(self.model, dropout=self.dropout, device=device, dtype=dtype)

    def init(self, key: Key) -> Params:
        """Fresh parameters, without frozen ones; tied ones appear once."""
        params = self._make(int(key)).named_parameters()
        return {name: p.detach().to(self.device, self.dtype) for name, p in params if name in self.trainable}

    def _make(self, seed: int) -> nn.Module:
        with _KeyedDraws(seed):
            if not isinstance(self.model, nn.Module):
                module = self.model()
                if not isinstance(module, nn.Module):
                    raise InvalidInput(
                        f"The model factory returned a {type(module).__name__}, wanted a torch.nn.Module."
                    )
                return module
            module = copy.deepcopy(self.model)
            for layer in module.modules():
                own = [name for name, p in layer.named_parameters(recurse=False) if p.requires_grad]
                if own and not hasattr(layer, "reset_parameters"):
                    raise InvalidInput(
                        f"Layer {type(layer).__name__} has parameters {own} but no reset_parameters(): "
                        "give a function that makes the module instead of the module itself."
                    )
                if own:
                    layer.reset_parameters()  # type: ignore[operator]
        given = dict(self.model.named_parameters())
        for name, p in module.named_parameters():
            if not p.requires_grad:  # a layer may be frozen in part
                p.data.copy_(given[name].data)
        return module

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """The module's output with these parameters."""
        out: Tensor = functional_call(self.module, params, (x,))
        return out

    def describe(self) -> str:
        """What the model is, for fingerprints and run records."""
        shapes = {name: list(p.shape) for name, p in self.module.named_parameters()}
        return f"{self.module} {shapes}{self._frozen}"

    @cached_property
    def _frozen(self) -> str:
        """The frozen parameters by a hash of their values: with another backbone it is another model."""
        frozen = {name: p for name, p in self.module.named_parameters() if name not in self.trainable}
        if not frozen:
            return ""
        digest = hashlib.sha256()
        for name, value in sorted((frozen | dict(self.module.named_buffers())).items()):
            digest.update(f"{name} {list(value.shape)};".encode())
            digest.update(value.double().cpu().contiguous().flatten().numpy().data)
        return f", {len(frozen)} frozen {digest.hexdigest()[:16]}"


def _deterministic(module: nn.Module) -> nn.Module:
    """The module with nothing random in it: in evaluation mode, but for recurrent layers.

    cuDNN has no backward for those outside training mode, so they stay in it, with their dropout off.
    """
    module.eval()
    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            layer.dropout = 0.0
            layer.train()
    return module


def refuse_coupled(module: nn.Module, dropout: str) -> None:
    """Refuse layers under which an example's loss depends on other examples or on a global generator."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        keeps = isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats)
        if keeps and not _constant(layer):
            raise InvalidInput(
                f"Layer {name!r} ({kind}) makes an example's loss depend on the other examples and keeps running "
                "statistics: use GroupNorm (or LayerNorm) instead, or freeze it."
            )
        rate = getattr(layer, "p", 0) if isinstance(layer, _DropoutNd) else getattr(layer, "dropout", 0)
        if dropout != "off" and isinstance(rate, (int, float)) and rate > 0:
            raise InvalidInput(
                f"Layer {name!r} ({kind}) has dropout {rate}, which would draw from a global generator: remove it, or "
                "switch all dropout off with dropout='off'."
            )


def _constant(layer: nn.Module) -> bool:
    """Whether a normalisation is frozen: it then scales by the statistics that it came with."""
    own = list(layer.parameters())
    return bool(own and layer.track_running_stats) and not any(p.requires_grad for p in own)


_RANDOM = {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "multinomial"}
_RANDOM |= {"normal", "bernoulli", "poisson", "binomial", "orthogonal_", "sparse_", "trunc_normal_"}
_RANDOM |= {f"{kind}_" for kind in ("uniform", "normal", "bernoulli", "exponential", "random")}
_RANDOM |= {f"{kind}_" for kind in ("log_normal", "cauchy", "geometric")}
_RANDOM |= {f"{way}_{kind}_" for way in ("kaiming", "xavier") for kind in ("uniform", "normal")}


class _KeyedDraws(TorchFunctionMode):
    """Random draws within it come from its own generator: the global one is neither read nor seeded."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed % 2**63)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") in _RANDOM:
            kwargs["generator"] = kwargs.get("generator") or self.generator
        return func(*args, **kwargs)
