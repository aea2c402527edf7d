"""LSTM layers for a stack of clients: torch's own have no rule for vmap.

The products with the inputs of all time steps are one, and each time step has one more: for a stack of clients they are
batched products. What is element by element in a time step is one operation where torch has it so (CUDA). Backwards,
too, a time step has one product: the slopes of the weights are products over all time steps at once, taken at the end.
The numbers are those of `torch.nn.LSTM`.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


class Cells(TorchFunctionMode):
    """Takes every LSTM layer apart into its cells; other operations go through.

    Without cuDNN meanwhile: for it, `torch.nn.LSTM` looks where its weights are in memory, which a stack does not say.
    """

    def __enter__(self) -> Cells:
        self.before = torch.backends.cudnn.enabled
        torch.backends.cudnn.enabled = False
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.backends.cudnn.enabled = self.before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "lstm" and len(args) == 9 and not kwargs:
            return lstm(*args)
        return func(*args, **(kwargs or {}))


def lstm(
    x: Tensor,
    state: Any,
    weights: Any,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs of all time steps, and the last hidden and cell states: the arguments of torch's own."""
    if not isinstance(state, (tuple, list)) or len(state) != 2 or bidirectional or (dropout and train):
        raise NotImplementedError("packed sequences, both directions at once and dropout between layers have no cells")
    each = 4 if has_biases else 2
    if len(weights) != each * layers:
        raise NotImplementedError("an LSTM with projections has no cells")
    low = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else None
    outputs = x.transpose(0, 1) if batch_first else x  # t b i
    hidden, memory = [], []
    for layer in range(layers):
        into, across, *biases = weights[each * layer : each * (layer + 1)]
        bias = (biases[0] + biases[1]).unsqueeze(0) if biases else None
        h, c = (one[layer].to(into.dtype) for one in state)
        given = [one.unsqueeze(0) for one in (outputs, h, c, into, across)]
        with at_full_precision(x):  # products are lowered by themselves; all else would be, too
            outputs, c = (one.squeeze(0) for one in _Layer.apply(*given, bias, torch.is_grad_enabled(), low)[:2])  # type: ignore[no-untyped-call]
        hidden.append(outputs[-1])
        memory.append(c)
    return outputs.transpose(0, 1) if batch_first else outputs, torch.stack(hidden), torch.stack(memory)


class _Layer(torch.autograd.Function):
    """n clients' layers: x n t b i, h and c n b h, into n 4h i, across n 4h h, bias n 4h.

    Gives the outputs n t b h and the last memory n b h and, where it is `kept` for the way back, what `_cell` made.
    Products are in the precision `low`, if given; all else is in that of the inputs. vmap adds to the clients.
    """

    @staticmethod
    def forward(
        x: Tensor, h: Tensor, c: Tensor, into: Tensor, across: Tensor, bias: Tensor | None, kept: bool, low: Any
    ) -> tuple[Tensor, ...]:
        n, t, b, _ = x.shape
        given = _product(x.flatten(1, 2), into.mT, low, into.dtype)  # n tb 4h
        given = given if bias is None else given.add_(bias.unsqueeze(1))
        steps = given.unflatten(1, (t, b)).transpose(0, 1).contiguous().flatten(1, 2)  # t nb 4h
        turned = across.mT if low is None else across.mT.to(low)
        c = c.flatten(0, 1)
        outputs, memory, gates = [], [], []
        for now in steps:
            h, c, gate = _cell(now, _product(h, turned, low, across.dtype).flatten(0, 1), c)
            h = h.unflatten(0, (n, b))
            outputs.append(h)
            if kept:
                memory.append(c)
                gates.append(gate)
        return torch.stack(outputs, 1), c.unflatten(0, (n, b)).clone(), *memory, *gates

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, _, ctx.low = inputs
        out, _, *made = output
        ctx.biased = inputs[5] is not None
        ctx.save_for_backward(*tensors[:5], out, *made)
        ctx.mark_non_differentiable(*made)
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, down: Tensor | None, last: Tensor | None, *_: None) -> Any:
        x, h, first, into, across, out, *made = ctx.saved_tensors
        n, t, b, _ = out.shape
        memory, gates, low = [first.flatten(0, 1), *made[:t]], made[t:], ctx.low
        dtype, turned = across.dtype, across if low is None else across.to(low)
        to_c = torch.zeros_like(memory[-1]) if last is None else last.flatten(0, 1)
        to_h, slopes = h.new_zeros(h.shape), []
        for step in reversed(range(t)):
            to_h = to_h if down is None else to_h + down[:, step]
            slope, to_c = _cell_back(to_h.flatten(0, 1), to_c, memory[step], memory[step + 1], gates[step])
            slopes.append(slope.unflatten(0, (n, b)))
            to_h = _product(slopes[-1], turned, low, dtype)
        slope = torch.stack(slopes[::-1], 1).flatten(1, 2)  # n tb 4h
        to_bias = slope.sum(1) if ctx.biased else None
        slope = slope if low is None else slope.to(low)
        # The product of what came before each step with its slope: the first step has h, the others the outputs.
        to_across = _product(slope[:, b:].mT, out[:, :-1].flatten(1, 2), low, dtype)
        to_across = to_across + _product(slope[:, :b].mT, h, low, dtype)
        to_into = _product(slope.mT, x.flatten(1, 2), low, dtype)
        to_x = _product(slope, into, low, x.dtype).unflatten(1, (t, b)) if ctx.needs_input_grad[0] else None
        return to_x, to_h, to_c.unflatten(0, (n, b)), to_into, to_across, to_bias, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        *tensors, kept, low = given

        def with_clients(value: Tensor | None, dim: int | None) -> Tensor | None:
            if value is None:
                return None
            return (value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)).flatten(0, 1)

        merged = [with_clients(value, dim) for value, dim in zip(tensors, in_dims, strict=False)]
        out, last, *made = _Layer.apply(*merged, kept, low)  # type: ignore[no-untyped-call]
        apart = (info.batch_size, -1)
        return (out.unflatten(0, apart), last.unflatten(0, apart), *made), (0, 0, *[None] * len(made))


def at_full_precision(where: Tensor) -> Any:
    """Operations as their tensors are, in a mixed precision too."""
    kind = where.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _product(one: Tensor, other: Tensor, low: torch.dtype | None, dtype: torch.dtype) -> Tensor:
    """A batched product, in a lower precision where there is one."""
    if low is None:
        return torch.bmm(one, other)
    return torch.bmm(one.to(low), other.to(low)).to(dtype)


def _cell(given: Tensor, across: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden state and memory after a time step, and its gates; from both parts of what goes into these."""
    if given.is_cuda:
        h, c, gates = torch.ops.aten._thnn_fused_lstm_cell(given, across, c)
        return h, c, gates
    i, f, g, o = (given + across).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], -1)


def _cell_back(to_h: Tensor, to_c: Tensor, before: Tensor, after: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """The slopes of what went into the gates, and of the memory before the time step."""
    if gates.is_cuda:
        back = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
        slope, to_before, _ = back(to_h.contiguous(), to_c.contiguous(), before, after, gates, False)
        return slope, to_before
    i, f, g, o = gates.chunk(4, -1)
    t = after.tanh()
    to_c = to_c + to_h * o * (1 - t * t)
    parts = to_c * g * i * (1 - i), to_c * before * f * (1 - f), to_c * i * (1 - g * g), to_h * t * o * (1 - o)
    return torch.cat(parts, -1), to_c * f
