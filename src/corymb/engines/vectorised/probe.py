"""Checks before a run that the kernel chosen for a model agrees with the reference; if not, a slower one is used.

Two clients of unequal size are computed as one padded stack and one by one with `local.reference`, both in float64.
Sizes are unequal so that there is padding: it reveals layers that couple examples.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from corymb.choices import KernelName
from corymb.core.client import Examples, Objective
from corymb.core.objective import Draws, model_takes
from corymb.core.smallest import smallest
from corymb.engines.host import ClientHost, one_line
from corymb.engines.isolation import isolated
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.packed import padding_is_free
from corymb.engines.vectorised.traits import Traits, traits_of
from corymb.keys import Key, fold, root
from corymb.local import Descent
from corymb.local.reference import descend_one, gradient_one, measure_one, training_losses
from corymb.settings import InvalidInput
from corymb.trees import Params, stack, take

log = logging.getLogger(__name__)
MAX_TRIED_CLIENTS = 8
"""The most clients that a model is tried on until it accepts the examples of one."""
DESCENTS = (
    Descent(lr=0.01, steps=2),
    Descent(lr=0.01, epochs=1, batch=2, momentum=0.5),
    Descent(lr=0.01, steps=3, batch=2),
)


def probe(host: ClientHost, *, only: KernelName | None = None) -> Kernels:
    """The kernels for a host's objective: those requested or chosen, or the fastest that agree with the reference."""
    if host.device.type == "cuda":
        refuse_unknown_codes(host)
    objective, clients = _in_double(host)
    if (losses := _losses(objective, clients[0])) is not None and not bool(losses.isfinite().all()):
        log.warning(
            "a fresh model's losses are NaN or infinite at every client that was tried: check what the model computes, "
            "and the scale of the features"
        )
    traits = _traits(objective, clients[0], host)
    kernels = Kernels(traits, host.device.type, torch.get_num_threads(), host.placement.mixed, only)
    warned = set[str]()  # the default choice may be a kernel that is tried by name next, with the same problem
    for name in _candidates(only) if traits.independent else ():
        kernels = replace(kernels, only=name)
        problem = _disagreement(kernels, objective, clients)
        if problem is None:
            return _together(_replaying(kernels), objective, clients)
        line = f"kernel {name or kernels.pick(DESCENTS[0])} does not fit this model ({problem})"
        if line not in warned:
            log.warning(line)
        warned.add(line)
    kernels = replace(kernels, only="serial", traits=traits._replace(independent=False))
    if problem := _disagreement(kernels, objective, clients):
        if isinstance(problem, _Failure):
            raise InvalidInput(f"The model cannot be trained on these examples: {problem}.")
        raise InvalidInput(f"The model gives different results for the same examples when called again: {problem}.")
    together = replace(kernels, equal=only is None)
    if together.equal and _disagreement(together, objective, _of_equal_length(clients), padding=0) is None:
        log.warning(
            "an example's loss depends on the other examples in its batch: only clients with equally many examples run "
            "together"
        )
        return _replaying(together)
    log.warning("an example's loss depends on the other examples in its batch: clients run one by one")
    return _replaying(kernels)


def _replaying(kernels: Kernels) -> Kernels:
    """The kernels, with `replays` set if the steps that were tried can be replayed."""
    return replace(kernels, replays=kernels.tapes.all_replay)


def _of_equal_length(clients: list[Examples]) -> list[Examples]:
    shortest = min(len(client.y) for client in clients)
    return [Examples(*(t[:shortest] for t in client)) for client in clients]


def _together(kernels: Kernels, objective: Objective, clients: list[Examples]) -> Kernels:
    """The kernels with `together` set, if the model runs one by one but small amounts of work can be done at once."""
    longest = _padded(clients).weight.shape[1]
    possible = replace(kernels, together=True)
    if possible.pick(None, longest) == kernels.pick(None, longest):
        return kernels
    return possible if _disagreement(possible, objective, clients) is None else kernels


def _candidates(only: KernelName | None) -> Sequence[KernelName | None]:
    """The requested kernel (None: chosen by `Kernels.pick`), then slower ones that support more models."""
    known: list[KernelName] = ["fused", "foreach", "serial"]
    return known[known.index(only) :] if only else [None, "foreach", "serial"]


