"""Copies of modules, including what the functions among their attributes and hooks refer to."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn


def copied(module: nn.Module, sharing: Iterable[Tensor] = ()) -> nn.Module:
    """A deep copy of a module, which shares some of its tensors.

    `copy.deepcopy` keeps functions as they are: `self.encode = lambda x: self.layer(x)`, or a hook that refers to
    `self`, would use the original's layers in the copy, whose own parameters would silently never be trained. It also
    refuses results that a module keeps, such as the weights of `torch.nn.utils.weight_norm`, and compiled functions.
    """
    twins: dict[int, Any] = {id(tensor): tensor for tensor in sharing}
    for _, _, value in _attributes(module):
        if isinstance(value, Tensor) and not value.is_leaf:
            twins[id(value)] = value.detach().clone()
        elif isinstance(value, torch.jit.ScriptFunction):  # has no state
            twins[id(value)] = value
    twin = copy.deepcopy(module, twins)
    for holder, key, value in list(_attributes(twin)):
        if isinstance(value, FunctionType) and _refers(value, twins, set()):
            holder[key] = _rebound(value, twins)
    return twin


def share_tensors(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules have a parameter or a buffer in common."""
    own = {id(tensor) for tensor in (*one.parameters(), *one.buffers())}
    return any(id(tensor) in own for tensor in (*other.parameters(), *other.buffers()))


def _attributes(module: nn.Module) -> Iterator[tuple[Any, Any, Any]]:
    """The attributes of all layers, and what is in their dicts and lists: each with its holder and its key there."""
    holders: list[Any] = [vars(layer) for layer in module.modules()]
    seen = {id(holder) for holder in holders}
    for holder in holders:  # which grows meanwhile
        for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
            if isinstance(value, (dict, list)) and id(value) not in seen:
                seen.add(id(value))
                holders.append(value)
            yield holder, key, value


def _held(function: FunctionType) -> list[Any]:
    """What a function refers to besides globals."""
    full = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    return [*full, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _refers(function: FunctionType, twins: dict[int, Any], seen: set[int]) -> bool:
    """Whether a function, or one that it refers to, refers to anything that was copied."""
    seen.add(id(function))
    return any(
        _refers(value, twins, seen)
        if isinstance(value, FunctionType) and id(value) not in seen
        else twins.get(id(value), value) is not value
        for value in _held(function)
    )


def _rebound(function: FunctionType, twins: dict[int, Any]) -> FunctionType:
    """The function, with the copies in its closure and its default arguments."""

    def twin_of(value: Any) -> Any:
        rebinds = isinstance(value, FunctionType) and id(value) not in twins and _refers(value, twins, set())
        return _rebound(value, twins) if rebinds else twins.get(id(value), value)

    cells = [CellType() for _ in function.__closure__ or ()]
    own = FunctionType(function.__code__, function.__globals__, function.__name__, closure=tuple(cells))
    twins[id(function)] = own  # first: functions may refer to each other
    for cell, given in zip(cells, function.__closure__ or (), strict=True):
        if given != CellType():
            cell.cell_contents = twin_of(given.cell_contents)
    own.__defaults__ = None if function.__defaults__ is None else tuple(map(twin_of, function.__defaults__))
    own.__kwdefaults__ = {name: twin_of(value) for name, value in (function.__kwdefaults__ or {}).items()}
    own.__dict__.update(function.__dict__)
    return own
