"""Replies with a row for each example, which padding would make as long as those of the largest client of a chunk.

A client alone would send as many rows as it has examples. Where an axis of a reply is as long as the padded examples,
one of the clients that have fewer is tried alone: if its reply is shorter, the function runs client by client, and
replies are compared and refused as on any other engine.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Size, Tensor

from corymb.engines.examples import ExampleTable
from corymb.trees import flatten


def one_to_try(value: object, tables: Iterable[ExampleTable], ids: Tensor) -> int | None:
    """The place in `ids` of a client that would send less if replies went by examples; None where none would."""
    axes = {axis for shape in shapes(value) for axis in shape}
    for table in tables:
        sizes = table.sizes[ids]
        fewest = int(sizes.argmin())
        if int(sizes.max()) in axes and int(sizes[fewest]) < int(sizes.max()):
            return fewest
    return None


def shapes(value: object) -> list[Size]:
    """What one client sends: the shapes of the leaves of stacked replies without their first axis."""
    return [leaf.shape[1:] for leaf in flatten(value)[0]]
