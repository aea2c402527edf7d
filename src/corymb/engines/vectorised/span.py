"""The layer that reads the examples, stepped by way of them: for steps that all see the same few examples.

The gradient of a linear layer's weights is gᵀX, with a row of g and of X for each example. So after steps of plain SGD
from W₀ they are W₀ − γ GᵀX, where G is the sum of the steps' g, and what the layer gives at the next step is
XW₀ᵀ + b₀ − γ (XXᵀ + 1) G. With m examples of d features and o outputs a step is one product with m × m numbers instead
of two with the d × o weights, which are made once, at the end. In real arithmetic nothing changes; in floating point
it is a rounding, as between any two kernels. Rows of padding have weight 0, so that their g is 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.core.objective import Examples
from corymb.engines.vectorised.traits import Entry
from corymb.local.descent import Descent
from corymb.trees import Params

SMALL = 4096  # weights; below this a step is not arithmetic but calls
GAIN = 1.5  # products of m × m numbers are slower, number for number, than those with long rows
FIRST, GRAM, TOTAL = "span: first", "span: gram", "span: total"  # no module can have such names


def pays(m: int, d: int, o: int, steps: int) -> bool:
    """Whether steps by way of m examples are cheaper than those on d × o weights, in multiplications."""
    by_examples = m * (2 * d * o + m * d + steps * m * o)
    return d * o >= SMALL and GAIN * by_examples <= 2 * steps * m * d * o


class Span(NamedTuple):
    """A layer that is stepped by way of the examples; its state is among the stack of parameters."""

    entry: Entry
    shape: tuple[int, ...]
    """Of the weights: o d."""

    @staticmethod
    def of(entry: Entry | None, params: Params, on: Examples, how: Descent) -> Span | None:
        """For the layer that reads these examples, where every step sees all of them and that pays."""
        if entry is None or how.batch is not None or not on.x.numel() or not on.x.is_contiguous():
            return None
        steps = how.steps or how.epochs or 1
        shape = tuple(params[entry.weight].shape[1:])
        if len(shape) != 2 or on.x[0].numel() % shape[1]:
            return None
        return Span(entry, shape) if pays(on.x[0].numel() // shape[1], shape[1], shape[0], steps) else None

    def begin(self, params: Params, on: Examples) -> Params:
        """The layer's state: what it gives at first, XXᵀ + 1, and G = 0."""
        x, weight = self._rows(on), params[self.entry.weight]
        if self.entry.bias is None:
            first, gram = torch.bmm(x, weight.mT), torch.bmm(x, x.mT)
        else:
            first = torch.baddbmm(params[self.entry.bias].unsqueeze(1), x, weight.mT)
            gram = torch.baddbmm(x.new_ones(()), x, x.mT)
        return {FIRST: first, GRAM: gram, TOTAL: torch.zeros_like(first)}

    def end(self, at: Params, params: Params, on: Examples, lr: float, *, own: bool) -> Params:
        """All parameters after the steps, from where they began; those may be written into if they are `own`."""
        weight, total = params[self.entry.weight], at[TOTAL]
        add = weight.baddbmm_ if own and weight.is_contiguous() else weight.baddbmm
        made = {self.entry.weight: add(total.mT, self._rows(on), alpha=-lr)}
        if self.entry.bias is not None:
            made[self.entry.bias] = params[self.entry.bias] - lr * total.sum(1)
        return {name: made[name] if name in made else at[name] for name in params}

    def stand_ins(self, one: Params) -> tuple[Params, Reading]:
        """One client's parameters for its objective, with nothing in the layer's, and the layer's state."""
        rest = {name: value for name, value in one.items() if name not in (FIRST, GRAM, TOTAL)}
        blank = torch.zeros((), device=one[FIRST].device, dtype=one[FIRST].dtype)
        given = {**rest, self.entry.weight: blank.expand(self.shape)}
        if self.entry.bias is not None:
            given[self.entry.bias] = blank.expand(self.shape[:1])
        return given, Reading(id(given[self.entry.weight]), one[FIRST], one[GRAM], one[TOTAL])

    def _rows(self, on: Examples) -> Tensor:
        return on.x.reshape(len(on.x), -1, self.shape[1])


class Reading(NamedTuple):
    """One client's layer while its objective runs: known by its weights, which are a stand-in."""

    weight: int
    first: Tensor
    gram: Tensor
    total: Tensor

    def __call__(self, x: Tensor, on: Examples, token: Tensor, lr: float) -> Tensor:
        """What the layer gives at this step."""
        out: Tensor = _UnderVmap.apply(x, on.x, self.first, self.gram, self.total, token, lr)  # type: ignore[no-untyped-call]
        return out


class _UnderVmap(torch.autograd.Function):
    """One client's layer; under vmap it steps out and does the layer of all clients."""

    @staticmethod
    def forward(
        x: Tensor, seen: Tensor, first: Tensor, gram: Tensor, total: Tensor, token: Tensor, lr: float
    ) -> Tensor:
        raise RuntimeError("a layer by way of the examples runs under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, seen: Tensor, *state: Any) -> Any:
        same = x.data_ptr() == seen.data_ptr() and x.numel() == seen.numel() and x.is_contiguous()
        if any(in_dims[:5]) or not same:
            raise RuntimeError("the layer that read the examples reads something else")
        first, gram, total, token, lr = state
        out = _Layer.apply(first, gram, total, token, lr)  # type: ignore[no-untyped-call]
        return out.reshape(*x.shape[:-1], first.shape[-1]), 0


class _Layer(torch.autograd.Function):
    """n clients' layers: first and total n m o, gram n m m."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, gram: Tensor, total: Tensor, token: Tensor, lr: float) -> Tensor:
        ctx.total = total  # not a saved tensor: it is added to in place on purpose
        return torch.baddbmm(first, gram, total, alpha=-lr)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.total.add_(grads[0])
        return None, None, None, None, None
