"""Steps of the first linear layer in the span of the examples, if all steps see the same few examples.

The gradient of a linear layer's weights is gᵀX, where g and X have a row for each example. After steps of plain SGD
from W₀ the weights are therefore W₀ − γ GᵀX, where G is the sum of the steps' g, and the layer's output at the next
step is XW₀ᵀ + b₀ − γ (XXᵀ + 1) G. With m examples of d features and o outputs, a step takes one product with an m × m
matrix instead of two with the d × o weights, which are computed once, at the end. In real arithmetic the result is the
same; in floating point it differs by rounding, as between any two kernels. Padded rows have weight 0, so their g is 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.core.objective import Examples
from corymb.engines.vectorised.traits import Entry
from corymb.local.descent import Descent
from corymb.trees import Params

SMALL_LAYER = 4096
"""Number of weights below which a step's time is the overhead of calls, not arithmetic."""
GRAM_COST = 1.5
"""How much slower, per multiplication, products with m × m matrices are than those with the weights."""
FIRST, GRAM, TOTAL = "span: first", "span: gram", "span: total"
"""Names of the layer's state among the parameters; no module's parameter can have such a name."""


def pays(m: int, d: int, o: int, steps: int) -> bool:
    """Whether steps in the span of m examples take fewer multiplications than steps on d × o weights."""
    by_examples = m * (2 * d * o + m * d + steps * m * o)
    return d * o >= SMALL_LAYER and GRAM_COST * by_examples <= 2 * steps * m * d * o


class Span(NamedTuple):
    """A layer that is stepped in the span of the examples; its state is kept among the stacked parameters."""

    entry: Entry
    shape: tuple[int, ...]
    """The shape of the weights: o d."""

    @staticmethod
    def of(entry: Entry | None, params: Params, on: Examples, how: Descent) -> Span | None:
        """The span for the layer that reads these examples, if every step sees all of them and it pays; else None."""
        if entry is None or how.batch is not None or not on.x.numel() or not on.x.is_contiguous():
            return None
        steps = how.steps or how.epochs or 1
        shape = tuple(params[entry.weight].shape[1:])
        if len(shape) != 2 or on.x[0].numel() % shape[1]:
            return None
        return Span(entry, shape) if pays(on.x[0].numel() // shape[1], shape[1], shape[0], steps) else None

    def begin(self, params: Params, on: Examples) -> Params:
        """The layer's initial state: its output XW₀ᵀ + b₀, XXᵀ + 1 (XXᵀ without a bias), and G = 0."""
        x, weight = self._rows(on), params[self.entry.weight]
        if self.entry.bias is None:
            first, gram = torch.bmm(x, weight.mT), torch.bmm(x, x.mT)
        else:
            first = torch.baddbmm(params[self.entry.bias].unsqueeze(1), x, weight.mT)
            gram = torch.baddbmm(x.new_ones(()), x, x.mT)
        return {FIRST: first, GRAM: gram, TOTAL: torch.zeros_like(first)}

    def end(self, at: Params, params: Params, on: Examples, lr: float, *, own: bool) -> Params:
        """All parameters after the steps.

        Arguments:
            at: The stacked parameters and the layer's state after the last step.
            params: The parameters before the first step; the layer's weights are overwritten if `own`.
            on: The examples of all steps.
            lr: The step size γ.
            own: Whether `params` may be written into.
        """
        weight, total = params[self.entry.weight], at[TOTAL]
        add = weight.baddbmm_ if own and weight.is_contiguous() else weight.baddbmm
        made = {self.entry.weight: add(total.mT, self._rows(on), alpha=-lr)}
        if self.entry.bias is not None:
            made[self.entry.bias] = params[self.entry.bias] - lr * total.sum(1)
        return {name: made[name] if name in made else at[name] for name in params}

    def stand_ins(self, one: Params) -> tuple[Params, Reading]:
        """One client's parameters for its objective, with zeros in place of the layer's, and the layer's state."""
        rest = {name: value for name, value in one.items() if name not in (FIRST, GRAM, TOTAL)}
        blank = torch.zeros((), device=one[FIRST].device, dtype=one[FIRST].dtype)
        given = {**rest, self.entry.weight: blank.expand(self.shape)}
        if self.entry.bias is not None:
            given[self.entry.bias] = blank.expand(self.shape[:1])
        return given, Reading(id(given[self.entry.weight]), one[FIRST], one[GRAM], one[TOTAL])

    def _rows(self, on: Examples) -> Tensor:
        return on.x.reshape(len(on.x), -1, self.shape[1])


class Reading(NamedTuple):
    """One client's layer while its objective runs."""

    weight: int
    """The id of the stand-in for the layer's weights, by which its call of `linear` is recognised."""
    first: Tensor
    gram: Tensor
    total: Tensor

    def __call__(self, x: Tensor, on: Examples, token: Tensor, lr: float) -> Tensor:
        """The layer's output at this step."""
        out: Tensor = _UnderVmap.apply(x, on.x, self.first, self.gram, self.total, token, lr)  # type: ignore[no-untyped-call]
        return out


class _UnderVmap(torch.autograd.Function):
    """One client's layer; its vmap rule computes the layer of all clients."""

    @staticmethod
    def forward(
        x: Tensor, seen: Tensor, first: Tensor, gram: Tensor, total: Tensor, token: Tensor, lr: float
    ) -> Tensor:
        raise RuntimeError("a layer in the span of the examples runs only under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, seen: Tensor, *state: Any) -> Any:
        same = x.data_ptr() == seen.data_ptr() and x.numel() == seen.numel() and x.is_contiguous()
        if any(in_dims[:5]) or not same:
            raise RuntimeError("the layer's input is not the examples themselves, as it was when the model was traced")
        first, gram, total, token, lr = state
        out = _Layer.apply(first, gram, total, token, lr)  # type: ignore[no-untyped-call]
        return out.reshape(*x.shape[:-1], first.shape[-1]), 0


class _Layer(torch.autograd.Function):
    """n clients' layers: first and total n m o, gram n m m."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, gram: Tensor, total: Tensor, token: Tensor, lr: float) -> Tensor:
        ctx.total = total  # not `save_for_backward`, which forbids in-place changes
        return torch.baddbmm(first, gram, total, alpha=-lr)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.total.add_(grads[0])
        return None, None, None, None, None
