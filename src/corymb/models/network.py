"""Any `torch.nn.Module` as a pure function of its parameters, with keyed initialisation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from corymb.choices import Dropout
from corymb.core.objective import Draws
from corymb.keys import Key, no_transform_active
from corymb.models.attention import PositionsFirst
from corymb.models.copying import copied, share_tensors
from corymb.models.drawing import KeyedDraws, KeyedDropout
from corymb.settings import InvalidInput, require
from corymb.trees import Params

Places = dict[str, list[tuple[dict[str, nn.Parameter | None], str]]]
"""For each parameter, by name, the layers' dicts that hold it and its key there: a tied parameter has several."""
ModelLike = nn.Module | Callable[[], nn.Module]


class Network:
    """A module as a function of its parameters, and their initialisation.

    `model` is a function that returns a new module, or a module whose layers have `reset_parameters`. Layers that
    couple examples (batch normalisation) are refused. Dropout, as a layer or in `forward`, is active in training steps
    and draws from keys, so that it is the same on every engine. `dropout="off"` disables it; with `dropout="refuse"`, a
    model that has dropout is refused.

    Frozen parameters (`requires_grad=False`) belong to the module and are not among the parameters to train. They keep
    their initial values (those of the first module if `model` is a function, unless `frozen` has others), the same for
    every cluster, and are sent to a node in another process once. Frozen batch normalisation is accepted: it only
    applies its stored statistics.
    """

    def __init__(
        self,
        model: ModelLike,
        *,
        dropout: Dropout = "on",
        frozen: Params | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        shared: bool | None = None,
    ) -> None:
        """`shared` says whether the modules that `model` returns have tensors in common; by default, that is tried."""
        self.model, self.dropout, self.device, self.dtype = model, dropout, torch.device(device), dtype
        module = self._make(0)
        refuse_coupled(module)
        lazy = [name for name, p in module.named_parameters() if isinstance(p, UninitializedParameter)]
        require(not lazy, f"The model's {', '.join(lazy)} have no size yet: give lazy layers their sizes.")
        refuse_unfit(module)
        self.drops = dropout != "off" and find_dropout(module, refuse=dropout == "refuse")
        names = [name for name, _ in module.named_parameters()]
        self.trainable = {name for name, p in module.named_parameters() if p.requires_grad}
        if not self.trainable:
            what = "only frozen parameters" if names else "no parameters"
            raise InvalidInput(f"The model {type(module).__name__} has {what}: there is nothing to learn.")
        if shared is None:
            shared = not isinstance(model, nn.Module) and share_tensors(module, self._make(0))
        self._shared = shared
        if self._shared:  # a network moves and converts its module in place, and several networks are in use at once
            module = copied(module)
        self._given = frozen
        if frozen is not None:
            _load_frozen(module, frozen, self.trainable)
        self._rates = _inner_dropout(module)
        self.module = _deterministic(module).to(device=device, dtype=dtype)
        self._places: dict[nn.Module, Places] = {}
        self._in_training = self.module if dropout == "off" else _in_training(self.module, self._rates)
        self._evaluated = False
        self._draws: bool | None = False if dropout == "off" else None  # None: unknown until the first training step

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Network:
        """The same network on another device, or in another precision."""
        return Network(
            self.model, dropout=self.dropout, frozen=self._given, device=device, dtype=dtype, shared=self._shared
        )

    def recipe(self) -> dict[str, Any]:
        """The arguments that make the same network elsewhere, with frozen values: see `corymb.objectives.recipe`."""
        state = self.module.state_dict()
        frozen = {name: value for name, value in state.items() if name not in self.trainable}
        return {"model": self.model, "dropout": self.dropout, "frozen": frozen or None}

    def init(self, key: Key) -> Params:
        """New initial values of the trainable parameters; tied ones appear once."""
        params = self._make(int(key)).named_parameters()
        return {name: p.detach().to(self.device, self.dtype) for name, p in params if name in self.trainable}

    def _make(self, seed: int) -> nn.Module:
        with KeyedDraws(seed):
            if not isinstance(self.model, nn.Module):
                module = self.model()
                if not isinstance(module, nn.Module):
                    raise InvalidInput(f"The model factory returned {type(module).__name__}, wanted a torch.nn.Module.")
                return module
            module = copied(self.model)
            for layer in module.modules():
                trained = [name for name, p in layer.named_parameters(recurse=False) if p.requires_grad]
                if trained and not hasattr(layer, "reset_parameters"):
                    raise InvalidInput(
                        f"Layer {type(layer).__name__} has parameters {trained} but no reset_parameters(): "
                        "give a function that makes the module instead of the module itself."
                    )
                if trained:
                    layer.reset_parameters()  # type: ignore[operator]
        given = dict(self.model.named_parameters())
        for name, p in module.named_parameters():
            if not p.requires_grad:  # `reset_parameters` also resets the frozen ones of a partly frozen layer
                p.data.copy_(given[name].data)
        return module

    def __call__(self, params: Params, x: Tensor) -> Tensor:
        """The module's output with these parameters, in evaluation mode: nothing in it is random."""
        if not self._evaluated:  # check once: intercepting every operation takes time
            few = x[:2]
            self._try(self.module, params, few, None)
            self._evaluated = True
        return only_tensor(self._call(self.module, params, x))

    def training(self, params: Params, x: Tensor, draws: Draws) -> Tensor:
        """The module's output in a training step: dropout is active, and draws from each example's key."""
        if self._draws is None:
            self._draws = self._try(self._in_training, params, x, draws)
            if self._draws and self.dropout == "refuse":
                raise InvalidInput(
                    f"The model {type(self.module).__name__} applies dropout in training: remove it, or {_OFF}."
                )
        if not self._draws:
            return self(params, x)
        with KeyedDropout(draws, len(x)):
            return only_tensor(self._call(self._in_training, params, x))

    def _try(self, module: nn.Module, params: Params, x: Tensor, draws: Draws | None) -> bool:
        """Call the module, as if for a gradient, to refuse one whose output does not depend on its arguments alone.

        Returns whether it has dropout.
        """
        if not no_transform_active():  # then values cannot be compared
            with torch.no_grad(), KeyedDropout(draws, len(x)) as dropout:
                self._call(module, params, x)
            return bool(dropout.layers)
        params = {name: value.detach().requires_grad_() for name, value in params.items()}
        before = {name: value.clone() for name, value in module.named_buffers()}
        try:
            with torch.enable_grad(), disable_saved_tensors_hooks(_RECOMPUTES):
                with KeyedDropout(draws, len(x)) as dropout:
                    first = only_tensor(self._call(module, params, x.clone()))  # a layer in place may write into it
                changed = [name for name, value in module.named_buffers() if not _same(value, before[name])]
                with KeyedDropout(draws, len(x)):
                    again = only_tensor(self._call(module, params, x.clone()))
                if draws is not None and dropout.layers and _same(first, again):
                    self._refuse_draws_of_others(params, x, draws, first)
        except RuntimeError as error:
            raise InvalidInput(_RECOMPUTES) if _RECOMPUTES in str(error) else error from None
        finally:
            with torch.no_grad():
                for name, value in module.named_buffers():
                    if name in before and not _same(value, before[name]):
                        value.copy_(before[name])
        if not _same(first, again):
            outside = "has a state outside its parameters (a counter, or a generator of numpy or Python), which changes"
            what = f"changes its {changed[0]}" if changed else outside
            raise InvalidInput(
                f"The model {what} in every call, and its output with it: clients' models have parameters only, so "
                "remove this (of a normalisation, by one that keeps nothing, such as LayerNorm or weight_norm)."
            )
        return bool(dropout.layers)

    def _refuse_draws_of_others(self, params: Params, x: Tensor, draws: Draws, alone: Tensor) -> None:
        """Refuse a model in which what an example drops depends on how many others are in its batch.

        Then examples are not on the first axis of a dropout layer's input, although its length is a multiple of theirs.
        """
        more = torch.cat([x, x[:1]])
        rows = draws.rows if draws.rows is None else torch.cat([draws.rows, draws.rows[:1]])
        with KeyedDropout(draws._replace(rows=rows), len(more)):
            if _same_rows(self._call(self._in_training, params, more.clone()), alone):
                return
        coupled = not _same_rows(
            self._call(self.module, params, more.clone()), only_tensor(self._call(self.module, params, x.clone()))
        )
        require(
            coupled,  # then dropout is not what couples them
            f"What the model {type(self.module).__name__} drops of an example depends on how many others are in its "
            "batch: wanted examples on the first axis wherever there is dropout (such as by batch_first=True); change "
            "the model, or use dropout='off'.",
        )

    def _call(self, module: nn.Module, params: Params, x: Tensor) -> Any:
        """The module's output with these parameters substituted for its own.

        `torch.func.functional_call` does the same, but looks up where the parameters are in every call, which makes a
        step of a small model a fifth longer.
        """
        if (places := self._places.get(module)) is None:
            places = self._places[module] = _places(module)
        if not params.keys() <= places.keys():
            return functional_call(module, params, (x,))  # raises, and names the unknown parameters
        before = [(holder, name, holder[name]) for key in params for holder, name in places[key]]
        try:
            for key, value in params.items():
                for holder, name in places[key]:
                    holder[name] = value  # type: ignore[assignment]
            return module(x)
        finally:
            for holder, name, value_before in before:
                holder[name] = value_before

    def describe(self) -> str:
        """A description of the model, for fingerprints and run records."""
        shapes = {name: list(p.shape) for name, p in self.module.named_parameters()}
        rates = f" {self._rates}" if self._rates else ""  # the module's own text has those of its dropout layers only
        return f"{self.module} {shapes}{self._frozen}{f', dropout on{rates}' if self.drops else ''}"

    @cached_property
    def _frozen(self) -> str:
        """A hash of the frozen values, so that models with different backbones have different descriptions."""
        frozen = {name: p for name, p in self.module.named_parameters() if name not in self.trainable}
        if not frozen:
            return ""
        digest = hashlib.sha256()
        for name, value in sorted((frozen | dict(self.module.named_buffers())).items()):
            digest.update(f"{name} {list(value.shape)};".encode())
            digest.update(value.double().cpu().contiguous().flatten().numpy().data)
        return f", {len(frozen)} frozen {digest.hexdigest()[:16]}"


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by rounding at most, as they may on a GPU."""
    if one.shape != other.shape or not one.is_floating_point():
        return torch.equal(one, other)
    near = torch.finfo(one.dtype).eps ** 0.5
    size = float(other.detach().abs().nan_to_num().amax()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=near, atol=near * size, equal_nan=True)


def _same_rows(more: object, alone: Tensor) -> bool:
    """Whether a model's output for more examples begins with its output for these alone."""
    out = only_tensor(more)
    return _same(out[: len(alone)] if alone.dim() else out, alone)


