"""Settings: frozen dataclasses, defined once and read from Python, TOML, JSON and the command line."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import os
import re
import shlex
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

S = TypeVar("S")
LONGEST_FILE = 10**7
"""The most bytes of a settings file, including what a run records in it."""


class InvalidInput(ValueError):
    """Invalid user input: one line with what was received, what was expected and how to fix it."""


PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""The names of nodes and of their sessions, which are names of folders too."""


def check_node_name(name: str) -> None:
    """Require a name that a node may have."""
    require(
        PLAIN_NAME.fullmatch(name) is not None,
        f"A node's name has letters, digits, dots, dashes and underscores, and starts with a letter or digit, got "
        f"{name!r}.",
    )


def split_address(address: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    good = bool(host) and port.isdigit() and 0 < int(port) < 65536
    require(good, f"The address is {address!r}: wanted HOST:PORT, such as 127.0.0.1:8000.")
    return host.strip("[]"), int(port)


def first_line(error: BaseException) -> str:
    r"""The first line of an error's message, cut to 200 characters; the name of its type if the message is empty.

    >>> first_line(ValueError("too long\nby far")), first_line(KeyError())
    ('too long', 'KeyError')
    """
    text = error_text(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__


def error_text(error: BaseException) -> str:
    """The message of an error; empty if its own `__str__` fails."""
    try:
        return str(error)
    except BaseException:  # a third-party `__str__` may raise anything, even SystemExit; that must not hide the error
        return ""


def printable(text: str) -> str:
    r"""Text for a terminal or a table, with unprintable characters escaped.

    >>> printable("a\x1b[31m\nb")
    'a\\x1b[31m\\nb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def csv_cell(value: object) -> object:
    """A cell of a csv file, escaped so that spreadsheets do not read it as a formula.

    >>> csv_cell("=1+2"), csv_cell("-3.5"), csv_cell("-a"), csv_cell(7)
    ("'=1+2", '-3.5', "'-a", 7)
    """
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def require(condition: bool, message: str) -> None:
    """Raise `InvalidInput` unless `condition`."""
    if not condition:
        raise InvalidInput(message)


MOST_NAMES = 30
"""The most names that a message lists."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?` if a known name is close, else the known names.

    >>> did_you_mean("ifac", ["ifca", "fedavg"])
    "Did you mean 'ifca'?"
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1)
    shown = ", ".join(known[:MOST_NAMES]) + (f" and {len(known) - MOST_NAMES} others" * (len(known) > MOST_NAMES))
    return f"Did you mean {close[0]!r}?" if close else f"Known: {shown}."


def expanded(path: str | os.PathLike[str]) -> Path:
    """A path with `~` expanded; raises InvalidInput for values that cannot be a path."""
    require(isinstance(path, (str, os.PathLike)), f"{path!r} is not a path: give one as text.")
    try:
        place = Path(path).expanduser()
        if "\0" in os.fspath(place):  # some of the checks below would just return False
            raise ValueError("it holds a null character")
        os.path.lexists(place)
        place.exists()  # raises for names that the system does not accept
    except (RuntimeError, ValueError, OSError) as error:
        if isinstance(error, PermissionError):
            return place
        shown = os.fspath(path)[:60].encode("unicode_escape").decode()
        raise InvalidInput(f"{shown} cannot be a path here: {first_line(error)[:80]}.") from None
    return place


def to_dict(settings: object) -> dict[str, Any]:
    """A settings dataclass as plain values: nested dataclasses become dicts, and integers in float fields floats."""
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        raise TypeError(f"{settings!r} is not an instance of a settings dataclass")
    hints = get_type_hints(type(settings))
    return {f.name: _plain(getattr(settings, f.name), _kinds(hints[f.name])) for f in dataclasses.fields(settings)}


def check_plain(settings: object) -> None:
    """Raise InvalidInput for settings that cannot be stored in a run's record, such as functions or enum members."""
    for name, value in to_dict(settings).items():
        if (odd := _not_plain(value)) is not None:
            raise InvalidInput(
                f"{type(settings).__name__}: {name} holds a {type(odd).__name__}, which cannot be stored in a run's "
                "record: wanted numbers, text, True or False, None, dataclasses, or lists and dicts of these."
            )


def _not_plain(value: Any) -> object | None:
    """The first value in a tree that is not plain, or None."""
    if isinstance(value, (list, tuple)):
        return next((odd for item in value if (odd := _not_plain(item)) is not None), None)
    if isinstance(value, Mapping):
        return _not_plain([*value, *value.values()])
    return None if value is None or type(value) in (bool, int, float, str) else value


def _plain(value: Any, kinds: list[Any]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item, kinds) for item in value]
    return float(value) if type(value) is int and float in kinds and int not in kinds else value


def _kinds(hint: Any) -> list[Any]:
    """The basic types in a type hint: float and NoneType for `tuple[float, ...] | None`."""
    inner = get_args(hint)
    return [kind for part in inner for kind in _kinds(part)] if inner else [hint]


class _Typed(NamedTuple):
    """A field of a settings dataclass, with the types (`sure`) whose values all fit its hint."""

    name: str
    hint: Any
    sure: frozenset[type]
    default: Any


