"""Load users' own data from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import MappingProxyType
from typing import Literal

from corymb.choices import Missing, Scale, Task
from corymb.data.dataset import FederatedDataset
from corymb.data.prepare.named import Categories, Fills
from corymb.data.readers.contents import Names
from corymb.data.readers.folder import read_files
from corymb.data.readers.limits import reading_at_most
from corymb.data.readers.tables import stem_of
from corymb.settings import expanded


def from_folder(
    path: str | os.PathLike[str],
    *,
    client: str | None = None,
    label: str | None = None,
    features: Names = None,
    test: float = 0.2,
    task: Task | Literal["auto"] = "auto",
    classes: Sequence[str] = (),
    categories: Categories = MappingProxyType({}),
    missing: Missing | Fills = "refuse",
    scale: Scale | Literal["auto"] = "auto",
    read_limit: int | None = None,
    seed: int = 0,
) -> FederatedDataset:
    """Your own data: a folder of npz, csv, tsv, jsonl or parquet files, one per client, or a file with all clients.

    Arguments:
        path: The folder, whose file names (without extension) name the clients, or the file.
        client: A column (in npz files: an array) by which the rows of all files are grouped instead; a single file with
            a column `client` is grouped by that.
        label: The column of labels (in npz files: the array `y`).
        features: The columns of features (the array `x`); if not given, all others.
        test: The share of each client's rows to hold out for tests, unless a column or array `test` marks them.
        task: `classification`, `regression` or `density`, which needs no labels; `auto` chooses between the first two.
        classes: The names of all classes, if these files may lack examples of some, as on the node of a federation; by
            default those that occur.
        categories: All categories of text columns, by column, for the same reason, as in `{"city": ["Aachen", "Bonn",
            "other"]}`; by default those that are common among the clients, and `other` for the rest.
        missing: What to do with missing values: `mean`, `median`, `drop` or `refuse`; or what they are taken as, by
            column, the same at all nodes of a federation: `{"age": 40}`.
        scale: How features are standardised; `auto` does what suits them.
        read_limit: Bytes that a file may take in memory; if not given, half of the machine's. Larger ones are refused
            before they are read.
        seed: Which rows are held out.
    """
    place = expanded(path)
    labelled = task != "density"
    with reading_at_most(read_limit):
        source, notes = read_files(place, client=client, label=label, features=features, test=test, labelled=labelled)
    name = place.resolve().name if place.is_dir() else stem_of(place)
    return FederatedDataset.from_source(
        source,
        notes=notes,
        task=task,
        classes=classes,
        categories=categories,
        missing=missing,
        scale=scale,
        seed=seed,
        name=name,
    )
