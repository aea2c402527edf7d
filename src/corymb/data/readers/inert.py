"""Extract arrays from a pickle without unpickling it, for old public archives that are published as pickles.

A pickle is a program for a small virtual machine that may call anything. This interpreter makes no calls: each call
becomes a record of the name and its arguments, and only the records of numpy arrays are understood. Anything else,
including any name outside numpy, is rejected.
"""

from __future__ import annotations

import math
import pickletools
from typing import Any, NamedTuple

import numpy as np

from corymb.settings import InvalidInput

_ARRAY = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
_NAMES = _ARRAY | {"numpy ndarray", "numpy dtype"}
_MARK = object()
_LITERALS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
}


class _Named(NamedTuple):
    """A qualified name, which is never looked up."""

    name: str


class _Called(NamedTuple):
    """A call that was not made: its name, its arguments, and the state that it would have been given."""

    name: str
    arguments: tuple[Any, ...]
    state: list[Any]


def read_inert(data: bytes, what: str) -> Any:
    """Read the dictionaries, lists, numbers, texts and numpy arrays of a pickle; `what` is for error messages."""
    try:
        return _plain(_run(data), what)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"{what} is not a pickle of arrays and plain values ({error}): download it again.") from None


def _run(data: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    given: Any
    for operation, given, _ in pickletools.genops(data):
        name = operation.name
        if name in _VALUES:
            stack.append(given.encode("latin-1") if name.endswith("BINSTRING") else given)
        elif name in _LITERALS:
            stack.append(_LITERALS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[given] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[given])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "STOP":
            return stack.pop()
        elif name != "PROTO":
            _combine(name, given, stack)
    raise ValueError("it ends early")


def _combine(name: str, given: Any, stack: list[Any]) -> None:
    if name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        count = int(name[-1])
        stack[-count:] = [tuple(stack[-count:])]
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name in ("APPENDS", "APPEND"):
        items = _since_mark(stack) if name == "APPENDS" else [stack.pop()]
        stack[-1].extend(items)
    elif name in ("SETITEMS", "SETITEM"):
        items = _since_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        stack[-1].update(zip(items[::2], items[1::2], strict=True))
    elif name == "GLOBAL":
        if given not in _NAMES:
            raise ValueError(f"it names {given!r}")
        stack.append(_Named(given))
    elif name == "REDUCE":
        arguments = stack.pop()
        stack.append(_Called(stack.pop().name, tuple(arguments), []))
    elif name == "BUILD":
        state = stack.pop()
        stack[-1].state.append(state)
    else:
        raise ValueError(f"it has the operation {name}")


def _since_mark(stack: list[Any]) -> list[Any]:
    place = max(i for i, item in enumerate(stack) if item is _MARK)
    items = stack[place + 1 :]
    del stack[place:]
    return items


def _plain(value: Any, what: str) -> Any:
    if isinstance(value, _Called):
        return _array(value)
    if isinstance(value, dict):
        return {key: _plain(item, what) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, _Named):
        return [_plain(item, what) for item in value]
    return value


def _array(record: _Called) -> Any:
    """Build an array from numpy's state: (version, shape, dtype, Fortran order, bytes)."""
    if record.name not in _ARRAY or len(record.state) != 1:
        raise ValueError(f"it makes a {record.name}")
    _, shape, kind, by_columns, contents = record.state[0]
    code = kind.arguments[0]
    order = kind.state[0][1]
    order, code = (text.decode() if isinstance(text, bytes) else text for text in (order, code))
    dtype = np.dtype(f"{order}{code}")
    if dtype.kind not in "biuf" or len(contents) != dtype.itemsize * math.prod(shape):
        raise ValueError(f"an array of {dtype} {shape} has {len(contents)} bytes")
    return np.frombuffer(contents, dtype).reshape(shape, order="F" if by_columns else "C")
