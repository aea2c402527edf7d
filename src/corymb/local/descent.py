"""Gradient descent on one client's examples: its settings, its batches and its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from corymb.keys import Key, fold, fold_number, no_transform_active
from corymb.settings import check_types, require
from corymb.trees import align_leading

CURVATURE_BATCHES = 8
"""Curvature is estimated on this many batches' worth of examples; on all examples it would cost more than the steps."""
MAX_DRAWN_ROWS = 2**22
"""The most row indices that are drawn in advance for the batches of many clients."""

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""Adam's usual settings."""
MAX_RATE = 1e18
"""The upper limit of step sizes and penalties: products of larger ones with parameters overflow."""
MAX_COUNT = 2**31 - 1
"""The upper limit of step and batch counts, so that their products fit into 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Gradient descent on one client's examples."""

    lr: float = 0.1
    """Step size γ."""
    decay: float = 1.0
    """Factor by which the step size is multiplied every round."""
    linear_decay: int | None = None
    """Instead of `decay`: rounds R over which the step size falls linearly. Round t, counted from 0, has lr · (1 −
    t/R); later rounds keep the last of these."""
    steps: int | None = None
    """Steps τ; one, if neither `steps` nor `epochs` is given."""
    epochs: int | None = None
    """Passes over the client's examples, instead of steps."""
    batch: int | None = None
    """Examples per step; if not given, all of them."""
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    """Heavy-ball momentum of `sgd`."""
    weight_decay: float = 0.0
    proximal: float = 0.0
    """FedProx's μ: adds (μ/2)·‖θ − θ_start‖² to the loss."""
    safe: bool = False
    """Take shorter steps if the client's loss is too steep for `lr`: at most 1/L, where L is its largest curvature."""
    whiten: bool = False
    """Descend in coordinates in which the features of all clients together have second moment I. For linear models on
    tables with standardised features; others are not affected."""
    clip_gradient: float | None = None
    """Largest norm of a step's gradient over all parameters; a longer gradient is scaled down to it."""

    def __post_init__(self) -> None:
        check_types(self)
        require(0 < self.lr <= MAX_RATE, f"lr must be positive and at most {MAX_RATE:g}, got {self.lr}.")
        require(0 < self.decay <= 1, f"decay must be in (0, 1], got {self.decay}.")
        require(self.decay == 1 or self.linear_decay is None, "Give decay or linear_decay, not both.")
        require(self.steps is None or self.epochs is None, "Give steps or epochs, not both.")
        for name in ("steps", "epochs", "batch", "linear_decay"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name} must be at least 1, got {value}.")
            require(value is None or value <= MAX_COUNT, f"{name} must be at most {MAX_COUNT}, got {value}.")
        require(0 <= self.momentum < 1, f"momentum must be in [0, 1), got {self.momentum}.")
        require(self.optimiser == "sgd" or self.momentum == 0, "momentum goes with optimiser 'sgd', not with 'adam'.")
        require(self.optimiser == "sgd" or not self.safe, "safe goes with optimiser 'sgd', not with 'adam'.")
        for name in ("weight_decay", "proximal"):
            value = getattr(self, name)
            require(0 <= value <= MAX_RATE, f"{name} must be in [0, {MAX_RATE:g}], got {value}.")
        positive = self.clip_gradient is None or self.clip_gradient > 0
        require(positive, f"clip_gradient must be positive, got {self.clip_gradient}.")

    def at(self, round: int) -> Descent:
        """The same descent with the step size of that round."""
        if self.linear_decay is not None:
            left = 1 - min(round, self.linear_decay - 1) / self.linear_decay
            return replace(self, lr=self.lr * left, linear_decay=None)
        return self if self.decay == 1 else replace(self, lr=self.lr * self.decay**round, decay=1.0)

    @property
    def plain(self) -> bool:
        """Whether a step is θ ← θ − lr · gradient and nothing else."""
        extras = self.momentum or self.weight_decay or self.proximal or self.clip_gradient
        return self.optimiser == "sgd" and not extras


