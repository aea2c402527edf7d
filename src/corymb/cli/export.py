"""`corymb export RUN --cluster J`: write a cluster's or a client's model to a file that does not need Corymb."""

# No postponed annotations here: cyclopts reads them.
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import torch
from cyclopts import Parameter
from torch import nn

from corymb.cli.assign import OwnModel, RunFolder
from corymb.runs.folder.files import whole
from corymb.runs.history import plain
from corymb.runs.run import Run
from corymb.settings import InvalidInput, expanded, first_line, require


def export(
    run: RunFolder,
    *,
    cluster: Annotated[int | None, Parameter(help="The cluster to export; required if there are several.")] = None,
    client: Annotated[str | None, Parameter(help="The client to export: the model of its cluster, or its own.")] = None,
    format: Annotated[
        Literal["safetensors", "onnx"],
        Parameter(help="safetensors: the parameters alone. onnx: a model that other programs can run."),
    ] = "safetensors",
    out: Annotated[
        Path | None, Parameter(help="The file to write; by default RUN/cluster-J.FORMAT, or client-J.")
    ] = None,
    model: OwnModel = None,
) -> None:
    """Write `run.module(cluster)`, parameters and standardisation, with metadata that describe them."""
    loaded = Run.load(run, model)
    which = _which(loaded, cluster, client)
    module = loaded.module(which)
    number, name = loaded.labels[which] if isinstance(which, str) else which, "cluster"
    if loaded.served == "own" and isinstance(which, str):
        number, name = loaded.names.index(which), "client"  # the position: a name need not be a file's
    place = run / f"{name}-{number}.{format}" if out is None else expanded(out)
    require(not place.is_dir(), f"{place} is a folder: give a file name for the model.")
    meaning = json.dumps(about(loaded, number))
    written = _safetensors(module, meaning) if format == "safetensors" else _onnx(module, meaning, loaded)
    with whole(place) as file:
        file.write(written)
    print(place)


def _which(run: Run, cluster: int | None, client: str | None) -> int | str:
    """The cluster or client whose model is exported."""
    require(cluster is None or client is None, "Give --cluster or --client, not both.")
    own = run.served == "own"
    require(not own or client is not None, "Each client of this run has its own model: give --client NAME.")
    ambiguous = cluster is None and client is None and run.snapshot.k > 1
    require(
        not ambiguous,
        f"The run has several models: choose one with --cluster NUMBER (0 to {run.snapshot.k - 1}) or --client NAME.",
    )
    return client if client is not None else cluster or 0


def _safetensors(module: nn.Module, meaning: str) -> bytes:
    from safetensors.torch import save

    state = {name: value.clone().contiguous() for name, value in module.state_dict().items()}
    return save(state, {"format": "pt", "corymb": meaning})


def _onnx(module: nn.Module, meaning: str, run: Run) -> bytes:
    """The model as ONNX, with a dynamic number of examples."""
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError:
        raise InvalidInput("ONNX is not installed: pip install 'corymb[onnx]'.") from None
    dtype = torch.int64 if run.schema.codes else next(module.parameters()).dtype
    two = torch.zeros(2, *run.schema.features, dtype=dtype)  # a batch of one would be exported as a constant
    output = "targets" if run.schema.task == "regression" else "logits"
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # torch's own warnings during the export
        try:
            program = torch.onnx.export(
                module,
                (two,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("examples")},),
                input_names=["x"],
                output_names=[output],
                verbose=False,
            )
        except Exception as error:
            raise InvalidInput(f"torch.onnx cannot export this model: {first_line(error)}") from error
    assert program is not None
    proto = program.model_proto
    onnx.helper.set_model_props(proto, {"corymb": meaning})
    written: bytes = proto.SerializeToString()
    return written


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Silence a logger below CRITICAL."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _about_cluster(run: Run, cluster: int) -> dict[str, object]:
    return {"cluster": cluster, "examples" if run.points else "clients": run.sizes.get(cluster, 0)}


def about(run: Run, number: int) -> dict[str, object]:
    """The metadata of an exported model: what its tensors mean and where they come from."""
    return {
        "data": run.config["data"],
        "algorithm": run.config["algorithm"],
        **({"client": number, "clients": 1} if run.served == "own" else _about_cluster(run, number)),
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
