"""The traits of an objective's model, observed while it computes losses for one example."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from corymb.core.client import Examples, Objective
from corymb.core.objective import Draws
from corymb.engines.vectorised.flat_weights import Recurrence, recurrence
from corymb.engines.vectorised.recurrent import CELLS
from corymb.keys import root
from corymb.local.reference import training_losses
from corymb.models.recurrent import LAYERS, are_packed
from corymb.trees import Params, leaves, nbytes

PRODUCTS = frozenset(("linear", "conv1d", "conv2d", "conv3d"))


class Entry(NamedTuple):
    """The parameters of a linear layer that reads the examples themselves, by name."""

    weight: str
    bias: str | None


class Traits(NamedTuple):
    """What the choice of a kernel and the size of a chunk depend on."""

    parameters: int
    parameter_bytes: int
    activation_bytes: int
    """The bytes of all tensors that a forward pass of one example produces."""
    fusable: bool
    """Whether every parameter is used exactly once, by a linear layer."""
    convolutional: bool
    recurrent: bool
    lstm: bool = False
    """Whether it has LSTM layers on series of equal length, the only recurrent layers that oneDNN computes on a CPU."""
    attends: bool = False
    """Whether it has scaled dot-product attention."""
    looks_up: bool = False
    """Whether it looks up codes in embeddings."""
    independent: bool = True
    """Whether an example's loss is independent of the other examples in its batch."""
    writes: bool = False
    """Whether the model writes into the examples it is given, for example by a first layer that works in place."""
    largest_bytes: int = 1
    """The bytes of the largest parameter."""
    entry: Entry | None = None
    """The layer that reads the examples as they are, also in training."""
    layers: frozenset[str] = frozenset()
    """Parameters that are used once, by a linear layer, also in training."""
    products: frozenset[str] = frozenset()
    """Parameters that only linear layers and convolutions use, also in training."""
    recurrences: tuple[Recurrence, ...] = ()
    """The recurrent layers used in training."""
    free_padding: bool = False
    """Whether packed sequences that the model unpacks may be padded further without changing its losses."""


def traits_of(objective: Objective, params: Params, one: Examples) -> Traits:
    """The traits of an objective, recorded in forward passes of one example."""
    evaluating, before = _UseRecorder(params, one), [t._version for t in one]
    training = _UseRecorder(params, one)
    with torch.no_grad():
        draws = Draws(root(0).to(one.weight.device))
        objective.losses(params, one)  # a `Network` runs an extra check in its first pass, which would count uses twice
        training_losses(objective, params, one, draws)
        with evaluating:
            objective.losses(params, one)
        with training:
            training_losses(objective, params, one, draws)
        with suppress(Exception):  # an objective that cannot be scored raises when scores are requested
            objective.scores(params, one)
    writes = before != [t._version for t in one]
    return Traits(
        parameters=sum(p.numel() for p in params.values()),
        parameter_bytes=nbytes(params),
        activation_bytes=evaluating.made,
        fusable=all(uses == ["linear"] for uses in evaluating.uses.values()),
        convolutional=evaluating.convolutional,
        recurrent=evaluating.recurrent,
        lstm=evaluating.lstm,
        attends=evaluating.attends or training.attends,
        looks_up=evaluating.looks_up or training.looks_up,
        writes=writes,
        largest_bytes=max(map(nbytes, params.values()), default=1),
        entry=evaluating.entry if evaluating.entry == training.entry and not writes else None,
        layers=evaluating.layers & training.layers,
        products=evaluating.products & training.products,
        recurrences=tuple(training.recurrences),
    )


class CountedExamples:
    """A wrapper of an objective that records how many examples of a client it gets at once, overall and in training."""

    def __init__(self, inner: Objective) -> None:
        self.inner, self.examples, self.trained = inner, 0, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name == "training_losses":
            return lambda params, on, *more: self._see_training(on.weight, found(params, on, *more))
        if name in ("losses", "scores"):
            return lambda params, on: self._see(on.weight, found(params, on))
        return (lambda params, x: self._see(x, found(params, x))) if name == "predict" else found

    def _see_training(self, examples: Tensor, result: Tensor) -> Tensor:
        self.trained = max(self.trained, len(examples))
        return self._see(examples, result)

    def _see(self, examples: Tensor, result: Tensor) -> Tensor:
        self.examples = max(self.examples, len(examples))
        return result


class _UseRecorder(TorchFunctionMode):
    def __init__(self, params: Params, one: Examples) -> None:
        super().__init__()
        self.names, self.x = {id(p): name for name, p in params.items()}, one.x
        self.uses: dict[int, list[str]] = {id(p): [] for p in params.values()}
        self.entry: Entry | None = None
        self.linears: list[tuple[Tensor, Tensor | None]] = []
        self.made = 0
        self.convolutional = self.looks_up = self.attends = False
        self.recurrent = self.lstm = False
        self.recurrences: list[Recurrence] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if func is torch.nn.functional.linear:
            given = linear_arguments(*args, **(kwargs or {}))
            self.entry = self.entry or self._entry(*given)
            self.linears.append(given[1:])
        if name in ("__get__", "__set__") and not isinstance(out, Tensor):  # p.shape uses no parameter, p.T does
            return out
        self.convolutional |= name.startswith("conv")
        self.looks_up |= name == "embedding"
        self.attends |= name in ("scaled_dot_product_attention", "multi_head_attention_forward")
        self.recurrent |= name in (*LAYERS, *CELLS)
        self.lstm |= name == "lstm" and not are_packed(args)
        if name in LAYERS and (found := recurrence(name, args, self.names)):
            self.recurrences.append(found)
        for leaf in leaves([list(args), dict(kwargs or {})]):
            if id(leaf) in self.uses:
                self.uses[id(leaf)].append(name)
        self.made += sum(leaf.numel() * leaf.element_size() for leaf in leaves(out) if isinstance(leaf, Tensor))
        return out

    @property
    def products(self) -> frozenset[str]:
        """The parameters used only by products."""
        found = (number for number, uses in self.uses.items() if uses and PRODUCTS.issuperset(uses))
        return frozenset(self.names[number] for number in found)

    @property
    def layers(self) -> frozenset[str]:
        """The parameters of linear layers that are used once, and nowhere else."""
        once = {number for number, uses in self.uses.items() if uses == ["linear"]}
        own = [[id(p) for p in layer if p is not None] for layer in self.linears]
        return frozenset(self.names[number] for numbers in own if once.issuperset(numbers) for number in numbers)

    def _entry(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Entry | None:
        same = input.data_ptr() == self.x.data_ptr() and input.numel() == self.x.numel() and input.is_contiguous()
        if not same or id(weight) not in self.names or (bias is not None and id(bias) not in self.names):
            return None
        return Entry(self.names[id(weight)], None if bias is None else self.names[id(bias)])


def linear_arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arguments of `linear`, whether given by position or by name."""
    return input, weight, bias