def _inner_dropout(module: nn.Module) -> dict[str, float]:
    """The rates of recurrent and attention layers that have dropout inside, by name."""
    kinds = (nn.RNNBase, nn.MultiheadAttention)
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, kinds) and layer.dropout > 0}
    return {name: layer.dropout for name, layer in layers.items() if getattr(layer, "num_layers", 2) > 1}


def _in_training(module: nn.Module, rates: Mapping[str, float]) -> nn.Module:
    """A copy of the module in training mode, except for normalisation layers; it shares the module's tensors.

    `rates` are those of `_inner_dropout`, which `_deterministic` has set to 0.
    """
    twin = copied(module, sharing=(*module.parameters(), *module.buffers())).train()
    for name, layer in twin.named_modules():
        if isinstance(layer, (_BatchNorm, _InstanceNorm)):
            layer.eval()
        if name in rates:
            layer.dropout = rates[name]
        if isinstance(layer, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)) and not _batch_first(layer):
            for place, inner in list(layer.named_children()):
                if type(inner) is nn.Dropout:
                    setattr(layer, place, PositionsFirst(inner))
    return twin


def _batch_first(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> bool:
    return bool(layer.self_attn.batch_first)


def _places(module: nn.Module) -> Places:
    names = dict[int, str]()  # by id: a tied parameter is listed under its first name
    places: Places = {}
    for prefix, layer in module.named_modules():
        for name, p in layer._parameters.items():
            if p is not None:
                key = names.setdefault(id(p), f"{prefix}.{name}".removeprefix("."))
                places.setdefault(key, []).append((layer._parameters, name))
    return places


def _flatten_where_apart(layer: nn.RNNBase) -> None:
    """Move a recurrent layer's weights into one piece of memory for cuDNN, unless they are in one.

    A layer does so whenever its weights are not those of the call before: here, in every call. A kernel that takes many
    steps with the same weights moves them itself, once.
    """
    weights = [weight for weight in layer._flat_weights if isinstance(weight, Tensor)]
    if not all(weight.is_cuda for weight in weights):
        return  # cuDNN takes none of them, and a step that asks where they are could not be replayed
    # Without cuDNN, weights may be those of a stack, which has no memory to ask for.
    if not torch.backends.cudnn.enabled or len({weight.untyped_storage().data_ptr() for weight in weights}) != 1:
        nn.RNNBase.flatten_parameters(layer)


def _deterministic(module: nn.Module) -> nn.Module:
    """Put the module into evaluation mode, so that nothing in it is random, except for recurrent layers and attention.

    In evaluation mode, cuDNN's recurrent layers have no backward pass, and attention takes a fast path without a vmap
    rule: these stay in training mode, with their own dropout set to 0. Embeddings get dense gradients, since optimisers
    and kernels do not support sparse ones.
    """
    module.eval()
    for layer in module.modules():
        if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)):
            layer.dropout = 0.0
        if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)):
            layer.training = True  # not `train()`, which would include inner layers such as dropout
        if isinstance(layer, nn.RNNBase):
            layer.flatten_parameters = partial(_flatten_where_apart, layer)  # type: ignore[method-assign]
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            layer.sparse = False
    return module


