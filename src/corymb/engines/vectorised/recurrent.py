"""Recurrent layers and cells for a stack of clients, because torch's own have no vmap rule.

The products with the inputs of all time steps are one batched product, and each time step has one more. The elementwise
part of a time step is a single operation where torch has one (CUDA). The backward pass has one product per time step,
too: the gradients of the weights are products over all time steps at once, computed at the end. The numbers are those
of `torch.nn.LSTM`, `GRU` and `RNN`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from corymb.engines.vectorised.packed import PackedSequences
from corymb.models.recurrent import LAYERS, are_packed

CELLS = ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")


class Cells(TorchFunctionMode):
    """Computes recurrent layers and cells by the functions of this module; other operations are left alone.

    cuDNN is disabled within: `torch.nn.RNNBase` would ask where its weights are in memory, undefined in a stack.
    Integer tensors are not moved to the CPU: `packed` does not need lengths there, and a GPU need not wait for them.
    `free_padding` means that packed sequences may be padded further than the model asks for.
    """

    def __init__(self, *, free_padding: bool = False) -> None:
        super().__init__()
        self.free_padding = free_padding

    def __enter__(self) -> Cells:
        self.before, self.packed = torch.backends.cudnn.enabled, PackedSequences(self.free_padding)
        torch.backends.cudnn.enabled = False
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.backends.cudnn.enabled = self.before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in LAYERS and len(args) == 9 and not kwargs:
            return self._packed_layers(name, *args) if are_packed(args) else layers(name, *args)
        if name in CELLS and not kwargs:
            return cell(name, *args)
        if name == "_pack_padded_sequence":
            return self.packed.pack(*args)
        if name == "_pad_packed_sequence":
            rows, _, *form = args
            return self.packed.pad(rows, *form)
        if (
            name == "scatter_"
        ):  # of `pack_padded_sequence`; in place it has no vmap rule, so torch would loop over clients
            return args[0].copy_(torch.scatter(*args, **(kwargs or {})))
        if name in ("cpu", "to") and not args[0].is_floating_point():
            return _moved(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _packed_layers(self, name: str, rows: Tensor, sizes: Tensor, *form: Any) -> tuple[Tensor, ...]:
        series = self.packed.find(rows)
        given = (*form, False, series.real)
        out, *ends = layers(name, series.x, *given)
        return self.packed.remember(series._replace(x=out)), *ends


def _moved(func: Any, tensor: Tensor, device: Any = "cpu", *more: Any, **options: Any) -> Tensor:
    """`cpu` or `to`, which do not move a tensor to the CPU."""
    to_cpu = isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu"
    if not to_cpu or func is torch.Tensor.cpu:
        return tensor if to_cpu else func(tensor, device, *more, **options)
    return tensor.to(tensor.device, *more, **options)


# ---- cells that a model applies step by step itself


def cell(name: str, x: Tensor, state: Any, into: Tensor, across: Tensor, *biases: Tensor | None) -> Any:
    """One time step, with the arguments and results of torch's own cells."""
    h = state[0] if name == "lstm_cell" else state
    given, recurring = linear(x, into, biases[0]), linear(h, across, biases[1])
    if name == "lstm_cell":
        i, f, g, o = (given + recurring).chunk(4, -1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if name == "gru_cell":
        (r, z, n), (recurring_r, recurring_z, recurring_n) = given.chunk(3, -1), recurring.chunk(3, -1)
        z, n = (z + recurring_z).sigmoid(), (n + (r + recurring_r).sigmoid() * recurring_n).tanh()
        return n + z * (h - n)
    return (given + recurring).tanh() if name == "rnn_tanh_cell" else (given + recurring).relu()


# ---- layers


class Moment(NamedTuple):
    """A time step that the backward pass returns to."""

    before: Tensor
    """The hidden state before the step: n b h. It is not contiguous: only the kinds that need it flatten it."""
    after: Tensor
    memory: Tensor
    """An LSTM's memory before the step: nb h."""
    kept: Sequence[Tensor]
    """What the forward pass kept for this step."""


class Slopes(NamedTuple):
    """Gradients with respect to the inputs of a time step."""

    given: Tensor
    recurring: Tensor
    memory: Tensor
    hidden: Tensor | None = None
    """With respect to the hidden state before the step, where it has effects other than through `recurring`."""


class Kind(NamedTuple):
    """The elementwise part of a time step of a recurrent layer.

    `given` is the contribution of the inputs and `recurring` that of the hidden state, both nb gates·h with their
    biases; h and c are nb h. Only an LSTM has a memory c; the others pass it on.
    """

    forward: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Sequence[Tensor]]]
    """Maps given, recurring, h and c to the next h and c, and what the backward pass needs (an LSTM's c first)."""
    backward: Callable[[Tensor, Tensor, Moment], Slopes]
    """Maps the gradients with respect to h and c after the step to those with respect to the step's inputs."""
    kept: int
    """The number of tensors that the forward pass keeps for each step."""


