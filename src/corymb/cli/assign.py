"""`corymb assign RUN file.npz`: the cluster of a new client."""

# No postponed annotations here: cyclopts reads them.
import io
import json as json_module
import zipfile
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import Parameter

from corymb.runs.history import plain
from corymb.runs.run import Run
from corymb.settings import InvalidInput, require


def assign_file(
    run: Annotated[Path, Parameter(help="The folder of a run.")],
    file: Annotated[Path, Parameter(help="An npz file with the arrays x and y: the new client's examples.")],
    *,
    model: Annotated[str | None, Parameter(help="The run's model, if it is your own: package.module:function.")] = None,
    json: Annotated[bool, Parameter(help="Print the answer as one JSON object.")] = False,
) -> None:
    """Find the cluster of a new client, with its probability, or that no cluster fits."""
    x, y = _examples(file)
    answer = Run.load(run, model).assign(x, y)
    print(json_module.dumps(plain(answer._asdict()), allow_nan=False) if json else f"{file.stem}: {answer}")


def _examples(file: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
            require(
                "x" in arrays and "y" in arrays,
                f"{file} has no arrays x and y: it holds {', '.join(arrays) or 'nothing'}.",
            )
            return arrays["x"], arrays["y"]
    except InvalidInput:
        raise
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{file} cannot be read as npz: {error}") from None