def refuse_coupled(module: nn.Module) -> None:
    """Raise InvalidInput for layers that make an example's loss depend on other examples."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        tracks = isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats)
        if tracks and not _constant(layer):
            raise InvalidInput(
                f"Layer {name!r} ({kind}) makes an example's loss depend on the other examples and keeps running "
                "statistics: use GroupNorm (or LayerNorm) instead, or freeze it."
            )


def refuse_unfit(module: nn.Module) -> None:
    """Raise InvalidInput for layers whose forward pass changes their weights, and for complex parameters."""
    for name, layer in module.named_modules():
        if getattr(layer, "max_norm", None) is not None and isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            raise InvalidInput(
                f"Layer {name!r} ({type(layer).__name__}) has max_norm={layer.max_norm:g}, so every forward pass "
                "changes its weights: remove max_norm, or scale the layer's output in forward."
            )
    names = [name for name, p in module.named_parameters() if p.is_complex()]
    require(
        not names, f"The model's {', '.join(names)} are complex: give their real and imaginary parts as parameters."
    )


_RECOMPUTES = (
    "The model saves memory by computing layers again in the backward pass (torch.utils.checkpoint), when its "
    "parameters are no longer the client's: switch gradient checkpointing off."
)
_OFF = "switch all dropout off with dropout='off'"


def find_dropout(module: nn.Module, *, refuse: bool) -> bool:
    """Whether the module has layers with dropout; with `refuse`, these raise InvalidInput."""
    rates = _inner_dropout(module)
    rates |= {name: layer.p for name, layer in module.named_modules() if isinstance(layer, _DropoutNd) and layer.p > 0}
    if rates and refuse:
        name, rate = next(iter(rates.items()))
        kind = type(module.get_submodule(name)).__name__
        raise InvalidInput(f"Layer {name!r} ({kind}) has dropout {rate}: set it to 0, or {_OFF}.")
    return bool(rates)


def _constant(layer: nn.Module) -> bool:
    """Whether a normalisation layer is frozen, so that it applies its stored statistics only."""
    params = list(layer.parameters())
    return bool(params and layer.track_running_stats) and not any(p.requires_grad for p in params)


def _load_frozen(module: nn.Module, frozen: Params, trainable: set[str]) -> None:
    """Replace a module's frozen values by those of another process."""
    own = {name: value for name, value in module.state_dict(keep_vars=True).items() if name not in trainable}
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in frozen.items()}:
        raise InvalidInput(
            f"The frozen parameters are {sorted(frozen)}, the model {type(module).__name__} has {sorted(own)}: both "
            "sides must make the same model."
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(frozen[name])


def only_tensor(out: object) -> Tensor:
    """A module's output, or its `logits` if it returns several values by name, as the models of transformers do."""
    if not isinstance(out, Tensor):
        logits = getattr(out, "logits", None)
        if isinstance(logits, Tensor):
            return logits
        raise InvalidInput(
            f"The model's output is a {type(out).__name__}, wanted one tensor: let its forward return the part to "
            "learn from (of a recurrent layer, `out, state = layer(x)`, that is the first)."
        )
    return out
