"""Any `torch.nn.Module` as a pure function of its parameters, with keyed initialisation."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from corymb.choices import Dropout
from corymb.core.objective import Draws
from corymb.keys import Key
from corymb.models.drawing import KeyedDraws, KeyedDropout
from corymb.settings import InvalidInput, require
from corymb.trees import Params

Places = dict[str, list[tuple[dict[str, nn.Parameter | None], str]]]
"""Where a module's parameters are, by name: tied ones are in several places."""
ModelLike = nn.Module | Callable[[], nn.Module]


class Network:
    """A module, and how to make its parameters.

    `model` is a function that makes a module, or a module whose layers have `reset_parameters`. Layers that couple
    examples (batch normalisation) are refused. Dropout, as a layer or in `forward`, is active in steps of training and
    draws from keys: the same on every engine. `dropout="off"` switches it off, `dropout="refuse"` refuses the model.

    Frozen parameters (`requires_grad=False`) are part of the module, not of its parameters: they keep the values that
    the module came with (of a function: of its first module, unless `frozen` gives others), the same for every cluster,
    and are not trained; to a node in another process they travel once. A frozen batch normalisation only scales by what
    it has kept, and is welcome.
    """

    def __init__(
        self,
        model: ModelLike,
        *,
        dropout: Dropout = "on",
        frozen: Params | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.model, self.dropout, self.device, self.dtype = model, dropout, torch.device(device), dtype
        module = self._make(0)
        refuse_coupled(module)
        lazy = [name for name, p in module.named_parameters() if isinstance(p, UninitializedParameter)]
        require(not lazy, f"The model's {', '.join(lazy)} have no size yet: give lazy layers their sizes.")
        refuse_unfit(module)
        self.drops = dropout != "off" and refuse_dropout(module, every=dropout == "refuse")
        names = [name for name, _ in module.named_parameters()]
        self.trainable = {name for name, p in module.named_parameters() if p.requires_grad}
        if not self.trainable:
            what = "only frozen parameters" if names else "no parameters"
            raise InvalidInput(f"The model {type(module).__name__} has {what}: there is nothing to learn.")
        if len(self.trainable) < len(names):
            module = copy.deepcopy(module)  # its frozen values are used: a function may give the same module again
        self._given = frozen
        if frozen is not None:
            _load_frozen(module, frozen, self.trainable)
        self.module = _deterministic(module).to(device=device, dtype=dtype)
        self._places: dict[nn.Module, Places] = {}
        self._evaluated = False
        self._draws: bool | None = False if dropout == "off" else None  # not known before the first step of training

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Network:
        """The same network elsewhere, or in another precision."""
        return Network(self.model, dropout=self.dropout, frozen=self._given, device=device, dtype=dtype)

    def recipe(self) -> dict[str, Any]:
        """What makes the same network elsewhere: see `corymb.objectives.recipe`. Frozen values are part of it."""
        state = self.module.state_dict()
        frozen = {name: value for name, value in state.items() if name not in self.trainable}
        return {"model": self.model, "dropout": self.dropout, "frozen": frozen or None}

    def init(self, key: Key) -> Params:
        """Fresh parameters, without frozen ones; tied ones appear once."""
        params = self._make(int(key)).named_parameters()
        return {name: p.detach().to(self.device, self.dtype) for name, p in params if name in self.trainable}

    def _make(self, seed: int) -> nn.Module:
        with KeyedDraws(seed):
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
        """The module's output with these parameters; nothing in it is random."""
        if not self._evaluated:  # look once: watching every operation takes time
            few = x[:2]
            with torch.no_grad(), KeyedDropout(None, len(few)):
                self._call(self.module, params, few)
            self._evaluated = True
        return _only_tensor(self._call(self.module, params, x))

    def training(self, params: Params, x: Tensor, draws: Draws) -> Tensor:
        """The module's output in a step of training: dropout is active, and drawn from the examples' own keys."""
        if self._draws is None:
            with torch.no_grad(), KeyedDropout(draws, len(x)) as dropout:
                self._call(self._in_training, params, x)
            self._draws = dropout.layers > 0
            if self._draws and self.dropout == "refuse":
                raise InvalidInput(
                    f"The model {type(self.module).__name__} drops features out in training: take that out, or {_OFF}."
                )
        if not self._draws:
            return self(params, x)
        with KeyedDropout(draws, len(x)):
            return _only_tensor(self._call(self._in_training, params, x))

    def _call(self, module: nn.Module, params: Params, x: Tensor) -> Any:
        """The module's output with these parameters in the place of its own.

        `torch.func.functional_call` does the same, but looks for the places anew in every call: a step of a small
        model would take a fifth longer.
        """
        if (places := self._places.get(module)) is None:
            places = self._places[module] = _places(module)
        if not params.keys() <= places.keys():
            return functional_call(module, params, (x,))  # says what is wrong
        kept = [(own, name, own[name]) for key in params for own, name in places[key]]
        try:
            for key, value in params.items():
                for own, name in places[key]:
                    own[name] = value  # type: ignore[assignment]
            return module(x)
        finally:
            for own, name, before in kept:
                own[name] = before

    @cached_property
    def _in_training(self) -> nn.Module:
        """The module in training mode, but for normalisations: those are frozen. Its tensors are the module's own."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        module = copy.deepcopy(self.module, {id(tensor): tensor for tensor in tensors}).train()
        for layer in module.modules():
            if isinstance(layer, (_BatchNorm, _InstanceNorm)):
                layer.eval()
        return module

    def describe(self) -> str:
        """What the model is, for fingerprints and run records."""
        shapes = {name: list(p.shape) for name, p in self.module.named_parameters()}
        return f"{self.module} {shapes}{self._frozen}{', dropout on' if self.drops else ''}"

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


def _places(module: nn.Module) -> Places:
    of = dict[int, str]()  # the first name that a parameter has
    places: Places = {}
    for prefix, layer in module.named_modules():
        for name, p in layer._parameters.items():
            if p is not None:
                key = of.setdefault(id(p), f"{prefix}.{name}".removeprefix("."))
                places.setdefault(key, []).append((layer._parameters, name))
    return places


def _deterministic(module: nn.Module) -> nn.Module:
    """The module with nothing random in it: in evaluation mode, but for recurrent layers and attention.

    cuDNN has no backward for the first outside training mode, and torch takes a short cut for the second that has none
    under vmap: so they stay in it, with their dropout off. Embeddings have dense gradients: nothing takes sparse ones.
    """
    module.eval()
    for layer in module.modules():
        if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)):
            layer.dropout = 0.0
        if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)):
            layer.training = True  # of itself: layers inside it, such as dropout, are not
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            layer.sparse = False
    return module


def refuse_coupled(module: nn.Module) -> None:
    """Refuse layers under which an example's loss depends on other examples."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        keeps = isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats)
        if keeps and not _constant(layer):
            raise InvalidInput(
                f"Layer {name!r} ({kind}) makes an example's loss depend on the other examples and keeps running "
                "statistics: use GroupNorm (or LayerNorm) instead, or freeze it."
            )


def refuse_unfit(module: nn.Module) -> None:
    """Refuse layers that change their weights when they are only looked at, and parameters that are complex."""
    for name, layer in module.named_modules():
        if getattr(layer, "max_norm", None) is not None and isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            raise InvalidInput(
                f"Layer {name!r} ({type(layer).__name__}) has max_norm={layer.max_norm:g}, by which every look at it "
                "changes its weights: leave max_norm out, or scale what it gives in forward."
            )
    odd = [name for name, p in module.named_parameters() if p.is_complex()]
    require(not odd, f"The model's {', '.join(odd)} are complex: give their real and imaginary parts as parameters.")


_OFF = "switch all dropout off with dropout='off'"


def refuse_dropout(module: nn.Module, *, every: bool) -> bool:
    """Whether layers of a module drop out; refuses those whose draws cannot be keyed, or with `every` all of them."""
    found = False
    for name, layer in module.named_modules():
        kind, plain = type(layer).__name__, isinstance(layer, _DropoutNd)
        rate = getattr(layer, "p", 0) if plain else getattr(layer, "dropout", 0)
        if not isinstance(rate, (int, float)) or rate <= 0:
            continue
        inside = isinstance(layer, (nn.RNNBase, nn.MultiheadAttention))
        if every or inside:
            where = " inside torch's own code, where it cannot draw from keys" if inside else ""
            raise InvalidInput(f"Layer {name!r} ({kind}) has dropout {rate}{where}: set it to 0, or {_OFF}.")
        found |= plain
    return found


def _constant(layer: nn.Module) -> bool:
    """Whether a normalisation is frozen: it then scales by the statistics that it came with."""
    own = list(layer.parameters())
    return bool(own and layer.track_running_stats) and not any(p.requires_grad for p in own)


def _load_frozen(module: nn.Module, frozen: Params, trainable: set[str]) -> None:
    """Put values that came from elsewhere in the place of a module's own frozen ones."""
    own = {name: value for name, value in module.state_dict(keep_vars=True).items() if name not in trainable}
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in frozen.items()}:
        raise InvalidInput(
            f"The frozen parameters are {sorted(frozen)}, the model {type(module).__name__} has {sorted(own)}: both "
            "sides must make the same model."
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(frozen[name])


def _only_tensor(out: object) -> Tensor:
    if not isinstance(out, Tensor):
        raise InvalidInput(
            f"The model's output is a {type(out).__name__}, wanted one tensor: let its forward return the part to "
            "learn from (of a recurrent layer, `out, state = layer(x)`, that is the first)."
        )
    return out