def _in_double(host: ClientHost) -> tuple[Objective, list[Examples]]:
    """The objective and two clients' examples, in float64 if the device and the model support it."""
    objective, dtype = host.objective, host.placement.dtype
    if host.device.type != "mps":
        objective, dtype = objective.to(host.device, torch.float64), torch.float64
    table = host.examples["train"]
    if not bool((table.sizes > 0).any()):
        raise InvalidInput("No client has an example: there is nothing to learn from.")
    shortest, largest = _extremes(table.sizes)

    def few_of(client: int, most: int) -> Examples:
        x, y, weight = (t[:most] for t in table.one(client))
        return Examples(*(t.to(dtype) if t.is_floating_point() else t for t in (x, y, weight)))

    def both() -> list[Examples]:
        large = [few_of(client, 5) for client in largest]
        small = [few_of(client, 3) for client in shortest]
        return [_first_taken(objective, large), _first_taken(objective, small)]

    clients = both()
    if dtype != host.placement.dtype and _losses(objective, clients[0]) is None:
        # A model that creates float32 tensors itself may fail in float64: it is then checked as it will be used.
        in_double, objective, dtype = (objective, clients), host.objective, host.placement.dtype
        clients = both()
        if _losses(objective, clients[0]) is None:
            return in_double
    return objective, clients


def _extremes(sizes: Tensor) -> tuple[list[int], list[int]]:
    """The clients with the fewest examples (but some), in ascending order, and with the most, in descending order."""
    few = smallest(torch.where(sizes > 0, sizes, torch.iinfo(sizes.dtype).max), MAX_TRIED_CLIENTS)
    many = len(sizes) - 1 - smallest(-sizes.flip(0), MAX_TRIED_CLIENTS)
    few, many = (ids[sizes[ids] > 0] for ids in (few, many))
    shortest: list[int] = few[sizes[few].argsort(stable=True)].tolist()
    largest: list[int] = many[sizes[many].argsort(stable=True, descending=True)].tolist()
    return shortest, largest


def _first_taken(objective: Objective, clients: list[Examples]) -> Examples:
    """The first client whose examples the model accepts: one client's bad examples must not end the run.

    Clients with finite losses come first, since kernels cannot be compared on others.
    """
    taken = list[Examples]()
    for client in clients:
        losses = _losses(objective, client)
        if losses is not None and bool(losses.isfinite().all()):
            return client
        taken += [] if losses is None else [client]
    return (taken or clients)[0]  # if it accepts none, the model is at fault: its error is reported later


def _losses(objective: Objective, client: Examples) -> Tensor | None:
    """A fresh model's losses; None if it does not accept the examples."""
    with suppress(RuntimeError, ValueError, TypeError, IndexError, AttributeError), torch.no_grad(), isolated():
        return torch.as_tensor(objective.losses(objective.init(root(0)), client))
    return None


def refuse_unknown_codes(host: ClientHost) -> None:
    """Raise InvalidInput for codes that the model's embedding has no row for; on a GPU, they would crash the process.

    The model is tried on the CPU with the largest code at each position: if any code is out of range, that one is.
    """
    table = host.examples["train"]
    if table.x.is_floating_point() or table.x.dtype == torch.uint8 or not len(table.x):
        return
    objective = host.objective.to(torch.device("cpu"), torch.float32)
    params = objective.init(root(0))

    def unknown(x: Tensor) -> bool:
        try:
            objective.losses(params, Examples(x.amax(0, keepdim=True).cpu(), table.y[:1].cpu(), torch.ones(1)))
        except IndexError:
            return True
        return False

    if unknown(table.x):
        names = [host.names[client] for client in range(len(host.names)) if unknown(table.one(client).x)]
        raise InvalidInput(
            f"Clients {', '.join(map(repr, names[:3]))} ({len(names)} in all) have codes that the model has no row "
            "for: leave these clients out, or give its embedding more rows."
        )


def _traits(objective: Objective, client: Examples, host: ClientHost) -> Traits:
    params = objective.init(root(0))
    with model_takes(client.x), isolated():
        losses = objective.losses(params, client)
    if losses.shape != client.weight.shape:
        raise InvalidInput(
            f"The objective's losses have shape {list(losses.shape)} for {len(client.weight)} examples, wanted one for "
            "each example."
        )
    traits = traits_of(objective, params, Examples(*(t[:1] for t in client)))

    def both_losses() -> Tensor:
        draws = Draws(root(0).to(client.weight.device))
        return torch.cat([objective.losses(params, client), training_losses(objective, params, client, draws)])

    with torch.no_grad(), isolated():
        free = padding_is_free(both_losses) if traits.recurrent else None
    scale = torch.finfo(host.placement.dtype).bits / torch.finfo(next(iter(params.values())).dtype).bits
    return traits._replace(
        parameter_bytes=int(traits.parameter_bytes * scale),
        activation_bytes=int(traits.activation_bytes * scale),
        largest_bytes=int(traits.largest_bytes * scale),
        free_padding=free is True,
        independent=free is not False and _same_alone(objective, params, client),
    )


