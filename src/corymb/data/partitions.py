"""Partitions made by `flwr-datasets`, recognised by duck typing: the package is not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from corymb.data.dataset import FederatedDataset, Options
from corymb.data.readers.contents import Contents, Names
from corymb.data.readers.folder import join
from corymb.data.readers.frames import class_names, is_hugging_face, read_hugging_face
from corymb.settings import InvalidInput, require


def from_flwr_datasets(
    partitions: Any,
    *,
    clients: int | None = None,
    split: str | None = None,
    label: str | None = None,
    features: Names = None,
    test: float = 0.2,
    **options: Unpack[Options],
) -> FederatedDataset:
    """Make a client of each partition of a `FederatedDataset` or a `Partitioner` of flwr-datasets.

    Arguments:
        partitions: Anything whose `load_partition(i)` returns Hugging Face data sets, or a list or mapping of those.
        clients: The number of partitions to use, from the first on; by default all.
        split: The split of a `FederatedDataset` to use, if several are partitioned.
        label: The column of labels; by default `label`.
        features: The columns of features, such as `"image"`; by default all other columns.
        test: The share of each client's rows to hold out.
        options: As in `FederatedDataset.from_huggingface`.

    Clients are named by the ids of a `NaturalIdPartitioner`, otherwise 0, 1, ...
    """
    parts = _parts(partitions, clients, split)
    empty = [name for name, part in parts.items() if is_hugging_face(part) and len(part) == 0]
    parts = {name: part for name, part in parts.items() if name not in empty}
    require(len(parts) > 0, "All partitions are empty: give at least one with rows.")
    notes = [f"partition {name!r} has no rows and is left out" for name in empty]
    read = [_contents(name, part, label, features) for name, part in parts.items()]
    first = next(iter(parts.values()))
    options.setdefault("classes", class_names(first, label))
    return FederatedDataset.from_source(
        join(read, test=test, names=list(parts)), notes=notes, fallback="flwr-datasets", **options
    )


def _parts(partitions: Any, clients: int | None, split: str | None) -> dict[str, Any]:
    """The data set of every client, by name."""
    if isinstance(partitions, Mapping):
        found = {str(name): part for name, part in partitions.items()}
    elif hasattr(partitions, "load_partition"):
        return _loaded(partitions, clients, split)
    elif isinstance(partitions, Sequence):
        found = {str(i): part for i, part in enumerate(partitions)}
    else:
        wanted = "a FederatedDataset or Partitioner of flwr-datasets, or a list of its partitions"
        raise InvalidInput(f"The partitions are a {type(partitions).__name__}: wanted {wanted}.")
    names = list(found)[: _number(clients, len(found))]
    return {name: found[name] for name in names}


def _loaded(partitions: Any, clients: int | None, split: str | None) -> dict[str, Any]:
    partitioner, chosen = _partitioner(partitions, split)
    first = partitions.load_partition(0, *chosen)  # lazily created partitions exist from here on
    number = _number(clients, int(partitioner.num_partitions))
    names = getattr(partitioner, "partition_id_to_natural_id", None) or {}
    rest = [first, *(partitions.load_partition(i, *chosen) for i in range(1, number))]
    return {str(names.get(i, i)): part for i, part in enumerate(rest)}


def _partitioner(partitions: Any, split: str | None) -> tuple[Any, tuple[str, ...]]:
    """The partitioner of a split, and the arguments that name the split for `load_partition`."""
    by_split = getattr(partitions, "partitioners", None)
    if by_split is None:
        require(split is None, f"split={split!r}: these are partitions of one split; leave it out.")
        return partitions, ()
    known = ", ".join(map(repr, by_split))
    name = split or (next(iter(by_split)) if len(by_split) == 1 else None)
    require(name in by_split, f"split={split!r}: there are partitions of {known}; name one of them.")
    assert name is not None
    return by_split[name], (name,)


def _number(clients: int | None, found: int) -> int:
    wanted = found if clients is None else clients
    require(0 < wanted <= found, f"clients={clients}: there are {found} partitions; ask for 1 to {found}.")
    return wanted


def _contents(name: str, part: Any, label: str | None, features: Names) -> Contents:
    kind = type(part).__name__
    require(is_hugging_face(part), f"Partition {name!r} is a {kind}: wanted a Hugging Face data set.")
    read = read_hugging_face(part, client=None, label=label, features=features, whole=False)
    return read._replace(origin=f"partition {name!r}", where=lambda row: f"partition {name!r}, row {row}")
