"""Settings dataclasses as command-line options, all of them optional, so that the options given can be told apart."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Collection, Sequence
from functools import cache, reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from cyclopts import Group, Parameter, Token

from corymb.settings import InvalidInput

LOCAL, NESTED = 2, 5
"""Sort keys of nested settings in the help: `local` right after the algorithm's own settings, the others last."""


def options_of(kind: type, *, leave_out: Collection[str] = (), like: object = None, outer: str = "") -> type:
    """A dataclass like `kind` whose fields are all optional; nested settings become `--outer.inner`.

    `like` is the default of the nested settings: its fields are the defaults shown.
    """
    hints, texts = get_type_hints(kind), field_texts(kind)
    fields = [
        option
        for field in dataclasses.fields(kind)
        if field.name not in leave_out
        for option in _options(
            field, hints[field.name], texts.get(field.name, ""), getattr(like, field.name, field.default), outer
        )
    ]
    # Generated classes belong to the module `types` by default, and cyclopts would treat them as built-in.
    return dataclasses.make_dataclass(
        kind.__name__, fields, frozen=True, kw_only=True, namespace={"__module__": __name__}
    )


NAMED = "__named"
"""Ends the name of the option for the names that a nested setting may have instead of its fields: `--init one-shot`."""


def _options(
    field: dataclasses.Field[Any], hint: Any, text: str, default: object, outer: str
) -> list[tuple[str, Any, Any]]:
    """The options of a field: one, or two if it is either a name or nested settings."""
    members = (hint, *get_args(hint))
    nested = [member for member in members if isinstance(member, type) and dataclasses.is_dataclass(member)]
    if not nested:
        return [_option(field, hint, text, default)]
    path = f"{outer}{field.name}."
    likes = [default if isinstance(default, member) else None for member in nested]
    inner = _joined([options_of(member, like=like, outer=path) for member, like in zip(nested, likes, strict=True)])
    group = Group(f"--{path}…", sort_key=LOCAL if path == "local." else NESTED + path.count("."))
    fields = (field.name, Annotated[inner, Parameter(help=text, group=group)], inner())
    named = [member for member in get_args(hint) if member not in (*nested, type(None))]
    if not named:
        return [fields]
    # The name comes first: cyclopts gives a token to the first of two parameters that are called alike.
    name, annotated, absent = _option(field, reduce(or_, named), text, default, called=f"--{outer}{field.name}")
    return [(name + NAMED, annotated, absent), fields]


def _option(
    field: dataclasses.Field[Any], hint: Any, text: str, default: object, called: str | None = None
) -> tuple[str, Any, Any]:
    several = _several(hint)
    shown = None if default in (None, dataclasses.MISSING, (), "") else str(default)
    parameter = Parameter(
        name=called,
        help=text,
        converter=None if hint is bool else Reader(hint),
        show_default=(lambda _: shown) if shown else False,
        negative_bool="no_",
        negative_iterable=() if several is not None and _is_fixed(several) else None,
    )
    # a list, because cyclopts would read a tuple from several tokens: here it is one token with commas
    items: Any = reduce(or_, (part for part in get_args(several) if part is not ...)) if several is not None else None
    shape: Any = hint if several is None else list[items]
    return field.name, Annotated[shape | None, parameter], None


def _several(hint: Any) -> Any | None:
    """The part of a type that holds several values."""
    return next((part for part in (hint, *get_args(hint)) if get_origin(part) in (tuple, list)), None)


def _joined(kinds: Sequence[type]) -> type:
    """One dataclass with the fields of several; the fields given decide which one is meant."""
    if len(kinds) == 1:
        return kinds[0]
    fields = {field.name: field for kind in reversed(kinds) for field in dataclasses.fields(kind)}
    return dataclasses.make_dataclass(
        kinds[0].__name__,
        [(field.name, field.type, field.default) for field in fields.values()],
        frozen=True,
        kw_only=True,
        namespace={"__module__": __name__},
    )


def _is_fixed(several: Any) -> bool:
    """Whether it is a tuple of fixed length, with a type for each value."""
    return get_origin(several) is tuple and ... not in get_args(several)


@dataclasses.dataclass(frozen=True)
class Reader:
    """Converts text to a type strictly: 2.5 is not an integer, and 20 does not become 20.0."""

    hint: Any

    def __call__(self, type_: Any, tokens: Sequence[Token]) -> Any:
        from pydantic import TypeAdapter, ValidationError

        texts = [token.value for token in tokens]
        several = _several(self.hint)
        try:
            if several is None:
                return TypeAdapter(self.hint).validate_strings(texts[0])
            parts = [text.strip() for text in ",".join(texts).split(",")]  # pydantic does not parse lists from strings
            kinds = self._kinds(several, len(parts))
            if len(kinds) != len(parts):
                raise InvalidInput(f"wanted {len(kinds)} values separated by commas (got {' '.join(texts)!r}).")
            return [TypeAdapter(kind).validate_strings(text) for kind, text in zip(kinds, parts, strict=True)]
        except ValidationError as error:
            wanted = _wanted(self.hint if several is None else several)
            raise InvalidInput(f"{wanted or error.errors()[0]['msg']} (got {' '.join(texts)!r}).") from None

    @staticmethod
    def _kinds(several: Any, n: int) -> Sequence[Any]:
        """The types of n values; in a tuple of fixed length each has its own."""
        kinds = get_args(several)
        return kinds if _is_fixed(several) else kinds[:1] * n


WORDS = {int: "a whole number", float: "a number"}
"""What a value of a type is called in messages."""


def _wanted(hint: Any) -> str:
    """What a type takes, in words; empty if it takes something without a name, for which pydantic has a message."""
    listed = get_origin(hint) in (tuple, list)
    members = get_args(hint) if listed or isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    words: list[str] = []
    for member in (member for member in members if member not in (NoneType, ...)):
        if get_origin(member) is Literal:
            words += map(repr, get_args(member))
        elif isinstance(member, UnionType) or member not in WORDS:
            return ""
        else:
            words.append(WORDS[member])
    words = list(dict.fromkeys(words))
    either = " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return f"wanted {either}{', several separated by commas' if listed else ''}"


def given(options: Any) -> dict[str, Any]:
    """The options given on the command line, as nested plain values."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), field.name.removesuffix(NAMED)
        if dataclasses.is_dataclass(value):
            value = given(value) or None
        if value is not None:
            if name in found:
                raise InvalidInput(f"Give --{name} {found[name]} or --{name}.{next(iter(value))}, not both.")
            found[name] = value
    return found


def field_texts(kind: type) -> dict[str, str]:
    """The docstring of each field of a dataclass and its bases, read from their source."""
    texts: dict[str, str] = {}
    for own in reversed(kind.__mro__):
        texts |= _own_texts(own) if dataclasses.is_dataclass(own) else {}
    return texts


@cache  # nested settings such as `local` are part of many classes
def _own_texts(kind: type) -> dict[str, str]:
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except OSError:  # a generated class has no source
        return {}
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = following.value if isinstance(following, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[statement.target.id] = inspect.cleandoc(value.value)
    return texts
