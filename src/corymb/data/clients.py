"""The clients of rows: their names, and statistics that each client could compute on its own rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from corymb.core.engine import in_order
from corymb.core.names import ClientNames, Numbered
from corymb.data.features import Array, as_array
from corymb.settings import InvalidInput, printable, require

Values = ArrayLike | Tensor
Truth = Values | Mapping[str, int]


class Clients(NamedTuple):
    """The clients, and the client of each row."""

    names: Sequence[str]
    codes: Array
    """int64 [rows]: positions in `names`."""

    @property
    def n(self) -> int:
        """The number of clients."""
        return len(self.names)

    def sums(self, values: Array) -> Array:
        """float64 [n]: each client's sum over its rows, in row order."""
        return np.bincount(self.codes, weights=values, minlength=self.n)

    def counts(self, kinds: Array, of: int) -> Array:
        """int64 [n, of]: each client's number of rows of each kind, 0 to of - 1."""
        return np.bincount(self.codes * of + kinds, minlength=self.n * of).reshape(self.n, of)

    def take(self, rows: Array) -> Clients:
        """A selection of rows, with all clients kept."""
        return Clients(self.names, self.codes[rows])

    def of(self, row: int) -> str:
        """The name of a row's client."""
        return self.names[int(self.codes[row])]

    def present(self) -> Clients:
        """The clients that have rows, renumbered."""
        found, codes = np.unique(self.codes, return_inverse=True)
        return Clients(tuple(self.names[place] for place in found), codes.astype(np.int64))


def majority(votes: Array, of: int) -> int:
    """The most frequent vote among 0 to of - 1; the lowest in a tie.

    >>> majority(np.array([2, 1, 1, 2]), 3)
    1
    """
    return int(np.bincount(votes, minlength=of).argmax())


def name_clients(client: Array, names: Sequence[str] | None = None) -> Clients:
    """The clients of rows with these ids, integers or text.

    Without `names`, clients are sorted by name, with runs of digits compared as numbers. With `names`, integer ids are
    positions in them.
    """
    require(client.ndim == 1, f"client has shape {list(client.shape)}: wanted one client id for each row.")
    if client.dtype.kind == "O":
        require(all(isinstance(one, str) for one in client), "Client ids are of mixed types: make all of them text.")
        client = client.astype(np.str_)
    require(
        client.dtype.kind in "iuU",
        f"Client ids are of type {client.dtype}: wanted integers or text (int, str).",
    )
    if names is not None and client.dtype.kind in "iu":
        return Clients(tuple(names), _positions(client, len(names)))
    found, codes = np.unique(client, return_inverse=True)
    if names is None and client.dtype.kind in "iu" and len(found) and found[0] >= 0:  # the order of such names
        whole = range(int(found[0]), int(found[-1]) + 1)
        wanted_names = Numbered("", whole) if len(whole) == len(found) else [str(one) for one in found]
        return Clients(ClientNames.of(wanted_names), codes.astype(np.int64, copy=False))
    occurring = [str(one) for one in found]
    wanted = tuple(names) if names is not None else tuple(occurring[place] for place in in_order(occurring))
    number = {name: position for position, name in enumerate(wanted)}
    for name in occurring:
        require(
            name in number, f"There are rows of client {name!r}, which is not in names: correct the id or add the name."
        )
    lookup = np.array([number[name] for name in occurring], dtype=np.int64)
    shown = tuple(printable(name) for name in wanted)  # no control characters or line breaks when names are shown
    return Clients(shown if len(set(shown)) == len(wanted) else wanted, lookup[codes])


def is_dealt(client: object) -> bool:
    """Whether clients are given with their rows, in a mapping or a list, instead of a client for each row.

    >>> is_dealt({"a": [0, 2], "b": [1]}), is_dealt([range(2), range(2, 5)]), is_dealt(["a", "b", "a"])
    (True, True, False)
    """
    if isinstance(client, (list, tuple)):  # lists of one each may as well be a column of ids
        return all(_is_list(one) for one in client) and any(len(one) != 1 for one in client)
    return isinstance(client, Mapping)


def _is_list(one: object) -> bool:
    return hasattr(one, "__len__") and not isinstance(one, (str, bytes)) and getattr(one, "ndim", 1) > 0


