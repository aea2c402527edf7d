"""Client functions in which some clients misbehave, and data that mark those clients."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from corymb.core.client import Client, Share, Shares, on_client
from corymb.core.engine import Engine
from corymb.core.federation import Federation
from corymb.keys import root
from corymb.local import descend, losses, one_hot
from corymb.objectives import LinearRegression
from corymb.testing.cases import LINE, SIZES
from corymb.testing.engines import DOUBLE, AnyEngine, engine_maker
from corymb.testing.small_data import SmallData, regression
from corymb.trees import Params, Tree, count, take

N = len(SIZES)
MARK = 777.0
NAN, INF = float("nan"), float("inf")
OBJECTIVE = LinearRegression(3, dtype=torch.float64)
MODELS: Params = {"weight": torch.stack([OBJECTIVE.init(root(j))["weight"] for j in range(2)])}
WHO = {"the first": (0,), "the last": (N - 1,), "one between": (3,), "several": (0, 2, 6)}
"""Sets of bad clients, by position."""


def marked(data: SmallData, who: Sequence[int]) -> SmallData:
    """The data with bad clients marked by the first feature of their first example."""
    x = data.train.x.clone()
    x[data.train.offsets[list(who)], 0] = MARK
    return data._replace(train=data.train._replace(x=x))


def bad(client: Client) -> Tensor:
    """Whether the client is bad."""
    return client.train.x[0, 0] == MARK


def good_ids(who: Sequence[int]) -> list[int]:
    """The positions of the good clients."""
    return [i for i in range(N) if i not in who]


@functools.cache
def _engine(engine: AnyEngine, who: tuple[int, ...]) -> Engine:
    return engine_maker(engine)(OBJECTIVE, marked(regression(SIZES), who), DOUBLE)


def bad_federation(engine: AnyEngine, who: Sequence[int], *, min_replies: int = 1) -> Federation:
    """A federation of seven clients, some of them bad, with empty memory.

    The guard is off, since the mark makes even honest replies of bad clients far too long.
    """
    fed = Federation(_engine(engine, tuple(who)), min_replies=min_replies, guard=False)
    fed.rewind(0)
    return fed


# ---- faults in the numbers of a reply


WORTHLESS = {
    "nan in value": "value is not finite",
    "inf in value": "value is not finite",
    "minus inf in value": "value is not finite",
    "nan in weight": "value is not finite",
    "nan in note": "value is not finite",
    "huge value": "value is too large",
    "label too large": "label is out of range for 2 clusters",
    "label negative": "label is out of range for 2 clusters",
    "weight negative": "weight is negative",
    "weight too large": "weight is more than the client's size allows",
    "weight infinite": "value is not finite",
}
"""Faults, and the reasons for which they are refused."""


@on_client
def train_badly(client: Client, models: Params, *, fault: str, spread: bool) -> Share[Tensor] | Shares[Tensor]:
    """An honest reply, unless the client is bad."""
    label = losses(client, models).argmin()
    model = descend(client, take(models, label), LINE)
    weight, note = one_hot(label, count(models)).double(), losses(client, models).sum()
    client.memory.set("was here", torch.tensor(1.0))

    def spoil(value: Tensor, wrong: float | Tensor) -> Tensor:
        return torch.where(bad(client), torch.as_tensor(wrong, dtype=value.dtype), value)

    if fault.endswith("in value") or fault == "huge value":
        number = {"nan": NAN, "inf": INF, "minus": -INF, "huge": 1.7e308}[fault.split()[0]]
        only_last = torch.arange(3) == 2
        model = {"weight": torch.where(only_last, spoil(model["weight"], number), model["weight"])}
    elif fault.startswith("label"):
        label = spoil(label, 2 if "large" in fault else -1)
    elif fault.startswith("weight"):
        too_much = 1.001 * client.train.weight.sum()
        worst = {"negative": torch.tensor(-1e-3), "large": too_much, "infinite": torch.tensor(INF)}[fault.split()[-1]]
        weight = torch.where(torch.arange(2) == 1, spoil(weight, worst), weight)
    elif fault == "nan in weight":
        weight = spoil(weight, NAN)
    elif fault == "nan in note":
        note = spoil(note, NAN)
    if spread:
        return Shares({n: torch.stack([p, -p]) for n, p in model.items()}, weight, label, note)
    return Share(model, weight, label, note)


@on_client
def was_here(client: Client) -> Tensor:
    """Whether the memory write of `train_badly` was kept."""
    return client.memory.get("was here", torch.tensor(0.0))


@on_client
def answer_badly(client: Client, models: Params, wrong: float) -> dict[str, Tensor]:
    """Losses; `wrong` in their place from a bad client."""
    fit = losses(client, models)
    return {"fit": torch.where(bad(client), wrong, fit), "size": client.train.weight.sum()}


# ---- faults in the form of a reply


ODD = {
    "shape": "reply is",
    "dtype": "reply is",
    "structure": "reply is",
    "name": "reply is",
    "more sums": "reply is",
    "no label": "reply is",
    "Shares": "value does not have one row for each weight",
    "no share": "reply is a dict, `sum` wants a Share",
    "nothing": "reply is nothing, `sum` wants a Share",
    "text": "raised TypeError",
    "raises": "raised ZeroDivisionError: division by zero",
    "raises nothing said": "raised KeyError",
    "slot of another form": "reply is",
    "exits": "raised WouldEndProcess: SystemExit: 0",
    "interrupts": "raised WouldEndProcess: KeyboardInterrupt",
    "raises what cannot be said": "raised Unspeakable",
    "sparse": "reply holds a sparse tensor",
    "without values": "reply holds a meta tensor",
    "complex": "reply holds numbers of type complex64",
    "quantised": "reply holds numbers of type qint8",
    "tiny floats": "reply holds numbers of type float8_e5m2",
    "a tensor of its own kind": "reply holds a Marked",
    "sparse slot": "memory slot 'kept' holds a sparse tensor",
}
"""Faults of single clients (not under vmap), and the reasons for which they are refused."""
ODD_ROWS = ("shape", "scalar", "dtype", "structure", "nothing")


class Unspeakable(Exception):
    """An error whose `__str__` raises."""

    def __str__(self) -> str:
        raise SystemExit("not to be said")


class Marked(Tensor):
    """A user-defined subclass of tensor."""


def _quantised(value: Tensor) -> Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch deprecates them
        return torch.quantize_per_tensor(value.float(), 0.1, 0, torch.qint8)


RAISES: dict[str, Callable[[], BaseException]] = {
    "raises": lambda: ZeroDivisionError("division by zero"),
    "raises nothing said": KeyError,
    "exits": lambda: SystemExit(0),
    "interrupts": KeyboardInterrupt,
    "raises what cannot be said": Unspeakable,
}
OF_ODD_KIND: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse": Tensor.to_sparse,
    "without values": lambda value: value.to("meta"),
    "complex": lambda value: value.to(torch.complex64),
    "quantised": _quantised,
    "tiny floats": lambda value: value.to(torch.float8_e5m2),
    "a tensor of its own kind": lambda value: value.as_subclass(Marked),
}


@on_client
def train_oddly(client: Client, models: Params, *, fault: str) -> Tree:
    """A good reply, unless the client is bad."""
    label = losses(client, models).argmin()
    model, weight = descend(client, take(models, label), LINE), one_hot(label, 2)
    if not bad(client):
        client.memory.set("kept", torch.ones(2))
        return Share(model, weight, label, ())
    client.memory.set("kept", torch.ones(3) if fault == "slot of another form" else torch.ones(2))
    if fault in RAISES:
        raise RAISES[fault]()
    if fault in OF_ODD_KIND:
        return Share({"weight": OF_ODD_KIND[fault](model["weight"])}, weight, label, ())
    if fault == "sparse slot":
        client.memory.set("kept", torch.ones(2).to_sparse())
        return Share(model, weight, label, ())
    wrong: dict[str, Tree] = {
        "shape": Share({"weight": model["weight"][:1]}, weight, label, ()),
        "dtype": Share({"weight": model["weight"].float()}, weight, label, ()),
        "structure": Share(({"weight": model["weight"]},), weight, label, ()),  # type: ignore[arg-type]
        "name": Share({"weights": model["weight"]}, weight, label, ()),
        "more sums": Share(model, one_hot(label, 3), label, ()),
        "no label": Share(model, weight, None, ()),
        "Shares": Shares(model, weight, label, ()),
        "no share": {"weight": model["weight"]},
        "nothing": None,
        "text": "what?",
        "slot of another form": Share(model, weight, label, ()),
    }
    return wrong[fault]


@on_client
def has_kept(client: Client) -> Tensor:
    """Whether the memory write of `train_oddly` was kept."""
    return client.memory.get("kept", torch.zeros(2))[0]


@on_client
def answer_oddly(client: Client, models: Params, *, fault: str) -> Tree:
    """Losses; a row of another form from a bad client."""
    fit = losses(client, models)
    if not bad(client):
        return fit
    return {"shape": fit[:1], "scalar": fit[0], "dtype": fit.float(), "structure": (fit,), "nothing": None}[fault]


# ---- errors of all clients


@on_client
def always_raises(client: Client, models: Params) -> Tensor:
    """Raises an error of its own."""
    losses(client, models)
    raise ArithmeticError(f"nobody can do {len(models)} things")


@on_client
def raises_late(client: Client, models: Params) -> Tensor:
    """Raises an error inside torch."""
    fit = losses(client, models)
    return fit @ torch.zeros(5, dtype=fit.dtype)


# ---- what a client function must not change


@on_client
def train_and_meddle(client: Client, models: Params, label: Tensor, *, meddle: bool) -> dict[str, Tree]:
    """A model after training; with `meddle`, it then overwrites its arguments and changes torch's settings."""
    fit, model = losses(client, models), descend(client, take(models, label), LINE)
    size = client.train.x.sum() + client.test.x.sum()
    if meddle:
        for tensor in (models["weight"], label, client.train.x, client.train.y, client.test.x):
            tensor.zero_()
        torch.set_default_dtype(torch.float16)
        torch.set_grad_enabled(not torch.is_grad_enabled())
        torch.use_deterministic_algorithms(True)
    return {"fit": fit, "model": model, "size": size}
