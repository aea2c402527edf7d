"""Sends objectives to other machines as recipes: trees of arguments from which the other side recreates them, no code.

An objective, a network or a flow returns from `recipe()` the arguments that recreate it; a frozen dataclass is
recreated from its fields; a function that creates a module is sent by name, and must belong to a package that the
reader allows explicitly. The recreated objective must have the same `describe()` as the original.
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
"""From this package, a reader creates only objects with a recipe, and never calls functions that a message names."""


def recipe_of(objective: Objective) -> dict[str, Any]:
    """An objective as a tree for `corymb.wire.pack`; `made_from` recreates it."""
    try:
        return {"describes": objective.describe(), "recipe": _to_tree(objective)}
    except WireError as problem:
        raise InvalidInput(f"This objective cannot be sent to other machines: {problem}") from None


def made_from(tree: Tree, allow: Sequence[str]) -> Objective:
    """The objective for a tree from `recipe_of`, whose functions and classes must be in the packages in `allow`."""
    if not isinstance(tree, dict) or set(tree) != {"describes", "recipe"}:
        raise WireError("The message does not hold an objective.")
    try:
        objective = _made(tree["recipe"], allow)
        described = objective.describe()
    except (WireError, InvalidInput):
        raise
    except Exception as error:  # any failure means that the recipe is wrong
        raise WireError(f"The objective cannot be created here: {type(error).__name__}: {first_line(error)}") from None
    if described != tree["describes"]:
        raise WireError(
            f"The objective differs here: {_first_difference(described, str(tree['describes']))} Both sides must have "
            "the same code."
        )
    made: Objective = objective
    return made


def _first_difference(here: str, there: str) -> str:
    """Two descriptions around their first difference."""
    at = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
    return f"{here[max(0, at - 20) : at + 30]!r} here, {there[max(0, at - 20) : at + 30]!r} there."


def _to_tree(value: Any) -> Tree:
    if value is None or isinstance(value, (bool, int, float, str, Tensor)):
        return value
    if isinstance(value, dict):
        return {name: _to_tree(inside) for name, inside in value.items()}
    if isinstance(value, list):
        return [_to_tree(inside) for inside in value]
    if isinstance(value, tuple):
        return value if hasattr(value, "_fields") else tuple(_to_tree(inside) for inside in value)
    if hasattr(value, "recipe") and not isinstance(value, type):
        return _as_made(type(value), value.recipe())
    if _is_frozen(type(value)):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return _as_made(type(value), {name: getattr(value, name) for name in fields})
    if isinstance(value, (FunctionType, type)):
        return {"function": _place(value)}
    if isinstance(value, nn.Module):
        raise WireError(
            f"it holds the module {type(value).__name__} itself: give the model as a function that creates it, such as "
            "mymodule:make_model, which the nodes have too."
        )
    raise WireError(f"it holds a {type(value).__name__}, which has no recipe().")


def _as_made(kind: type, arguments: Mapping[str, Any]) -> Tree:
    return {"made": _place(kind), "of": {name: _to_tree(value) for name, value in arguments.items()}}


def _is_frozen(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _place(value: Any) -> str:
    module, name = value.__module__, value.__qualname__
    if module == "__main__" or not name.isidentifier():
        raise WireError(f"{name} is not at the top level of a module that nodes could import: move it into one.")
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
    """A module class, or a function of an explicitly allowed package: messages must not call functions of our own."""
    on_purpose = [package for package in allow if package != HOME]
    found = find(place, allow)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return found
    if not isinstance(found, (FunctionType, type)):
        raise WireError(f"{place[:80]!r} is not a function.")
    return find(place, on_purpose)
