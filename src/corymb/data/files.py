"""Data of one's own from files: the door that the command line uses."""

from __future__ import annotations

import os
from typing import Literal

from corymb.data.dataset import FederatedDataset
from corymb.data.labels import Task
from corymb.data.prepare.columns import Missing
from corymb.data.prepare.road import Scale
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
    missing: Missing = "refuse",
    scale: Scale | Literal["auto"] = "auto",
    read_limit: int | None = None,
    seed: int = 0,
) -> FederatedDataset:
    """Data of your own: a folder of npz, csv, tsv, jsonl or parquet files, one a client, or a file with all clients.

    Clients are named by the stems of their files. With `client`, the name of a column (in npz files: of an array), the
    rows of all files are grouped by it instead; a single file with a column `client` is grouped by that. Labels are in
    the column `label` (in npz files: the array `y`), features in all other columns (the array `x`), or in those that
    `features` names. A `test` column or array marks the rows to test on; without one, the share `test` of each
    client's rows is held out. With `task="density"` there need be no labels. A file that would take more than
    `read_limit` bytes in memory, or half of the machine's, is refused before it is read. See docs/data.md.
    """
    place = expanded(path)
    labelled = task != "density"
    with reading_at_most(read_limit):
        source, left_out = read_files(
            place, client=client, label=label, features=features, test=test, labelled=labelled
        )
    notes = [f"{name!r} only numbers the rows and is no feature" for name in left_out]
    name = place.resolve().name if place.is_dir() else stem_of(place)
    return FederatedDataset.from_source(
        source, notes=notes, task=task, missing=missing, scale=scale, seed=seed, name=name
    )
