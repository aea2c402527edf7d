"""`corymb assign RUN FILE`: assign a new client, or each client of a file, to a cluster."""

# No postponed annotations here: cyclopts reads them.
import json as json_module
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from corymb.cli.examples import read_examples
from corymb.data.readers.archives import LABELS
from corymb.data.readers.contents import LABEL
from corymb.data.readers.folder import NPZ
from corymb.data.readers.tables import kind_of
from corymb.runs.history import plain
from corymb.runs.run import OF_EXAMPLES, Run
from corymb.settings import InvalidInput

RunFolder = Annotated[Path, Parameter(help="The folder of a run.")]
OwnModel = Annotated[str | None, Parameter(help="The run's model, if it is user-defined: package.module:function.")]


def assign_file(
    run: RunFolder,
    file: Annotated[Path, Parameter(help="The new client's examples: a csv or parquet table, or npz with x and y.")],
    *,
    label: Annotated[str | None, Parameter(help="Column of labels; by default that of the run's data.")] = None,
    model: OwnModel = None,
    json: Annotated[bool, Parameter(help="Print the answer as one JSON object.")] = False,
) -> None:
    """Assign a new client to a cluster, with its probability, or report that no cluster fits.

    If the file has the client column of the run's data, each of its clients is assigned separately.
    """
    loaded = Run.load(run, model)
    if loaded.served == "points":
        raise InvalidInput(f"{OF_EXAMPLES}: corymb predict {run} {file} gives the cluster of every row.")
    examples = read_examples(file, loaded, label, labelled=True)
    if examples.y is None:
        column = label or loaded.config.get("label") or (LABELS if kind_of(file) == NPZ else LABEL)
        raise InvalidInput(f"{file.name} has no labels {column!r}, which assign needs: name their column with --label.")
    if examples.client is None:
        answer = loaded.assign(examples.x, examples.y)
        print(json_module.dumps(plain(answer._asdict()), allow_nan=False) if json else f"{file.stem}: {answer}")
        return
    answers = loaded.assign_each(examples.x, examples.y, examples.client)
    if json:
        print(json_module.dumps({name: plain(one._asdict()) for name, one in answers.items()}, allow_nan=False))
    else:
        print("\n".join(f"{name}: {answer}" for name, answer in answers.items()))