def layers(
    name: str,
    x: Tensor,
    state: Any,
    weights: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    real: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The outputs of all time steps and the last states, with the arguments of torch's own functions.

    If series differ in length, `real` masks the time steps within each (t b); after its end, a state is unchanged.
    """
    if dropout and train:
        raise NotImplementedError("recurrent layers with dropout between them have no implementation for a stack")
    directions = 2 if bidirectional else 1
    each = len(weights) // (directions * num_layers)
    projected = each > (4 if has_biases else 2)
    states = state if name == "lstm" else (state, state)
    outputs = x.transpose(0, 1) if batch_first else x  # t b i
    last = []
    for layer in range(num_layers):
        both = []
        for place in range(directions * layer, directions * (layer + 1)):
            backwards = place % directions == 1
            own, (h, c) = weights[each * place : each * (place + 1)], (one[place] for one in states)
            compute = _projected if projected else partial(_layer, name)
            series, within = (outputs.flip(0), real if real is None else real.flip(0)) if backwards else (outputs, real)
            out, c = compute(series, h, c, own, within)
            last.append((out[-1], c))
            both.append(out.flip(0) if backwards else out)
        outputs = torch.cat(both, -1) if bidirectional else both[0]
    ends = [torch.stack(one) for one in zip(*last, strict=True)]
    return outputs.transpose(0, 1) if batch_first else outputs, *(ends if name == "lstm" else ends[:1])


def _layer(
    name: str, x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], real: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One layer of one client in one direction: its outputs t b h and last memory b h."""
    into, across, *biases = weights
    low = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else None
    # A GRU multiplies the recurrent part, including its bias; for the others, the two biases can be added up.
    bias, recurring_bias = (
        (biases or (None, None)) if name == "gru" else (biases[0] + biases[1] if biases else None, None)
    )
    given = [x, h.to(into.dtype), c.to(into.dtype), into, across, bias, recurring_bias, real]
    of_one = [None if one is None else one.unsqueeze(0) for one in given]
    with at_full_precision(x):  # products are cast to `low` explicitly; autocast would cast the rest as well
        out, c, *_ = _Layer.apply(*of_one, name, torch.is_grad_enabled(), low)  # type: ignore[no-untyped-call]
    return out.squeeze(0), c.squeeze(0)


def _projected(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], real: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One layer of an LSTM whose hidden states are projected, cell by cell, since such layers are rare."""
    into, across, *biases, projection = weights
    outputs = []
    for step, now in enumerate(x):
        before = h, c
        h, c = cell("lstm_cell", now, before, into, across, *(biases or (None, None)))
        h = linear(h, projection)
        if real is not None:
            h, c = (torch.where(real[step].unsqueeze(-1), *both) for both in zip((h, c), before, strict=True))
        outputs.append(h)
    return torch.stack(outputs), c


class _Layer(torch.autograd.Function):
    """n clients' layers: x n t b i, h and c n b h, into n gh i, across n gh h, both biases n gh, with g gates.

    `real` (n t b), if given, masks the time steps within each series; after its end, its states are unchanged. Returns
    the outputs n t b h, the last memory n b h and, with `kept`, the tensors that each time step's `Kind.forward` keeps
    for the backward pass. Products have precision `low`, if given; the rest has that of the inputs. Under vmap, the
    vmapped axis is merged into the axis of clients.
    """

    @staticmethod
    def forward(
        x: Tensor,
        h: Tensor,
        c: Tensor,
        into: Tensor,
        across: Tensor,
        bias: Tensor | None,
        recurring_bias: Tensor | None,
        real: Tensor | None,
        name: str,
        kept: bool,
        low: Any,
    ) -> tuple[Tensor, ...]:
        n, t, b, _ = x.shape
        given = _product(x.flatten(1, 2), into.mT, low, into.dtype)  # n tb gh
        given = given if bias is None else given.add_(bias.unsqueeze(1))
        steps = given.unflatten(1, (t, b)).transpose(0, 1).contiguous().flatten(1, 2)  # t nb gh
        turned = across.mT if low is None else across.mT.to(low)
        h, c = h.flatten(0, 1), c.flatten(0, 1)
        outputs: list[Tensor] = []
        saved: list[Tensor] = []
        for step, now in enumerate(steps):
            before = h, c
            recurring = _product(h.unflatten(0, (n, b)), turned, low, across.dtype)
            recurring = recurring if recurring_bias is None else recurring + recurring_bias.unsqueeze(1)
            h, c, made = KINDS[name].forward(now, recurring.flatten(0, 1), h, c)
            if real is not None:
                within = real[:, step].reshape(-1, 1)
                h, c = torch.where(within, h, before[0]), torch.where(within, c, before[1])
                made = (c, *made[1:]) if name == "lstm" else made
            outputs.append(h.unflatten(0, (n, b)))
            saved += made if kept else ()
        return torch.stack(outputs, 1), c.unflatten(0, (n, b)).clone(), *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, real, ctx.name, _, ctx.low = inputs
        out, _, *saved = output
        ctx.biased = [bias is not None for bias in tensors[5:]]
        ctx.save_for_backward(*tensors[:5], real, out, *saved)
        ctx.mark_non_differentiable(*saved)
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_out: Tensor | None, to_last: Tensor | None, *_: None) -> Any:
        x, h, c, into, across, real, out, *saved = ctx.saved_tensors
        (n, t, b, _), low, kind = out.shape, ctx.low, KINDS[ctx.name]
        dtype, turned = across.dtype, across if low is None else across.to(low)
        to_c = torch.zeros_like(c).flatten(0, 1) if to_last is None else to_last.flatten(0, 1)
        to_h = torch.zeros_like(h)
        slopes, recurring_slopes = [], []
        for step in reversed(range(t)):
            to_h = to_h if to_out is None else to_h + to_out[:, step]
            before = out[:, step - 1] if step else h
            memory = saved[kind.kept * (step - 1)] if step and saved else c.flatten(0, 1)
            kept = saved[kind.kept * step : kind.kept * (step + 1)]
            past = None
            if real is not None:  # after the end of a series, the states were passed on unchanged
                within = real[:, step].unsqueeze(-1)
                past = torch.where(within, 0, to_h), torch.where(within.flatten(0, 1), 0, to_c)
                to_h, to_c = to_h - past[0], to_c - past[1]
            found = kind.backward(to_h.flatten(0, 1), to_c, Moment(before, out[:, step], memory, kept))
            slopes.append(found.given.unflatten(0, (n, b)))
            same = found.recurring is found.given
            recurring_slopes.append(slopes[-1] if same else found.recurring.unflatten(0, (n, b)))
            to_h = _product(recurring_slopes[-1], turned, low, dtype)
            to_h, to_c = to_h if found.hidden is None else to_h + found.hidden.unflatten(0, (n, b)), found.memory
            if past is not None:
                to_h, to_c = to_h + past[0], to_c + past[1]
        slope = torch.stack(slopes[::-1], 1).flatten(1, 2)  # n tb gh
        same = recurring_slopes[0] is slopes[0]
        recurring_slope = slope if same else torch.stack(recurring_slopes[::-1], 1).flatten(1, 2)
        biases = [
            one.sum(1) if is_there else None for one, is_there in zip((slope, recurring_slope), ctx.biased, strict=True)
        ]
        slope = slope if low is None else slope.to(low)
        recurring_slope = slope if same else recurring_slope
        # The product of the hidden state before each step (h, then the outputs) with the step's gradient.
        to_across = _product(recurring_slope[:, b:].mT, out[:, :-1].flatten(1, 2), low, dtype)
        to_across = to_across + _product(recurring_slope[:, :b].mT, h, low, dtype)
        to_into = _product(slope.mT, x.flatten(1, 2), low, dtype)
        to_x = _product(slope, into, low, x.dtype).unflatten(1, (t, b)) if ctx.needs_input_grad[0] else None
        return to_x, to_h, to_c.unflatten(0, (n, b)), to_into, to_across, *biases, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        *tensors, name, kept, low = given

        def with_clients(value: Tensor | None, dim: int | None) -> Tensor | None:
            if value is None:
                return None
            return (value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)).flatten(0, 1)

        merged = [with_clients(value, dim) for value, dim in zip(tensors, in_dims, strict=False)]
        out, last, *made = _Layer.apply(*merged, name, kept, low)  # type: ignore[no-untyped-call]
        split = (info.batch_size, -1)
        return (out.unflatten(0, split), last.unflatten(0, split), *made), (0, 0, *[None] * len(made))


def at_full_precision(where: Tensor) -> Any:
    """A context in which operations keep the precision of their tensors, even under autocast."""
    kind = where.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _product(one: Tensor, other: Tensor, low: torch.dtype | None, dtype: torch.dtype) -> Tensor:
    """A batched product, computed in a lower precision if one is given."""
    if low is None:
        return torch.bmm(one, other)
    return torch.bmm(one.to(low), other.to(low)).to(dtype)


# ---- one time step of each kind


def _lstm(given: Tensor, recurring: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    if given.is_cuda:
        h, c, gates = torch.ops.aten._thnn_fused_lstm_cell(given, recurring, c)
        return h, c, (c, gates)
    i, f, g, o = (given + recurring).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, (c, torch.cat([i, f, g, o], -1))


def _lstm_back(to_h: Tensor, to_c: Tensor, at: Moment) -> Slopes:
    after, gates = at.kept
    if gates.is_cuda:
        back = torch.ops.aten._thnn_fused_lstm_cell_backward_impl
        slope, to_memory, _ = back(to_h.contiguous(), to_c.contiguous(), at.memory, after, gates, False)
        return Slopes(slope, slope, to_memory)
    i, f, g, o = gates.chunk(4, -1)
    t = after.tanh()
    to_c = to_c + to_h * o * (1 - t * t)
    parts = to_c * g * i * (1 - i), to_c * at.memory * f * (1 - f), to_c * i * (1 - g * g), to_h * t * o * (1 - o)
    slope = torch.cat(parts, -1)
    return Slopes(slope, slope, to_c * f)


def _gru(given: Tensor, recurring: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    if given.is_cuda:
        h, workspace = torch.ops.aten._thnn_fused_gru_cell(given, recurring, h.contiguous())
        return h, c, (workspace,)
    gates = 2 * h.shape[-1]
    r, z = (given[..., :gates] + recurring[..., :gates]).sigmoid().chunk(2, -1)
    into_n = recurring[..., gates:]
    n = torch.addcmul(given[..., gates:], r, into_n).tanh()
    return torch.addcmul(n, z, h - n), c, (torch.cat([r, z, n, into_n], -1),)


def _gru_back(to_h: Tensor, to_c: Tensor, at: Moment) -> Slopes:
    (kept,) = at.kept
    if kept.is_cuda:
        back = torch.ops.aten._thnn_fused_gru_cell_backward
        slope, recurring, hidden, *_ = back(to_h.contiguous(), kept, False)
        return Slopes(slope, recurring, to_c, hidden)
    r, z, n, into_n = kept.chunk(4, -1)
    hidden = to_h * z
    to_z = (at.before.flatten(0, 1) - n) * hidden * (1 - z)
    to_n = (to_h - hidden) * (1 - n * n)
    to_r = to_n * into_n * r * (1 - r)
    return Slopes(torch.cat([to_r, to_z, to_n], -1), torch.cat([to_r, to_z, to_n * r], -1), to_c, hidden)


def _rnn_tanh(given: Tensor, recurring: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    return (given + recurring).tanh(), c, ()


def _rnn_tanh_back(to_h: Tensor, to_c: Tensor, at: Moment) -> Slopes:
    after = at.after.flatten(0, 1)
    slope = to_h * (1 - after * after)
    return Slopes(slope, slope, to_c)


def _rnn_relu(given: Tensor, recurring: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
    return (given + recurring).relu(), c, ()


def _rnn_relu_back(to_h: Tensor, to_c: Tensor, at: Moment) -> Slopes:
    slope = torch.where(at.after.flatten(0, 1) > 0, to_h, 0)
    return Slopes(slope, slope, to_c)


KINDS = {
    "lstm": Kind(_lstm, _lstm_back, 2),
    "gru": Kind(_gru, _gru_back, 1),
    "rnn_tanh": Kind(_rnn_tanh, _rnn_tanh_back, 0),
    "rnn_relu": Kind(_rnn_relu, _rnn_relu_back, 0),
}
