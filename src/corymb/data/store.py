"""A data set as one file: tensors and a JSON header in the safetensors format, no pickle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from corymb.settings import InvalidInput

SUFFIX = ".safetensors"
_KEY = "corymb_dataset"
_VERSION = 1


def write_dataset(path: str | os.PathLike[str], header: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write the file under a temporary name and rename it, so that it is never seen half written."""
    from safetensors.numpy import save_file  # safetensors.torch refuses views of one tensor

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    text = json.dumps({"version": _VERSION, **header})
    try:
        save_file({name: tensor.cpu().contiguous().numpy() for name, tensor in tensors.items()}, partial, {_KEY: text})
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def read_dataset(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the header and the tensors of a file written by `write_dataset`."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise InvalidInput(f"{path} is not a file: give the path that the data set was saved to.")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except SafetensorError as error:
        raise InvalidInput(f"{path} cannot be read as safetensors ({error}): save the data set again.") from None
    if text is None:
        raise InvalidInput(
            f"{path} holds tensors but not a Corymb data set: give a file made by FederatedDataset.save."
        )
    header = json.loads(text)
    if header.pop("version") != _VERSION:
        raise InvalidInput(
            f"{path} was saved by another version of Corymb: load it with that version, or create it again."
        )
    return header, tensors
