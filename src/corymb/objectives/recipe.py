"""Objectives that travel: what the other side makes the same objective from, as a tree and without code.

An objective, a network or a flow says with `recipe()` which arguments make it again; a frozen dataclass is made of its
fields; a function that makes a module is named, and must belong to a package that the reader allows on purpose. What is
made there must `describe()` itself as what was sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from corymb.core.objective import Objective
from corymb.settings import InvalidInput, first_line
from corymb.trees import Tree
from corymb.wire import WireError, find

HOME = "corymb"
"""Of this package a reader makes what has a recipe, and calls no function that a message names."""


def recipe_of(objective: Objective) -> dict[str, Any]:
    """An objective as a tree that can travel; `made_from` makes the same one elsewhere."""
    try:
        return {"describes": objective.describe(), "recipe": _told(objective)}
    except WireError as problem:
        raise InvalidInput(f"This objective cannot travel to other machines: {problem}") from None


def made_from(tree: Tree, allow: Sequence[str]) -> Objective:
    """The objective that `recipe_of` wrote down, of things in the packages in `allow`; it describes itself equally."""
    if not isinstance(tree, dict) or set(tree) != {"describes", "recipe"}:
        raise WireError("The message holds no objective.")
    try:
        objective = _made(tree["recipe"], allow)
        described = objective.describe()
    except (WireError, InvalidInput):
        raise
    except Exception as error:  # whatever the parts trip over, the recipe is what is wrong
        raise WireError(f"The objective cannot be made here: {type(error).__name__}: {first_line(error)}") from None
    if described != tree["describes"]:
        raise WireError(
            f"The objective is another one here: {_apart(described, str(tree['describes']))} Both sides must have the "
            "same code."
        )
    made: Objective = objective
    return made


def _apart(here: str, there: str) -> str:
    """Where two descriptions part."""
    at = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
    return f"{here[max(0, at - 20) : at + 30]!r} here, {there[max(0, at - 20) : at + 30]!r} there."


def _told(value: Any) -> Tree:
    if value is None or isinstance(value, (bool, int, float, str, Tensor)):
        return value
    if isinstance(value, dict):
        return {name: _told(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [_told(inside) for inside in value]
    if isinstance(value, tuple):
        return value if hasattr(value, "_fields") else tuple(_told(inside) for inside in value)
    if hasattr(value, "recipe") and not isinstance(value, type):
        return _as_made(type(value), value.recipe())
    if _is_frozen(type(value)):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return _as_made(type(value), {name: getattr(value, name) for name in fields})
    if isinstance(value, (FunctionType, type)):
        return {"function": _place(value)}
    if isinstance(value, nn.Module):
        raise WireError(
            f"it holds the module {type(value).__name__} itself: give the model as a function that makes it, such as "
            "mymodule:make_model, which the nodes have too."
        )
    raise WireError(f"it holds a {type(value).__name__}, which has no recipe().")


def _as_made(kind: type, arguments: Mapping[str, Any]) -> Tree:
    return {"made": _place(kind), "of": {name: _told(value) for name, value in arguments.items()}}


def _is_frozen(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _place(value: Any) -> str:
    module, name = value.__module__, value.__qualname__
    if module == "__main__" or not name.isidentifier():
        raise WireError(f"{name} does not stand at the top of a module that nodes could import: put it into one.")
    return f"{module}:{name}"


def _made(tree: Tree, allow: Sequence[str]) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {"made", "of"} and isinstance(tree["of"], dict):
            kind = find(tree["made"], allow)
            if not isinstance(kind, type) or not (hasattr(kind, "recipe") or _is_frozen(kind)):
                raise WireError(f"{str(tree['made'])[:80]!r} has no recipe().")
            return kind(**{name: _made(inside, allow) for name, inside in tree["of"].items()})
        if set(tree) == {"function"}:
            return _function(tree["function"], allow)
        return {name: _made(inside, allow) for name, inside in tree.items()}
    if isinstance(tree, list):
        return [_made(inside, allow) for inside in tree]
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return tuple(_made(inside, allow) for inside in tree)
    return tree


def _function(place: Any, allow: Sequence[str]) -> Any:
    """A function or a class of modules: of this package only modules, or a message could call anything in it."""
    on_purpose = [package for package in allow if package != HOME]
    found = find(place, allow)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    if not isinstance(found, (FunctionType, type)):
        raise WireError(f"{place[:80]!r} is not a function.")
    return find(place, on_purpose)
