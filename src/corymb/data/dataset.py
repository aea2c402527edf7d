"""The data of a federation: its clients, and their training and test examples."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor
from torch.utils.data import Dataset

from corymb.choices import Missing, Scale, Task
from corymb.core.engine import in_order
from corymb.core.names import ClientNames
from corymb.core.pixels import as_numbers
from corymb.data.arrays import Many, Owners, Test, source_of, source_of_clients
from corymb.data.clients import Truth, Values, read_truth, twins
from corymb.data.features import as_array
from corymb.data.prepare.named import Categories, Fills
from corymb.data.prepare.pipeline import Preparation, PrepareOptions, Source, prepare
from corymb.data.ragged import Ragged, select
from corymb.data.readers.contents import Names
from corymb.data.readers.folder import join
from corymb.data.readers.frames import class_names, is_frame, is_hugging_face, read_frame, read_hugging_face
from corymb.data.readers.torch_dataset import as_arrays
from corymb.data.schema import DataSchema
from corymb.data.store import read_dataset, write_dataset
from corymb.data.validate import check_dataset, check_names
from corymb.settings import require

__all__ = ["FederatedDataset", "Ragged"]
log = logging.getLogger(__name__)
_BLOCK = 2**22  # values hashed at once for a fingerprint
FEW = 3
"""Clients with at most this many training examples are counted as having few."""


class Options(TypedDict, total=False):
    """Options of all data formats."""

    task: Task | Literal["auto"]
    """What labels are: classes or numbers; by default, what most clients' labels look like."""
    classes: Sequence[str]
    """The names of the classes; whole numbers that are not such names are positions among them."""
    categories: Categories
    """All categories of text columns, by column, `{"city": ["Aachen", "Bonn", "other"]}`: a cell of none of them is
    `other`, if that is one. If not given, the ones that are common among the clients."""
    missing: Missing | Fills
    """What to do with missing cells: `refuse` them, use the `mean` or `median` of the column, or `drop` the row; or by
    column what they are taken as: `{"age": 40}`."""
    scale: Scale | Literal["auto"]
    """`standard`: standardise; `pixels`: divide by 255 if most clients have 0 to 255; `none`: leave unchanged; `codes`:
    whole numbers that are codes, such as words, for a model that embeds them."""
    truth: Truth | None
    """True clusters, in the order of the clients or by name."""
    name: str
    seed: int


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FederatedDataset:
    """Clients with their examples, in flat arrays; checked when it is created."""

    name: str
    names: Sequence[str]
    """Clients' names: unique, not empty; equal to a tuple of them. Keys and splits follow names, not positions."""
    train: Ragged
    test: Ragged
    """Test examples; a client may have none."""
    task: Task
    classes: tuple[str, ...] = ()
    """Names of the classes, for classification."""
    truth: Tensor | None = None
    """True clusters, int64 [n], if known. Only evaluation reads them."""
    true_parameters: dict[str, Tensor] | None = None
    """True parameters of each cluster, rows [k, ...], if known. Only evaluation reads them."""
    feature_names: tuple[str, ...] = ()
    standardise: bool = False
    """Whether features have yet to be standardised, which a federation does without pooling the data."""
    preparation: Preparation | None = None
    """How users' cells were turned into features; None for features that were used unchanged."""
    notes: tuple[str, ...] = ()
    """What was dropped, filled in or found to be unusual."""

    def __post_init__(self) -> None:
        check_dataset(self)
        object.__setattr__(self, "names", ClientNames.of(self.names))

    @property
    def clients(self) -> int:
        """The number of clients (n)."""
        return len(self.names)

    @property
    def sizes(self) -> Tensor:
        """How many training examples each client has, int64 [n]."""
        return self.train.sizes

    @property
    def features(self) -> tuple[int, ...]:
        """The shape of one example's features."""
        return tuple(self.train.x.shape[1:])

    @property
    def schema(self) -> dict[str, Any]:
        """What examples are like, as plain values: see `corymb.data.schema.DataSchema`."""
        return DataSchema(
            task=self.task,
            features=self.features,
            classes=self.classes,
            standardise=self.standardise,
            codes=self.train.x.dtype == torch.int64,
            linear=self.true_parameters is not None,
            feature_names=self.feature_names,
            preparation=self.preparation,
            notes=self.notes,
            clients=self.thin,
        ).describe()

    @property
    def thin(self) -> dict[str, int]:
        """How many clients have few training examples, one class only, or no test example; only what occurs."""
        few = int((self.sizes <= FEW).sum())
        untested = int((self.test.sizes == 0).sum())
        found = {"few_examples": few, "one_class": self._one_class(), "no_test_example": untested}
        return {name: count for name, count in found.items() if count}

    def _one_class(self) -> int:
        """Clients whose training examples are all of one class."""
        if self.task != "classification" or len(self.classes) < 2:
            return 0
        owner = torch.arange(len(self)).repeat_interleave(self.sizes)
        low, high = torch.full((len(self),), len(self.classes)), torch.full((len(self),), -1)
        low.scatter_reduce_(0, owner, self.train.y, "amin")
        high.scatter_reduce_(0, owner, self.train.y, "amax")
        return int((low == high).sum())

    def __len__(self) -> int:
        return self.clients

    def __repr__(self) -> str:
        what = f"{len(self.classes)} classes" if self.task == "classification" else self.task
        return (
            f"FederatedDataset({self.name!r}: {self.clients} clients, {len(self.train.y)} train and {len(self.test.y)} "
            f"test examples, features {list(self.features)}, {what})"
        )

    def _repr_html_(self) -> str:
        """The data set as shown in notebooks."""
        sizes = self.sizes.tolist()
        rows = {
            "clients": f"{self.clients}, with {min(sizes)} to {max(sizes)} training examples",
            "examples": f"{len(self.train.y)} to train, {len(self.test.y)} to test",
            "features": " × ".join(map(str, self.features)),
            "task": f"{self.task}, {len(self.classes)} classes" if self.classes else self.task,
            "true clusters": "unknown" if self.truth is None else str(len(self.truth.unique())),
            "first clients": ", ".join(self.names[:5]),
        }
        line = "<tr><th style='text-align:left'>{}</th><td style='text-align:left'>{}</td></tr>"
        cells = "".join(line.format(escape(name), escape(text)) for name, text in rows.items())
        return f"<table><caption>FederatedDataset <b>{escape(self.name)}</b></caption>{cells}</table>"

    def fingerprint(self) -> str:
        """The SHA-256 of clients, examples, task and classes: equal exactly if the data are equal.

        The names of the data set and its columns, the format it was read from, and whether pixels are kept as bytes or
        as numbers make no difference.
        """
        plain = {"name": None, "names": [*self.names], "task": self.task, "classes": self.classes, "feature_names": ()}
        header = json.dumps({**plain, "standardise": self.standardise}, sort_keys=True)
        digest = hashlib.sha256(header.encode())
        for name, tensor in sorted(self._tensors().items()):
            seen = torch.float32 if tensor.dtype == torch.uint8 else tensor.dtype
            digest.update(f"{name} {seen} {list(tensor.shape)};".encode())
            for block in tensor.cpu().split(max(1, _BLOCK // max(1, tensor[:1].numel()))):
                digest.update(as_numbers(block).contiguous().flatten().numpy().data)
        return digest.hexdigest()

    def subset(self, positions: Values) -> FederatedDataset:
        """The clients at `positions` (or where a mask is true), in that order."""
        chosen = torch.from_numpy(as_array(positions).copy())
        if chosen.dtype == torch.bool:
            require(
                len(chosen) == len(self),
                f"The mask has {len(chosen)} entries for {len(self)} clients: give one for each.",
            )
            chosen = chosen.nonzero()[:, 0]
        chosen = chosen.long()
        inside = bool(((chosen >= 0) & (chosen < len(self))).all())
        require(inside, f"A position is outside 0 to {len(self) - 1}: give positions of the {len(self)} clients.")
        return self._at(chosen)

    def in_order(self) -> FederatedDataset:
        """The same data with clients in the order of all engines: by name, with runs of digits as numbers."""
        order = in_order(self.names)
        return self if bool((order.diff() > 0).all()) else self._at(order)

    def _at(self, positions: Tensor) -> FederatedDataset:
        """The clients at `positions`. Their examples were checked when this data set was created, so only names are."""
        names = tuple(self.names[position] for position in positions.tolist())
        check_names(names)
        selected = {
            "names": ClientNames.of(names),
            "train": select(self.train, positions),
            "test": select(self.test, positions),
            "truth": None if self.truth is None else self.truth[positions],
        }
        chosen = copy.copy(self)
        for name, value in selected.items():
            object.__setattr__(chosen, name, value)  # the copy is not shared yet, so it may still be changed
        return chosen

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one safetensors file."""
        return write_dataset(path, self._header(), self._tensors())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FederatedDataset:
        """Read what `save` wrote; it is checked again."""
        header, tensors = read_dataset(path)
        prefix = "true_parameters."
        parameters = {name.removeprefix(prefix): rows for name, rows in tensors.items() if name.startswith(prefix)}
        plain: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in header.items()}
        prepared = plain.pop("preparation", None)
        return cls(
            **plain,
            preparation=None if prepared is None else Preparation.read(prepared),
            train=Ragged(*(tensors[f"train.{name}"] for name in Ragged._fields)),
            test=Ragged(*(tensors[f"test.{name}"] for name in Ragged._fields)),
            truth=tensors.get("truth"),
            true_parameters=parameters or None,
        )

    def _header(self) -> dict[str, Any]:
        plain = ("name", "task", "classes", "feature_names", "standardise", "notes")
        prepared = None if self.preparation is None else self.preparation.describe()
        return {**{name: getattr(self, name) for name in plain}, "names": [*self.names], "preparation": prepared}

    def _tensors(self) -> dict[str, Tensor]:
        parts = {"train": self.train, "test": self.test}
        tensors = {f"{part}.{name}": tensor for part, rows in parts.items() for name, tensor in rows._asdict().items()}
        if self.truth is not None:
            tensors["truth"] = self.truth
        return tensors | {f"true_parameters.{name}": rows for name, rows in (self.true_parameters or {}).items()}

    @classmethod
    def from_source(
        cls, source: Source, *, notes: Sequence[str] = (), fallback: str = "data", **options: Unpack[Options]
    ) -> FederatedDataset:
        """Create a data set from any source: see `corymb.data.prepare`."""
        names = ("task", "classes", "categories", "missing", "scale", "seed")
        prepared = prepare(source, PrepareOptions(**{name: options[name] for name in names if name in options}))  # type: ignore[literal-required]
        all_notes = (*notes, *prepared.notes, *twins(prepared.names))
        for note in all_notes:
            log.warning("%s: %s", options.get("name", fallback), note)
        return cls(
            name=options.get("name", fallback),
            truth=read_truth(options.get("truth"), prepared.names),
            **prepared._replace(notes=all_notes)._asdict(),
        )

    @classmethod
    def from_arrays(
        cls,
        x: Values,
        y: Values | None,
        client: Owners,
        *,
        test: Test = 0.2,
        names: Sequence[str] | None = None,
        feature_names: Sequence[str] = (),
        standardise: bool | None = None,
        **options: Unpack[Options],
    ) -> FederatedDataset:
        """Arrays (numpy, torch or lists) with a client id, a whole number or text, for each row.

        Instead, `client` may give the numbers of the rows that each client has, in a mapping or a list; other rows are
        not used.

        `test` is the share of each client's rows to hold out (by seed, client's name and row number), a boolean for
        each row, or `(x, y, client)` of the test examples. Clients come in the order of their names, where runs of
        digits count as numbers, or in that of `names`, in which whole-number ids are positions. x with two axes is a
        table, to be standardised, and with three or four axes pictures; `scale` overrides this, and `standardise` is
        short for `scale="standard"` or `"none"`. Without `y`, or with `task="density"`, the task is to learn the
        density of `x`; labels are then the true clusters of examples, for evaluation. See docs/data.md.

        >>> data = FederatedDataset.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], ["b", "a", "a"], test=0)
        >>> data.names, data.sizes.tolist(), data.standardise
        (('a', 'b'), [2, 1], True)
        """
        if standardise is not None:
            options["scale"] = "standard" if standardise else "none"
        source = source_of(x, y, client, test=test, names=names, feature_names=feature_names)
        return cls.from_source(source, fallback="arrays", **options)

    @classmethod
    def from_clients(
        cls,
        clients: Many,
        *,
        label: str | None = None,
        test: float | Many = 0.2,
        **options: Unpack[Options],
    ) -> FederatedDataset:
        """Each client's examples, by name or in a list: a pair (x, y), a data frame or a torch data set of pairs.

        Clients of a list are named 0, 1, ...; `label` is the label column of data frames. `test` is the share of each
        client's rows to hold out, or the clients' own test examples in the same form.

        >>> data = FederatedDataset.from_clients({"b": ([[0.0]], [0]), "a": ([[1.0], [2.0]], [1, 1])}, test=0)
        >>> data.names, data.sizes.tolist()
        (('a', 'b'), [2, 1])
        """
        require(len(clients) > 0, "There are no clients: give the examples of at least one.")
        return cls.from_source(source_of_clients(clients, test=test, label=label), fallback="clients", **options)

    @classmethod
    def from_dataframe(
        cls,
        frame: Any,
        *,
        client: str | None = None,
        label: str | None = None,
        features: Names = None,
        test: float = 0.2,
        **options: Unpack[Options],
    ) -> FederatedDataset:
        """A pandas, polars or pyarrow data frame: a client column, a label column, and features in all others.

        `features` names the columns to use; a column `test` marks the test rows.
        """
        lazy = "; call its collect()" if hasattr(type(frame), "collect") else ""
        kind = type(frame).__name__
        require(is_frame(frame), f"Got a {kind}: wanted a data frame of pandas, polars or pyarrow{lazy}.")
        contents = read_frame(frame, client=client, label=label, features=features)
        return cls.from_source(join([contents], test=test), notes=contents.notes, fallback="data frame", **options)

    @classmethod
    def from_huggingface(
        cls,
        dataset: Any,
        *,
        client: str | None = None,
        label: str | None = None,
        features: Names = None,
        test: float = 0.2,
        **options: Unpack[Options],
    ) -> FederatedDataset:
        """A Hugging Face data set with a client column; see `from_dataframe`. Classes keep its names."""
        wanted = "a Hugging Face data set"
        require(is_hugging_face(dataset), f"Got a {type(dataset).__name__}: wanted {wanted}.")
        contents = read_hugging_face(dataset, client=client, label=label, features=features)
        options.setdefault("classes", class_names(dataset, label))
        return cls.from_source(join([contents], test=test), notes=contents.notes, fallback=wanted, **options)

    @classmethod
    def from_torch(
        cls,
        dataset: Dataset[Any],
        client: Owners,
        *,
        test: float | Values | tuple[Dataset[Any], Owners] = 0.2,
        names: Sequence[str] | None = None,
        **options: Unpack[Options],
    ) -> FederatedDataset:
        """A torch data set of (features, label) pairs with a client id for each, or each client's rows.

        See `from_arrays`: `client` is such as `["a", "b", "a"]`, or `{"a": [0, 2], "b": [1]}`.

        `test` may also be `(dataset, client)`: a data set of test examples and their clients. For a list or a mapping
        of data sets, one per client, use `from_clients`.
        """
        x, y = as_arrays(dataset)
        held: Test = (*as_arrays(test[0]), test[1]) if isinstance(test, tuple) else test
        source = source_of(x, y, client, test=held, names=names, feature_names=())
        return cls.from_source(source, fallback="torch", **options)
