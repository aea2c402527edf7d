"""Serialises a shard (some clients of a data set, with an objective) to create a node in another process.

For clusters under one owner: here, data are sent. On a federation they never are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.core.engine import ClientData, Rows
from corymb.core.objective import Objective
from corymb.engines.guarded import serve_pipe
from corymb.engines.loop import LoopEngine
from corymb.engines.node import Node
from corymb.engines.placement import Placement
from corymb.engines.vectorised.engine import VectorisedEngine
from corymb.messages import OURS
from corymb.objectives.recipe import made_from, recipe_of
from corymb.settings import fingerprint
from corymb.wire import pack, unpack


class ShardRows(NamedTuple):
    """All examples of some clients, concatenated client by client."""

    x: Tensor
    y: Tensor
    offsets: Tensor


class Shard(NamedTuple):
    """Some clients of a data set, as engines need them."""

    names: Sequence[str]
    train: ShardRows
    test: ShardRows
    schema: Mapping[str, Any]
    mark: str

    def fingerprint(self) -> str:
        """Equal exactly if the data are equal."""
        return fingerprint(self.mark, list(self.names))


def shard_of(data: ClientData, clients: Sequence[int]) -> Shard:
    """The shard of the clients at these positions of a data set."""
    names = [data.names[client] for client in clients]
    return Shard(names, _rows(data.train, clients), _rows(data.test, clients), data.schema, data.fingerprint())


def _rows(rows: Rows, clients: Sequence[int]) -> ShardRows:
    offsets = rows.offsets.cpu()
    spans = [torch.arange(int(offsets[client]), int(offsets[client + 1])) for client in clients]
    places = torch.cat([*spans, torch.empty(0, dtype=torch.int64)])
    sizes = torch.tensor([0, *(len(span) for span in spans)])
    return ShardRows(rows.x[places], rows.y[places], sizes.cumsum(0))


class NodeSpec(NamedTuple):
    """The settings of a node that serves a shard."""

    name: str
    engine: str = "vectorised"
    device: str = "cpu"
    precision: str = "float32"
    folder: str = ""
    allow: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    """Directories of the user's modules, added to `sys.path`."""


def spec_to_bytes(spec: NodeSpec, shard: Shard, objective: Objective) -> bytes:
    """A node's settings, data and objective as bytes."""
    plain = {name: _listed(value) for name, value in shard.schema.items()}
    tree = {**shard._asdict(), "train": tuple(shard.train), "test": tuple(shard.test), "schema": plain}
    return pack({"spec": tuple(spec), "shard": tree, "objective": recipe_of(objective)})


def _listed(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def node_from_bytes(data: bytes) -> Node:
    """The node described by the bytes of `spec_to_bytes`, in this process."""
    tree = unpack(data, OURS)
    spec, kept = NodeSpec(*tree["spec"]), tree["shard"]
    sys.path[:0] = [path for path in spec.path if path not in sys.path]
    shard = Shard(**{**kept, "train": ShardRows(*kept["train"]), "test": ShardRows(*kept["test"])})
    dtype = torch.float64 if spec.precision == "float64" else torch.float32
    placement = Placement(spec.device, dtype, mixed=spec.precision == "bfloat16", tf32=spec.precision == "tf32")
    objective = made_from(tree["objective"], OURS).to(placement.device, placement.dtype)
    make = LoopEngine if spec.engine == "loop" else VectorisedEngine
    folder = Path(spec.folder) if spec.folder else None
    return Node(make(objective, shard, placement), spec.name, allow=spec.allow, folder=folder)


if __name__ == "__main__":  # the child process of `corymb.engines.guarded`
    serve_pipe(lambda: node_from_bytes(Path(sys.argv[1]).read_bytes()))