@cache
def _typed(kind: type) -> list[_Typed]:
    hints = get_type_hints(kind)
    return [_Typed(f.name, hints[f.name], _sure(hints[f.name]), f.default) for f in dataclasses.fields(kind)]


def _sure(hint: Any) -> frozenset[type]:
    """Types whose values all fit a hint: the members of a union, int for float, but no tuples and no literals."""
    parts = get_args(hint) if get_origin(hint) in UNIONS else (hint,)
    whole = {part for part in parts if isinstance(part, type) and get_origin(part) is None}
    return frozenset(whole | {int} if float in whole else whole)


UNIONS = (Union, types.UnionType)


def check_types(settings: Any) -> None:
    """Raise InvalidInput for fields of the wrong type; numpy and torch numbers are converted to Python's.

    For `__post_init__`, before values are compared. Importing pydantic, which reads settings from text, would take
    longer than creating all settings; here most values are accepted by their type alone.
    """
    for name, hint, sure, default in _typed(settings.__class__):
        value = getattr(settings, name)
        if type(value) in sure or _fits(value, hint):
            continue
        if _fits(plain := _python(value), hint):
            object.__setattr__(settings, name, plain)
        elif value is not default:  # users' classes may have a default that does not fit its type, such as None
            wanted = _listed(_wanted(hint))
            raise InvalidInput(f"{type(settings).__name__}: {name} is {_shown(value)}: wanted {wanted}.")


def _python(value: Any) -> Any:
    """Numbers and arrays of numpy and torch as Python values; other values unchanged."""
    if isinstance(value, (tuple, list)):
        return tuple(map(_python, value))
    return _python(value.tolist()) if hasattr(value, "tolist") else value


def check_all_types(settings: object) -> None:
    """`check_types` for settings and all nested settings, for classes that do not check themselves."""
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        return
    check_types(settings)
    for field in dataclasses.fields(settings):
        check_all_types(getattr(settings, field.name))


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value fits a type hint; hints other than settings types (protocols, callables) accept anything."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        return any(_fits(value, part) for part in inner)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in inner)
    if origin is tuple:
        parts = inner[:1] * len(value) if isinstance(value, (tuple, list)) and inner[1:] == (...,) else inner
        return isinstance(value, (tuple, list)) and len(value) == len(parts) and all(map(_fits, value, parts))
    if hint in (int, float):
        return isinstance(value, (int, float) if hint is float else int) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    if not dataclasses.is_dataclass(hint):
        return True
    algorithms = hasattr(hint, "run") and hasattr(value, "run")  # users' own algorithms are accepted for any
    return isinstance(value, hint) or algorithms  # type: ignore[arg-type]


NAMED = {int: "a whole number", float: "a number", str: "text", bool: "True or False", type(None): "None"}


def _wanted(hint: Any) -> list[str]:
    """The values that a type hint accepts, in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in UNIONS:
        kinds = [part for part in inner if part is not int or float not in inner]
        return [words for part in kinds for words in _wanted(part)]
    if origin is Literal:
        return [repr(choice) for choice in inner]
    if origin is tuple:
        items = [words for part in inner if part is not ... for words in _wanted(part)]
        return [f"a tuple, each item {_listed(items)}"]
    return [NAMED.get(hint) or f"{hint.__name__}(...)"]


def _listed(parts: Iterable[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} or {last}" if most else last


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def from_dict(kind: type[S], values: Mapping[str, Any]) -> S:
    """A settings dataclass from plain values; errors name the field at fault, and unknown names are refused.

    Values must have the field's type in TOML and JSON: text is not accepted for a number, nor a fraction for an int.
    """
    from pydantic import ValidationError

    _refuse_odd(values, where="", deep=0)
    _refuse_unknown(kind, values, where="")
    try:
        read: S = _adapter(kind).validate_json(json.dumps(values, default=to_dict), strict=True)
        return read
    except ValidationError as error:
        first = error.errors()[0]
        names = _names(kind)  # `loc` also holds the tags of union members, which mean nothing to users
        place = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part in names)
        if first["type"] == "value_error":  # raised by the class itself, with a complete message
            line = first["msg"].removeprefix("Value error, ")
            raise InvalidInput(f"{place}: {line}" if place else line) from None
        raise InvalidInput(f"{place or kind.__name__}: {first['msg']} (got {first['input']!r}).") from None


DEEPEST = 32
"""The most levels of nested settings."""


def _refuse_odd(value: Any, where: str, deep: int) -> None:
    """Raise InvalidInput for values that no setting can have: TOML dates, numbers that are not finite, deep nesting."""
    require(deep <= DEEPEST, f"{where[:60]}: settings are nested more than {DEEPEST} levels deep.")
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _refuse_odd(inner, f"{where}.{name}" if where else str(name), deep + 1)
    elif isinstance(value, (list, tuple)):
        for place, inner in enumerate(value):
            _refuse_odd(inner, f"{where}.{place}", deep + 1)
    elif isinstance(value, float):
        require(math.isfinite(value), f"{where} must be a finite number, got {value}.")
    elif not dataclasses.is_dataclass(value):
        plain = value is None or isinstance(value, (bool, int, str))
        require(plain, f"{where} is a {type(value).__name__}, {value}: wanted a number, text, a list or true or false.")


_ADAPTERS: dict[type, Any] = {}


def _adapter(kind: type) -> Any:
    from pydantic import PydanticSchemaGenerationError, TypeAdapter

    if kind not in _ADAPTERS:  # building an adapter takes far longer than using it
        try:
            _ADAPTERS[kind] = TypeAdapter(kind)
        except PydanticSchemaGenerationError:
            raise InvalidInput(
                f"{kind.__name__} has settings that cannot be given as text ({', '.join(_unreadable(kind))}): create "
                "it in Python, for corymb.fit(...)."
            ) from None
    return _ADAPTERS[kind]


def check_readable(kind: type) -> None:
    """Reject a settings class that cannot be read from a file or the command line."""
    _adapter(kind)


def _unreadable(kind: type) -> list[str]:
    """The settings of a class whose types a file cannot hold, such as another algorithm."""
    from pydantic import PydanticSchemaGenerationError, TypeAdapter

    hints, odd = get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        try:
            TypeAdapter(hints[field.name])
        except PydanticSchemaGenerationError:
            odd.append(field.name)
    return odd


def _names(kind: type) -> set[str]:
    """The names of a dataclass's fields and of those of its nested dataclasses."""
    hints = get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    nested = (part for name in fields for part in _kinds(hints[name]))
    return fields.union(*(_names(part) for part in nested if isinstance(part, type) and dataclasses.is_dataclass(part)))


