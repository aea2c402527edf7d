"""The data of a federation: who there is, and everybody's train and test examples."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from corymb.core.engine import in_order
from corymb.data.arrays import Test, Truth, Values, order, read_truth
from corymb.data.features import as_array
from corymb.data.labels import Task, no_labels, read_labels
from corymb.data.ragged import Ragged, select
from corymb.data.readers.torch_dataset import as_arrays
from corymb.data.schema import DataSchema
from corymb.data.store import read_dataset, write_dataset
from corymb.data.validate import check_dataset, check_names
from corymb.settings import require

__all__ = ["FederatedDataset", "Ragged"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FederatedDataset:
    """Clients with their examples, in flat arrays; checked when it is made."""

    name: str
    names: tuple[str, ...]
    """Clients' names: unique, not empty. Keys and splits follow names, not positions."""
    train: Ragged
    test: Ragged
    """Test examples; a client may have none."""
    task: Task
    classes: tuple[str, ...] = ()
    """Names of the classes, for classification."""
    truth: Tensor | None = None
    """True clusters, int64 [n], where known. Read by evaluation only."""
    true_parameters: dict[str, Tensor] | None = None
    """True parameters of each cluster, rows [k, ...], where known. Read by evaluation only."""
    feature_names: tuple[str, ...] = ()
    standardise: bool = False
    """Whether features are still to be standardised, which a federation does without pooling the data."""

    def __post_init__(self) -> None:
        check_dataset(self)

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
            codes=not self.train.x.is_floating_point(),
            linear=self.true_parameters is not None,
            feature_names=self.feature_names,
        ).describe()

    def __len__(self) -> int:
        return self.clients

    def __repr__(self) -> str:
        what = f"{len(self.classes)} classes" if self.task == "classification" else self.task
        return (
            f"FederatedDataset({self.name!r}: {self.clients} clients, {len(self.train.y)} train and {len(self.test.y)} "
            f"test examples, features {list(self.features)}, {what})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        sizes = self.sizes.tolist()
        rows = {
            "clients": f"{self.clients}, with {min(sizes)} to {max(sizes)} training examples",
            "examples": f"{len(self.train.y)} to train, {len(self.test.y)} to test",
            "features": " × ".join(map(str, self.features)),
            "task": f"{self.task}, {len(self.classes)} classes" if self.classes else self.task,
            "true clusters": "not known" if self.truth is None else str(len(self.truth.unique())),
            "first clients": ", ".join(self.names[:5]),
        }
        line = "<tr><th style='text-align:left'>{}</th><td style='text-align:left'>{}</td></tr>"
        cells = "".join(line.format(escape(name), escape(text)) for name, text in rows.items())
        return f"<table><caption>FederatedDataset <b>{escape(self.name)}</b></caption>{cells}</table>"

    def fingerprint(self) -> str:
        """The SHA-256 of all contents but the data set's name: equal exactly where the data are equal."""
        digest = hashlib.sha256(json.dumps(self._header() | {"name": None}, sort_keys=True).encode())
        for name, tensor in sorted(self._tensors().items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
            digest.update(tensor.cpu().contiguous().flatten().numpy().data)
        return digest.hexdigest()

    def subset(self, positions: Values) -> FederatedDataset:
        """The clients at `positions` (or where a mask says so), in that order."""
        chosen = torch.from_numpy(as_array(positions).copy())
        if chosen.dtype == torch.bool:
            require(
                len(chosen) == len(self),
                f"The mask has {len(chosen)} places for {len(self)} clients: give one for each.",
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
        """The clients at `positions`. Their examples were checked when this data set was made, so only names are."""
        names = tuple(self.names[position] for position in positions.tolist())
        check_names(names)
        selected = {
            "names": names,
            "train": select(self.train, positions),
            "test": select(self.test, positions),
            "truth": None if self.truth is None else self.truth[positions],
        }
        chosen = copy.copy(self)
        for name, value in selected.items():
            object.__setattr__(chosen, name, value)  # the copy is not yet anybody's: frozen begins with the return
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
        return cls(
            **plain,
            train=Ragged(*(tensors[f"train.{name}"] for name in Ragged._fields)),
            test=Ragged(*(tensors[f"test.{name}"] for name in Ragged._fields)),
            truth=tensors.get("truth"),
            true_parameters=parameters or None,
        )

    def _header(self) -> dict[str, Any]:
        plain = ("name", "names", "task", "classes", "feature_names", "standardise")
        return {name: getattr(self, name) for name in plain}

    def _tensors(self) -> dict[str, Tensor]:
        parts = {"train": self.train, "test": self.test}
        tensors = {f"{part}.{name}": tensor for part, rows in parts.items() for name, tensor in rows._asdict().items()}
        if self.truth is not None:
            tensors["truth"] = self.truth
        return tensors | {f"true_parameters.{name}": rows for name, rows in (self.true_parameters or {}).items()}

    @classmethod
    def from_arrays(
        cls,
        x: Values,
        y: Values | None,
        client: Values,
        *,
        test: Test = 0.2,
        names: Sequence[str] | None = None,
        truth: Truth | None = None,
        task: Task | Literal["auto"] = "auto",
        classes: Sequence[str] = (),
        feature_names: Sequence[str] = (),
        standardise: bool = False,
        name: str = "arrays",
        seed: int = 0,
    ) -> FederatedDataset:
        """Arrays (numpy, torch or lists) with a client id, a whole number or text, for each row.

        `test` is the share of each client's rows to hold out (by seed, client's name and row number), a boolean for
        each row, or `(x, y, client)` of the test examples. Clients come in the order of their names, where runs of
        digits count as numbers, or in that of `names`, in which whole-number ids are positions. `truth` is in the same
        order, or a mapping by name. Integers, booleans and text in `y` are classes, floats are targets, unless `task`
        says otherwise. Without `y`, or with `task="density"`, the task is to learn the density of `x`; labels are then
        the true clusters of examples, for evaluation. Bytes in `x` are divided by 255.

        >>> data = FederatedDataset.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1], ["b", "a", "a"], test=0)
        >>> data.names, data.sizes.tolist()
        (('a', 'b'), [2, 1])
        """
        labels = no_labels(len(as_array(x))) if y is None else read_labels(as_array(y), task, classes)
        found = order(x, labels, client, test=test, names=names, seed=seed)
        return cls(
            name=name,
            **found._asdict(),
            truth=read_truth(truth, found.names),
            feature_names=tuple(feature_names),
            standardise=standardise,
        )

    @classmethod
    def from_torch(
        cls,
        dataset: Dataset[Any],
        client: Values,
        *,
        test: float | Values | tuple[Dataset[Any], Values] = 0.2,
        names: Sequence[str] | None = None,
        truth: Truth | None = None,
        task: Task | Literal["auto"] = "auto",
        classes: Sequence[str] = (),
        name: str = "torch",
        seed: int = 0,
    ) -> FederatedDataset:
        """A torch data set of (features, label) pairs with a client id for each; see `from_arrays`.

        `test` may also be `(dataset, client)`: a data set of test examples and their clients.
        """
        x, y = as_arrays(dataset)
        held: Test = (*as_arrays(test[0]), test[1]) if isinstance(test, tuple) else test
        return cls.from_arrays(
            x, y, client, test=held, names=names, truth=truth, task=task, classes=classes, name=name, seed=seed
        )