def _same_alone(objective: Objective, params: Params, client: Examples) -> bool:
    """Whether examples have the same losses one by one as in one batch."""
    with torch.no_grad(), isolated():
        together = objective.losses(params, client)
        alone = [objective.losses(params, Examples(*(t[i : i + 1] for t in client))) for i in range(len(client.weight))]
    return _close(torch.cat(alone), together)


def _disagreement(kernels: Kernels, objective: Objective, clients: list[Examples], padding: int = 1) -> str | None:
    """How the kernels differ from the reference, or what they raise; None if they agree."""
    models = stack([objective.init(fold(root(0), j)) for j in range(2)])
    on = _padded(clients, padding)
    keys = fold(root(1), torch.arange(2, device=on.weight.device))
    try:
        _compare_losses(kernels, objective, models, on, clients)
        for how in _compare_gradients(kernels, objective, models, on, clients, keys):
            _compare_descents(kernels, objective, models, on, clients, keys, how)
    except _Differs as difference:
        return str(difference)
    except InvalidInput:  # the model is at fault, whatever the kernel
        raise
    except (RuntimeError, NotImplementedError, ValueError, IndexError) as error:
        return _Failure(one_line(error))
    return None


# Comparisons are functions of their own, client by client, so that few copies of a large model are alive at a time.


def _compare_losses(
    kernels: Kernels, objective: Objective, models: Params, on: Examples, clients: list[Examples]
) -> None:
    for shared in (True, False):
        given = models if shared else {name: torch.stack([p, p.flip(0)]) for name, p in models.items()}
        got = kernels.measure("losses", objective, given, on, shared=shared)
        each = [given if shared else take(given, i) for i in range(len(clients))]
        want = torch.stack([measure_one("losses", objective, each[i], c) for i, c in enumerate(clients)])
        _compare("losses", {"": got}, {"": want})


def _compare_gradients(
    kernels: Kernels, objective: Objective, models: Params, on: Examples, clients: list[Examples], keys: Key
) -> list[Descent]:
    """Compare gradients; returns the descents to compare."""
    got, steepest = kernels.gradient(objective, models, on, keys), list[float]()
    for i, client in enumerate(clients):
        want = gradient_one(objective, take(models, i), client, Draws(keys[i]))
        _compare("gradient", take(got, i), want)
        steepest.append(float(sum(g.square().sum() for g in want.values())) ** 0.5)
    return _within_reach(max(steepest))


def _compare_descents(
    kernels: Kernels,
    objective: Objective,
    models: Params,
    on: Examples,
    clients: list[Examples],
    keys: Key,
    how: Descent,
) -> None:
    got, losses = kernels.descend(objective, models, on, keys, how)
    for i, client in enumerate(clients):
        want = descend_one(objective, take(models, i), client, keys[i], how)
        _compare(f"descent with {how}", take(got, i), want.params)
        _compare(f"the loss before descent with {how}", {"": losses[i]}, {"": want.loss})


def _within_reach(steepest: float) -> list[Descent]:
    """The descents to compare, with step sizes reduced for steep losses: in a diverging descent, rounding grows too."""
    return [replace(how, lr=how.lr / steepest) if 1 < steepest < float("inf") else how for how in DESCENTS]


class _Differs(Exception):
    pass


class _Failure(str):
    """The message of an error that a kernel raised, rather than a difference of results."""

    __slots__ = ()


def _compare(what: str, got: Params, want: Params) -> None:
    for name, value in want.items():
        if not _close(got[name], value):
            worst = float((got[name] - value).abs().max())
            raise _Differs(f"{what} differs from the reference by {worst:.1e} in {name or 'value'}")


def _close(got: Tensor, want: Tensor) -> bool:
    """Whether two results differ by rounding only; NaN equals NaN, since a fresh model's losses may be NaN anywhere."""
    tolerance = 1e-9 if want.dtype == torch.float64 else 1e-3
    return torch.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


def _padded(clients: list[Examples], padding: int = 1) -> Examples:
    longest = max(len(c.y) for c in clients) + padding
    rows = []
    for c in clients:
        index = torch.arange(longest, device=c.y.device).clamp_max(len(c.y) - 1)
        real = torch.arange(longest, device=c.y.device) < len(c.y)
        rows.append(Examples(c.x[index], c.y[index], torch.where(real, c.weight[index], 0)))
    return Examples(*(torch.stack(parts) for parts in zip(*rows, strict=True)))
