"""`corymb export RUN --cluster J`: a cluster's model in a file that needs no Corymb."""

# No postponed annotations here: cyclopts reads them.
import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from corymb.cli.assign import OwnModel, RunFolder
from corymb.runs.history import plain
from corymb.runs.run import Run
from corymb.settings import require


def export(
    run: RunFolder,
    *,
    cluster: Annotated[int, Parameter(help="The cluster whose model is written.")],
    format: Annotated[Literal["safetensors"], Parameter(help="How the model is written.")] = "safetensors",
    out: Annotated[Path | None, Parameter(help="The file; if not given, RUN/cluster-J.safetensors.")] = None,
    model: OwnModel = None,
) -> None:
    """Write the state of `run.module(cluster)`, parameters and standardising, with what they mean as metadata."""
    from safetensors.torch import save

    loaded = Run.load(run, model)
    state = {name: value.clone().contiguous() for name, value in loaded.module(cluster).state_dict().items()}
    place = run / f"cluster-{cluster}.{format}" if out is None else out.expanduser()
    require(not place.is_dir(), f"{place} is a folder: give the model a file name.")
    place.write_bytes(save(state, {"format": "pt", "corymb": json.dumps(about(loaded, cluster))}))
    print(place)


def about(run: Run, cluster: int) -> dict[str, object]:
    """What the tensors of an exported model mean."""
    return {
        "data": run.config["data"],
        "algorithm": run.config["algorithm"],
        "cluster": cluster,
        "clients": run.sizes.get(cluster, 0),
        "model": run.config["model"],
        "learns": run.config["record"]["learns"],
        "schema": plain(run.schema._replace(notes=()).describe()),  # notes may name clients
        "classes": list(run.schema.classes),
        "standardising": _STANDARD if run.standard is not None else None,
        "seed": run.seed,
        "versions": run.config["record"]["versions"],
    }


_STANDARD = {
    "features": "(x - mean) / scale",
    "limit": "where there is one: beyond it, sign(z) (limit + log(1 + |z| - limit) / 4)",
    "output": "output * target_scale + target_mean",
}
"""How the tensors called mean, scale, limit, target_mean and target_scale are used."""
