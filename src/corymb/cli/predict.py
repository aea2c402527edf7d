"""`corymb predict RUN FILE`: predict the examples in a file."""

# No postponed annotations here: cyclopts reads them.
import csv
import json as json_module
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
from cyclopts import Parameter
from torch import Tensor

from corymb.cli.assign import OwnModel, RunFolder
from corymb.cli.examples import Examples, read_examples
from corymb.data.features import Array
from corymb.data.readers.contents import CLIENT
from corymb.runs.assign import features_of, rows_of
from corymb.runs.folder.files import whole
from corymb.runs.history import plain
from corymb.runs.run import Run
from corymb.runs.settings import DataOptions
from corymb.settings import InvalidInput, csv_cell, expanded, require


def predict_file(
    run: RunFolder,
    file: Annotated[Path, Parameter(help="Examples: a csv or parquet table, or an npz file with an array x.")],
    *,
    client: Annotated[str | None, Parameter(help="Predict with the model of this client of the run.")] = None,
    cluster: Annotated[int | None, Parameter(help="Predict with the model of this cluster.")] = None,
    model: OwnModel = None,
    out: Annotated[Path | None, Parameter(help="The csv file to write; by default stdout.")] = None,
    json: Annotated[bool, Parameter(help="Print one JSON object.")] = False,
) -> None:
    """Predict each row of a file: a class with the probabilities of all classes, a number, or the row's cluster.

    Without --client and --cluster, each row is predicted with the model of its client, named in the client column; a
    run of one model needs no client. If the run clusters examples (uifca, kfed, clustergan), each row gets its cluster.
    After a run with --missing drop, rows that lack a value get no prediction: an empty cell, or null in JSON.
    """
    loaded = Run.load(run, model)
    examples = read_examples(file, loaded)
    if examples.unused:
        print(f"corymb: columns not used: {', '.join(examples.unused)}", file=sys.stderr)
    predicted, chances = _with_gaps(examples, *_predict(loaded, examples, client, cluster))
    if json:
        found: dict[str, Any] = {_plural(loaded): _nested(predicted)}
        if chances is not None:
            found |= {"classes": list(loaded.schema.classes), "probabilities": _nested(chances)}
        print(json_module.dumps(plain(found), allow_nan=False))
    if out is not None:
        with whole(expanded(out)) as raw, TextIOWrapper(raw, newline="", encoding="utf-8") as place:
            _write(place, loaded, predicted, chances)
    elif not json:
        _write(sys.stdout, loaded, predicted, chances)


def _predict(run: Run, examples: Examples, client: str | None, cluster: int | None) -> tuple[Array, Array | None]:
    """The predictions (n) and, for classification, the probabilities (n classes)."""
    require(client is None or cluster is None, "Give --client or --cluster, not both.")
    column = client is not None and client == (DataOptions.recorded(run.config).client or CLIENT)
    require(
        not column or client in run.names,
        f"--client takes the name of a client, but {client!r} is the client column: leave --client out to use it.",
    )
    if run.served == "points":
        wanted = "This run clusters examples, so each row gets its own cluster"
        require(client is None and cluster is None, f"{wanted}: leave out --client and --cluster.")
        return run.assign_points(examples.x), None
    if client is None and cluster is None:
        if examples.client is not None:
            return _by_client(run, features_of(examples.x, run.schema), examples.client.astype(np.str_))
        if run.served == "own":
            raise InvalidInput("Each client of this run has its own model: choose one with --client NAME.")
        if run.snapshot.k != 1:
            raise InvalidInput("Choose the model that predicts: --client NAME or --cluster NUMBER.")
        cluster = 0
    return run.answers(features_of(examples.x, run.schema), client, cluster=cluster)


def _with_gaps(examples: Examples, predicted: Array, chances: Array | None) -> tuple[Array, Array | None]:
    """Expand predictions to all rows of the file, with None for the rows that were dropped."""
    if not examples.left_out:
        return predicted, chances
    n = len(predicted) + len(examples.left_out)
    kept = np.setdiff1d(np.arange(n), examples.left_out)
    whole = np.full(n, None, dtype=object)
    whole[kept] = list(predicted)
    if chances is None:
        return whole, None
    wide = np.full((n, chances.shape[1]), None, dtype=object)
    wide[kept] = [list(row) for row in chances]
    return whole, wide


def _nested(values: Array) -> list[Any]:
    """An array as nested lists of plain values; a dropped row is None."""
    if values.dtype != object:
        plain_values: list[Any] = values.tolist()
        return plain_values
    if values.ndim == 1:
        return [None if value is None else value.item() for value in values]
    return [None if row[0] is None else _nested(row) for row in values]


def _by_client(run: Run, x: Tensor, owners: Array) -> tuple[Array, Array | None]:
    """Predict each row with the model of its client; clients that use the same model are predicted together.

    Rows are prepared: there may be as many clients as rows.
    """
    groups, labels = list[tuple[str | None, int | None, Array]](), run.labels if run.served == "assigned" else {}
    together: dict[int, list[Array]] = {}
    for name, rows in rows_of(owners):
        if (label := labels.get(name, -1)) >= 0:
            together.setdefault(label, []).append(rows)
        else:
            groups.append((name, None, rows))
    groups += [(None, label, np.concatenate(rows)) for label, rows in together.items()]
    parts = [run.answers(x[rows], name, cluster=label) for name, label, rows in groups]
    back = np.argsort(np.concatenate([rows for _, _, rows in groups]))
    chances = [part for _, part in parts if part is not None]
    return np.concatenate([part for part, _ in parts])[back], np.concatenate(chances)[back] if chances else None


def _plural(run: Run) -> str:
    return "clusters" if run.served == "points" else "predictions"


def _write(place: TextIO, run: Run, predicted: Array, chances: Array | None) -> None:
    rows, classes = csv.writer(place, lineterminator="\n"), run.schema.classes
    head = _plural(run).removesuffix("s")
    rows.writerow([head, *(csv_cell(f"p_{name}") for name in (classes if chances is not None else ()))])
    for number, value in enumerate(predicted):
        cells = [value, *(() if chances is None else chances[number])]
        rows.writerow([csv_cell(_text(cell)) for cell in cells])


def _text(cell: object) -> str:
    """A prediction or probability as text: booleans as classes are named, empty for a dropped row."""
    if isinstance(cell, (bool, np.bool_)):
        return str(cell).lower()
    return "" if cell is None else str(cell)