def dealt_rows(client: Mapping[Any, Values] | Sequence[Values], rows: int) -> tuple[Array, Array]:
    """The rows that clients have, client by client, and the client of each of them."""
    items = list(client.items() if isinstance(client, Mapping) else enumerate(client))
    names = [str(name) for name, _ in items]
    for name in [name for name, often in Counter(names).items() if often > 1][:1]:
        raise InvalidInput(f"Two clients are called {name!r}: rename one.")  # such as 1 and "1"
    parts = [_row_numbers(name, as_array(part), rows) for name, (_, part) in zip(names, items, strict=True)]
    ids = np.asarray(names) if isinstance(client, Mapping) else np.arange(len(names))
    owner = np.repeat(ids, [len(part) for part in parts])
    chosen = np.concatenate(parts)
    found, often = np.unique(chosen, return_counts=True)
    for place in np.flatnonzero(often > 1)[:1]:
        who = owner[chosen == found[place]]
        raise InvalidInput(
            f"Row {found[place]} is given to clients {str(who[0])!r} and {str(who[1])!r}: give every row to one client."
            if who[0] != who[1]
            else f"Row {found[place]} is given twice to client {str(who[0])!r}: name every row once."
        )
    return chosen, owner


def _row_numbers(name: str, part: Array, rows: int) -> Array:
    require(part.size > 0, f"Client {name!r} has no rows: give every client data, or leave out the client.")
    numbers = part.ndim == 1 and part.dtype.kind in "iu"
    got = f"{part.dtype} {list(part.shape)}"
    require(numbers, f"The rows of client {name!r} are {got}: wanted a list of row numbers, or a client for each row.")
    for row in part[(part < 0) | (part >= rows)][:1]:
        raise InvalidInput(f"Client {name!r} has row {row}, but the rows are numbered from 0 to {rows - 1}.")
    return part.astype(np.int64)


def twins(names: Sequence[str]) -> tuple[str, ...]:
    """Notes about clients that may be one: their names look the same, or differ as spellings of one name do."""
    if isinstance(names, ClientNames) and names.numbered:
        return ()
    by_look, by_spelling = dict[str, str](), dict[str, str]()
    alike, spelled = list[tuple[str, str]](), list[tuple[str, str]]()
    for name in names:
        look = name if name.isascii() else normalize("NFKC", name)  # invisible characters are already escaped
        if (first := by_look.setdefault(look, name)) != name:
            alike.append((first, name))
        elif (first := by_spelling.setdefault(spelling(look), name)) != name:
            spelled.append((first, name))
    return (
        *_note_twins(alike, "look the same"),
        *_note_twins(spelled, "differ only in capitals, blanks or leading zeros"),
    )


def spelling(name: str) -> str:
    """A normal form that spellings of one name share, such as `Store 7` and `store  7`, or `0007` and `7`."""
    plain = " ".join(name.split()).casefold()
    return plain.lstrip("0") if plain.isdecimal() else plain


def _note_twins(pairs: Sequence[tuple[str, str]], how: str) -> list[str]:
    others = len(pairs) - 1
    more = f", and {others} more pair{'s' * (others > 1)}," if others else ""
    return [
        f"clients {one!a} and {other!a}{more} {how} and count as two: write the name in one way if they are one"
        for one, other in pairs[:1]
    ]


def _positions(client: Array, n: int) -> Array:
    for one in client[(client < 0) | (client >= n)][:1]:
        raise InvalidInput(
            f"Client id {one} is not a position in the {n} names: number the clients from 0, or name more."
        )
    return client.astype(np.int64)


def read_truth(truth: Truth | None, names: Sequence[str]) -> Tensor | None:
    """True clusters in the order of `names`, from an array in that order or from a mapping by name."""
    if truth is None:
        return None
    if isinstance(truth, Mapping):
        for name in names:
            require(name in truth, f"truth has no cluster for client {name!r}: give one for every client.")
        truth = [truth[name] for name in names]
    clusters = as_array(truth)
    if clusters.dtype.kind not in "iu":
        raise InvalidInput(f"truth is of type {clusters.dtype}: wanted an integer for each client.")
    return torch.from_numpy(clusters.astype(np.int64))
