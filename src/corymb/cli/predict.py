"""`corymb predict RUN FILE`: predictions for the examples in a file."""

# No postponed annotations here: cyclopts reads them.
import csv
import json as json_module
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
from cyclopts import Parameter

from corymb.cli.assign import OwnModel, RunFolder
from corymb.cli.examples import Examples, read_examples, rows_of
from corymb.data.features import Array
from corymb.data.readers.contents import CLIENT
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
    out: Annotated[Path | None, Parameter(help="A csv file to write; if not given, stdout.")] = None,
    json: Annotated[bool, Parameter(help="Print one JSON object.")] = False,
) -> None:
    """Predict a class, with the probability of each, or a number for each row of a file; or each row's cluster.

    With neither --client nor --cluster, rows go by the file's column of clients, where the run's data had one; a run of
    one model needs neither. Where the run gave every example a cluster (uifca, kfed, clustergan), a row gets its own.
    After a run with --missing drop, rows that lack a value get none: an empty cell, or null in JSON.
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
        with whole(expanded(out)) as file, TextIOWrapper(file, newline="", encoding="utf-8") as place:
            _write(place, loaded, predicted, chances)
    elif not json:
        _write(sys.stdout, loaded, predicted, chances)


def _predict(run: Run, examples: Examples, client: str | None, cluster: int | None) -> tuple[Array, Array | None]:
    """Predictions, and for classes their probabilities."""
    require(client is None or cluster is None, "Give --client or --cluster, not both.")
    column = client not in (None, *run.names) and client == (DataOptions.recorded(run.config).client or CLIENT)
    require(
        not column, f"--client names a client of the run, and {client!r} is its column: leave it out, rows go by it."
    )
    if run.served == "points":
        wanted = "This run gave every example a cluster, which is what a row gets"
        require(client is None and cluster is None, f"{wanted}: leave --client and --cluster out.")
        return run.assign_points(examples.x), None
    if client is None and cluster is None:
        if examples.client is not None:
            return _by_client(run, examples.x, examples.client.astype(np.str_))
        if run.snapshot.k != 1 or run.served == "own":
            raise InvalidInput("Say whose model predicts: --client NAME or --cluster NUMBER.")
        cluster = 0
    classes = run.schema.task == "classification"
    chances = run.predict_proba(examples.x, client, cluster=cluster) if classes else None
    return run.predict(examples.x, client, cluster=cluster), chances


def _with_gaps(examples: Examples, predicted: Array, chances: Array | None) -> tuple[Array, Array | None]:
    """A row for each of the file's, with None for those that are left out."""
    if not examples.left_out:
        return predicted, chances
    n = len(predicted) + len(examples.left_out)
    there = np.setdiff1d(np.arange(n), examples.left_out)
    whole = np.full(n, None, dtype=object)
    whole[there] = list(predicted)
    if chances is None:
        return whole, None
    wide = np.full((n, chances.shape[1]), None, dtype=object)
    wide[there] = [list(row) for row in chances]
    return whole, wide


def _nested(values: Array) -> list[Any]:
    """As lists of plain values; a row that is left out is None."""
    if values.dtype != object:
        plain_values: list[Any] = values.tolist()
        return plain_values
    if values.ndim == 1:
        return [None if value is None else value.item() for value in values]
    return [None if row[0] is None else _nested(row) for row in values]


def _by_client(run: Run, x: Array, owners: Array) -> tuple[Array, Array | None]:
    """Each row's prediction with the model of the row's client; clients that use the same model predict together."""
    groups, labels = list[tuple[str | None, int | None, Array]](), run.labels if run.served == "assigned" else {}
    together: dict[int, list[Array]] = {}
    for name, rows in rows_of(owners):
        if (label := labels.get(name, -1)) >= 0:
            together.setdefault(label, []).append(rows)
        else:
            groups.append((name, None, rows))
    groups += [(None, label, np.concatenate(rows)) for label, rows in together.items()]
    parts = [_predict(run, Examples(x[rows], None, None), name, label) for name, label, rows in groups]
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
        rows.writerow(["" if cell is None else csv_cell(str(cell)) for cell in cells])