class Batches:
    """The rows of each step's batch, the same for a single client as for that client in a padded stack.

    Each pass orders the examples by `fold(key, pass, row)`, padding last. A pass has ⌈m/B⌉ steps; its last batch may be
    short. Yields (rows, active). `rows` is None for all examples; in a stack it is n B, and short batches are filled up
    with -1. `active` is None if every client takes this step, else a mask of those that do.
    """

    def __init__(
        self,
        how: Descent,
        weight: Tensor,
        key: Key,
        orders: Callable[[int], Tensor] | None = None,
        size: int | None = None,
    ) -> None:
        self.how, self.weight, self.key = how, weight, key
        self._size = size  # of a single client, if known: counting its examples would wait for a GPU
        self._orders = orders  # from `orders_of_all`: a single client's order of rows in each pass

    def __iter__(self) -> Iterator[tuple[Tensor | None, Tensor | None]]:
        how = self.how
        if how.batch is None or not self.weight.shape[-1]:
            for _ in range(how.steps or how.epochs or 1):
                yield None, None
            return
        if self.weight.dim() == 1:
            yield from ((rows, None) for rows in self._of_single_client(how.batch))
            return
        real = self.weight > 0
        sizes = real.sum(-1)  # n
        passes = ((sizes + how.batch - 1) // how.batch).clamp_min(1)  # steps per pass
        steps = torch.full_like(passes, how.steps or 1) if how.epochs is None else how.epochs * passes
        ends = torch.where(real, torch.arange(1, real.shape[-1] + 1, device=real.device), 0).amax(-1)
        *lists, last_rows = torch.stack([passes, steps, ends]).tolist()  # outside the loop: it synchronises with a GPU
        starts = _Starts(*lists)
        order = torch.empty(0)
        wide = min(how.batch, self.weight.shape[-1])  # a wider batch would be padding for every client
        last, first = max(lists[1]), min(lists[1])
        for step in range(last):
            some = starts.at(step)
            if some is None:
                order = self._order(fold(self.key, step // passes))
            elif some:
                which = torch.tensor(some, device=order.device)
                longest = max(last_rows[client] for client in some)  # behind it there is only padding
                part = Batches(how, self.weight[which, :longest], self.key[which])
                order[:, :longest].index_copy_(0, which, part._order(fold(part.key, step // passes[which])))
            places = (step % passes * how.batch).unsqueeze(-1) + torch.arange(wide, device=order.device)
            rows = order.gather(-1, places.clamp_max(order.shape[-1] - 1))
            inside = places < sizes.unsqueeze(-1)
            active = None if step < first else step < steps
            yield torch.where(inside, rows, -1), active

    def _of_single_client(self, batch: int) -> Iterator[Tensor]:
        """The batches of a single client, computed with Python integers.

        The dozen torch calls of the stacked version would cost too much compared with the steps of a small model.
        """
        size = int((self.weight > 0).sum()) if self._size is None else self._size
        key = int(self.key) if self._orders is None else 0
        length = max(1, -(-size // batch))
        steps = (self.how.steps or 1) if self.how.epochs is None else self.how.epochs * length
        order = torch.empty(0)
        for step in range(steps):
            epoch, place = divmod(step, length)
            if place == 0 and self._orders is not None:
                order = self._orders(epoch)[:size]
            elif place == 0:
                order = self._order(torch.tensor(fold_number(key, epoch), device=self.weight.device))[:size]
            yield order[place * batch : (place + 1) * batch]

    def _order(self, key: Key) -> Tensor:
        rows = torch.arange(self.weight.shape[-1], device=self.weight.device)
        draws = (fold(key.unsqueeze(-1), rows) >> 1) & (2**62 - 1)
        return torch.where(self.weight > 0, draws, 2**62).argsort(dim=-1, stable=True)

    @staticmethod
    def orders_of_all(how: Descent, weight: Tensor, key: Key) -> list[Callable[[int], Tensor] | None]:
        """For each of n clients that run one by one, a function from a pass to its order of rows.

        A pass is drawn for all clients together, when the first of them needs it. All entries are None without batches,
        and if the orders, n m indices for every pass, might exceed `MAX_DRAWN_ROWS`.
        """
        n, longest = weight.shape
        passes = how.epochs or how.steps or 1  # an upper bound: a client with a single batch has a pass per step
        if how.batch is None or n * longest * passes > MAX_DRAWN_ROWS:
            return [None] * n
        drawn: dict[int, Tensor] = {}

        def order(client: int, number: int) -> Tensor:
            if number not in drawn:
                drawn[number] = Batches(how, weight, key)._order(fold(key, number))
            return drawn[number][client]

        return [partial(order, client) for client in range(n)]

    @staticmethod
    def sample(how: Descent, weight: Tensor, key: Key) -> Tensor | None:
        """The rows of `CURVATURE_BATCHES` batches, on which curvature is estimated; None (all) without batches."""
        if how.batch is None:
            return None
        larger = replace(how, batch=CURVATURE_BATCHES * how.batch, steps=1, epochs=None)
        return next(iter(Batches(larger, weight, fold(key, "curvature"))))[0]


class _Starts:
    """The steps at which each of n clients begins a pass over its examples, and draws their order anew."""

    def __init__(self, passes: list[int], steps: list[int]) -> None:
        self._passes, self._steps, self._due = passes, steps, {0: list(range(len(steps)))}

    def at(self, step: int) -> list[int] | None:
        """The clients that begin a pass at a step; None if all do. Steps must be asked for in order."""
        begin = self._due.pop(step, [])
        for client in begin:
            following = step + self._passes[client]
            if following < self._steps[client]:
                self._due.setdefault(following, []).append(client)
        return None if len(begin) == len(self._steps) else begin


def can_fuse(params: list[Tensor], grads: list[Tensor], active: Tensor | None) -> bool:
    """Whether torch's fused operations can step these tensors: they read memory from end to end, of a single type.

    Clients that have finished get their models back after the step, which only a CPU can do without waiting.
    """
    if not params or params[0].device.type not in (("cpu", "cuda") if active is None else ("cpu",)):
        return False
    kind = params[0].dtype
    plain = all(p.is_contiguous() and p.dtype == g.dtype == kind for p, g in zip(params, grads, strict=True))
    return plain and no_transform_active()


class Stepper:
    """In-place steps of SGD (momentum, weight decay, proximal term) or Adam on a list of tensors.

    `stacked` tensors have a leading axis of clients; `active` then masks the clients that take the step. `part`, if
    given, multiplies the step size: a scalar, or one factor per client.
    """

    def __init__(
        self, how: Descent, params: list[Tensor], part: Tensor | None = None, *, stacked: bool = False
    ) -> None:
        self.how, self.params, self.part, self.stacked = how, params, part, stacked
        self.start = [p.clone() for p in params] if how.proximal else []
        slots = 2 if how.optimiser == "adam" else 1 if how.momentum else 0
        self.state = [[torch.zeros_like(p) for p in params] for _ in range(slots)]
        self.taken = 0

    def keep_last(self, clients: int) -> None:
        """Step only the last clients of the stack from now on."""
        kept = ([t[-clients:] for t in tensors] for tensors in (self.params, self.start, *self.state))
        self.params, self.start, *self.state = kept
        self.part = None if self.part is None else self.part[-clients:]

    def step(self, grads: list[Tensor], active: Tensor | None = None) -> None:
        """θ ← θ − lr · direction, for the active clients."""
        how = self.how
        if how.clip_gradient is not None:
            grads = self._clipped(grads, how.clip_gradient)
        if how.weight_decay:
            grads = list(torch._foreach_add(grads, self.params, alpha=how.weight_decay))
        if how.proximal:
            pull = torch._foreach_sub(self.params, self.start)
            grads = list(torch._foreach_add(grads, list(pull), alpha=how.proximal))
        self.taken += 1
        if self.part is None and self.state and can_fuse(self.params, grads, active):
            finished = torch.empty(0, dtype=torch.int64) if active is None else (~active).nonzero().flatten()
            models = [p[finished] for p in self.params] if len(finished) else []
            self._fused_step(grads)
            for p, rows in zip(self.params, models, strict=bool(models)):
                p.index_copy_(0, finished, rows)
            return
        if how.optimiser == "adam":
            grads = self._adam(grads)
        elif how.momentum:
            torch._foreach_mul_(self.state[0], how.momentum)
            torch._foreach_add_(self.state[0], grads)
            grads = self.state[0]
        if active is not None:  # an inactive client stays inactive, so its optimiser state no longer matters
            grads = [torch.where(align_leading(active, g), g, 0) for g in grads]
        if self.part is not None:
            grads = [align_leading(self.part, g) * g for g in grads]
        torch._foreach_add_(self.params, grads, alpha=-how.lr)

    def _clipped(self, grads: list[Tensor], most: float) -> list[Tensor]:
        """Each client's gradient, scaled down to norm `most` if it is longer."""
        first = 1 if self.stacked else 0
        norm = torch.stack([g.flatten(first).square().sum(-1) for g in grads]).sum(0).sqrt()
        factor = most / norm.clamp_min(most)
        return [g * factor.reshape((*factor.shape, *[1] * (g.dim() - first))) for g in grads]

    def _adam(self, grads: list[Tensor]) -> list[Tensor]:
        first, second = self.state
        torch._foreach_lerp_(first, grads, 1 - BETA_1)
        torch._foreach_mul_(second, BETA_2)
        torch._foreach_addcmul_(second, grads, grads, 1 - BETA_2)
        scale = torch._foreach_sqrt(torch._foreach_div(second, 1 - BETA_2**self.taken))
        torch._foreach_add_(scale, EPSILON)
        return list(torch._foreach_div(torch._foreach_div(first, 1 - BETA_1**self.taken), scale))

    def _fused_step(self, grads: list[Tensor]) -> None:
        """The step by torch's fused operations, which read and write every entry once.

        They are called without the functions of `torch.optim`, which take longer than a step of a small model.
        """
        how, grads = self.how, [grad.contiguous() for grad in grads]
        given = {"lr": how.lr, "weight_decay": 0.0}
        if how.optimiser == "sgd":
            given |= {"momentum": how.momentum, "dampening": 0.0}
            flags = {"nesterov": False, "maximize": False, "is_first_step": False}
            torch._fused_sgd_(self.params, grads, self.state[0], **given, **flags)  # type: ignore[call-overload]
            return
        # Counts in float32, not in the default type of a process that set a shorter one.
        taken = torch.full((len(grads),), float(self.taken), dtype=torch.float32, device=grads[0].device).unbind()
        given |= {"beta1": BETA_1, "beta2": BETA_2, "eps": EPSILON}
        flags = {"amsgrad": False, "maximize": False}
        torch._fused_adam_(self.params, grads, *self.state, [], list(taken), **given, **flags)  # type: ignore[call-overload]