def _refuse_unknown(kind: type, values: Mapping[str, Any], where: str) -> None:
    hints = get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    for name, value in values.items():
        if name not in fields:
            raise InvalidInput(f"Unknown setting {where + name!r} for {kind.__name__}. {did_you_mean(name, fields)}")
        nested = [part for part in _kinds(hints[name]) if isinstance(part, type) and dataclasses.is_dataclass(part)]
        for place, item in enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]:
            if nested and isinstance(item, Mapping):
                path = f"{where}{name}" if place is None else f"{where}{name}.{place}"
                meant = _meant(nested, item)
                _refuse_unknown(meant, item, f"{path}.")
                if len(nested) > 1:  # else pydantic would try other classes too, and report errors about those
                    _read_alone(meant, item, path)


def _read_alone(kind: type, values: Mapping[str, Any], path: str) -> None:
    try:
        from_dict(kind, values)
    except InvalidInput as problem:
        raise InvalidInput(f"{path}: {problem}") from None


def _meant(kinds: list[type], values: Mapping[str, Any]) -> type:
    """The dataclass that has most of the names; the first one of equals."""
    return max(kinds, key=lambda kind: len({field.name for field in dataclasses.fields(kind)} & values.keys()))


def read_toml(path: Path) -> dict[str, Any]:
    """The contents of a TOML file."""
    try:
        with path.open("rb") as file:
            contents = file.read(LONGEST_FILE + 1)  # bounded, since the path may be a device or a huge file
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    require(len(contents) <= LONGEST_FILE, f"{path} is longer than {LONGEST_FILE:,} bytes: it is not a settings file.")
    try:
        return tomllib.loads(contents.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read as TOML: {first_line(error)}") from None


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested mappings merged field by field; values of `over` win."""
    both = {name: merged(under[name], over[name]) for name in under.keys() & over.keys() if _nested(under, over, name)}
    return {**under, **over, **both}


def _nested(under: Mapping[str, Any], over: Mapping[str, Any], name: str) -> bool:
    return isinstance(under[name], Mapping) and isinstance(over[name], Mapping)


def as_options(settings: Mapping[str, Any], outer: str = "") -> Iterator[str]:
    """Plain values as options of the command line; None is left out.

    >>> list(as_options({"k": "auto", "local": {"lr": 0.1, "safe": False}, "repair": False}))
    ['--k', 'auto', '--local.lr', '0.1', '--local.no-safe', '--no-repair']
    >>> list(as_options({"betas": (0.9, 0.99), "sizes": ()}))
    ['--betas', '0.9,0.99']
    """
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from as_options(value, f"{outer}{name}.")
        elif isinstance(value, bool):
            yield f"--{outer}{name}" if value else f"--{outer}no-{name}"
        elif isinstance(value, (tuple, list)):
            yield from (f"--{outer}{name}", ",".join(map(str, value))) if value else ()
        elif value is not None:
            yield from (f"--{outer}{name}", str(value))


def run_command(algorithm: str, data: str, options: Mapping[str, Any]) -> str:
    """The command line of a run.

    >>> run_command("ifca", "my data/", {"k": "auto", "local": {"lr": 0.1}, "keep_going": True})
    "corymb run 'my data/' ifca --k auto --local.lr 0.1 --keep_going"
    """
    return shlex.join(["corymb", "run", data, algorithm, *as_options(options)])


def fingerprint(*parts: object) -> str:
    """A short hash of plain values: equal settings have equal fingerprints in every process."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
