"""The kinds of faults: each changes a reply, and says whether the server must detect it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, Share, Shares
from corymb.keys import fold, normal, uniform
from corymb.trees import Tree, map_tensors

Change = Callable[[Tree, Client], Tree]
"""Turns an honest reply into a faulty one of the same form; runs at one client, and under vmap."""
Replace = Callable[[Tree], Tree]
"""Turns a reply into something of another form."""


class Kind(NamedTuple):
    """A kind of fault. At most one of `change`, `replace` and `data` is set; none for faults of connections."""

    about: str
    named: bool
    """Whether the server must refuse and name clients with this fault, at least in sums and rows of parameters."""
    change: Change | None = None
    replace: Replace | None = None
    data: bool = False
    """Whether the client's examples are corrupted."""


def _numbers(change: Callable[[Tensor], Tensor]) -> Change:
    """A change of every floating-point tensor in the value of a Share or Shares, or in any other reply."""

    def changed(reply: Tree, client: Client) -> Tree:
        if isinstance(reply, (Share, Shares)):
            return reply._replace(value=_floats(change, reply.value))
        return _floats(change, reply)

    return changed


def _floats(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    return map_tensors(lambda leaf: change(leaf) if leaf.is_floating_point() else leaf, tree)


def _all_be(number: float) -> Change:
    return _numbers(lambda leaf: torch.full_like(leaf, number))


def _one_is(number: float) -> Change:
    def change(leaf: Tensor) -> Tensor:
        first = torch.arange(leaf.numel(), device=leaf.device).reshape(leaf.shape) == 0
        return torch.where(first, number, leaf)

    return _numbers(change)


def _random(reply: Tree, client: Client) -> Tree:
    key = client.key("faults")
    return _numbers(lambda leaf: normal(fold(key, "noise"), tuple(leaf.shape), torch.float32).to(leaf))(reply, client)


def _of_share(change: Callable[[Share[Tree] | Shares[Tree], Client], Tree], otherwise: Change) -> Change:
    """A change of a Share's or Shares' weights, labels or notes; `otherwise` applies to other replies."""

    def changed(reply: Tree, client: Client) -> Tree:
        return change(reply, client) if isinstance(reply, (Share, Shares)) else otherwise(reply, client)

    return changed


def _nothing(reply: Tree, client: Client) -> Tree:
    return reply


def _weight(change: Callable[[Tensor], Tensor]) -> Change:
    return _of_share(lambda reply, client: reply._replace(weight=change(reply.weight)), _nothing)


def _label(change: Callable[[Tensor, int], Tensor]) -> Change:
    def changed(reply: Share[Tree] | Shares[Tree], client: Client) -> Tree:
        if reply.label is None:
            return reply
        return reply._replace(label=change(reply.label, reply.weight.shape[-1]))

    return _of_share(changed, _nothing)


def _hop(reply: Share[Tree] | Shares[Tree], client: Client) -> Tree:
    """Another cluster in every call: weights and label are shifted by a random number of places."""
    k = reply.weight.shape[-1]
    by = (uniform(fold(client.key("faults"), "hop")) * k).long().to(reply.weight.device)
    places = (torch.arange(k, device=reply.weight.device) + by) % k
    label = None if reply.label is None else (reply.label - by) % k
    return reply._replace(weight=reply.weight[places], label=label)


def _note(number: float) -> Change:
    def changed(reply: Share[Tree] | Shares[Tree], client: Client) -> Tree:
        return reply._replace(note=_floats(lambda value: torch.full_like(value, number), reply.note))

    return _of_share(changed, _nothing)


def _value(change: Callable[[dict[str, Tensor]], Tree]) -> Replace:
    def replaced(reply: Tree) -> Tree:
        if isinstance(reply, (Share, Shares)):
            return reply._replace(value=change(reply.value))
        return change(reply) if isinstance(reply, dict) else (reply, reply)

    return replaced


def _shorter(leaf: Tensor) -> Tensor:
    return leaf.reshape(-1)[:-1] if leaf.numel() > 1 else leaf.reshape(1, 1, 1)


def _complex(leaf: Tensor) -> Tensor:
    return leaf.to(torch.complex64)


def _raise(reply: Tree) -> Tree:
    raise RuntimeError("this client fails on purpose")


def _exit(reply: Tree) -> Tree:
    raise SystemExit(0)


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "dropout": Kind("no reply at all", named=False),
        "delay": Kind("the reply comes after all others", named=False),
        "duplicate": Kind("the reply comes twice", named=False),
        "stale": Kind("the reply to an earlier call of the same kind", named=False),
        "nan": Kind("NaN for every number", named=True, change=_all_be(torch.nan)),
        "one-nan": Kind("one NaN", named=True, change=_one_is(torch.nan)),
        "inf": Kind("infinity for every number", named=True, change=_all_be(torch.inf)),
        "one-minus-inf": Kind("one negative infinity", named=True, change=_one_is(-torch.inf)),
        "huge": Kind("1e20 for every number", named=True, change=_all_be(1e20)),
        "large": Kind("1e9 for every number", named=True, change=_all_be(1e9)),
        "one-large": Kind("one number of 1e9", named=True, change=_one_is(1e9)),
        "sign-flip": Kind("the numbers with their signs changed", named=False, change=_numbers(torch.neg)),
        "scaled": Kind("the numbers times -100", named=False, change=_numbers(lambda leaf: -100 * leaf)),
        "zeros": Kind("zeros: a client that does no work", named=False, change=_all_be(0.0)),
        "noise": Kind("random numbers", named=False, change=_random),
        "nan-weight": Kind("NaN for a weight", named=True, change=_weight(lambda w: torch.full_like(w, torch.nan))),
        "negative-weight": Kind("a negative weight", named=True, change=_weight(lambda w: -w - 1)),
        "forged-weight": Kind("a weight of a million", named=True, change=_weight(lambda w: 1e6 * (w + 1))),
        "zero-weight": Kind("a weight of 0", named=False, change=_weight(torch.zeros_like)),
        "forged-label": Kind(
            "a cluster that does not exist", named=True, change=_label(lambda label, k: label * 0 + k)
        ),
        "negative-label": Kind("a cluster below 0", named=True, change=_label(lambda label, k: label * 0 - 1)),
        "hop": Kind("another cluster in every round", named=False, change=_of_share(_hop, _nothing)),
        "nan-note": Kind("NaN in the note", named=True, change=_note(torch.nan)),
        "shape": Kind("tensors of another shape", named=True, replace=_value(lambda v: map_tensors(_shorter, v))),
        "missing-key": Kind("a missing parameter", named=True, replace=_value(lambda v: dict(list(v.items())[:-1]))),
        "extra-key": Kind(
            "an additional parameter", named=True, replace=_value(lambda v: {**v, "more": torch.ones(2)})
        ),
        "dtype": Kind("numbers of another type", named=True, replace=lambda reply: _floats(torch.Tensor.half, reply)),
        "complex": Kind("complex numbers", named=True, replace=lambda reply: _floats(_complex, reply)),
        "sparse": Kind("sparse tensors", named=True, replace=lambda reply: _floats(torch.Tensor.to_sparse, reply)),
        "text": Kind("text", named=True, replace=lambda reply: "hello"),
        "nothing": Kind("None", named=True, replace=lambda reply: None),
        "raises": Kind("an error", named=True, replace=_raise),
        "exits": Kind("an attempt to end the process", named=True, replace=_exit),
        "flipped-labels": Kind("honest work on examples with wrong labels", named=False, data=True),
    }
)
"""The kinds of faults, by name."""
