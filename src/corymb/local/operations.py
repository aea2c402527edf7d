"""Counts the floating-point operations of a forward pass.

The number of parameters does not tell: a layer that is applied at every pixel of an image or every token of a text
takes far more operations than it has parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from corymb.core.objective import Examples, Objective
from corymb.trees import Params


def operations(objective: Objective, params: Params, on: Examples) -> int:
    """The multiplications and additions of products, convolutions and recurrent layers, for all examples together.

    >>> from corymb.models import Network, mlp
    >>> from corymb.objectives import Classification
    >>> objective = Classification(Network(mlp(3, [5], 2)), 2)
    >>> on = Examples(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), torch.ones(4))
    >>> operations(objective, objective.init(torch.tensor(0)), on)  # 2 x 4 examples x (3 x 5 + 5 x 2)
    200
    """
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), _decomposed_layers():
        objective.losses(params, on)  # a `Network` runs an extra check in its first pass
        with FlopCounterMode(display=False) as counter:
            objective.losses(params, on)
    return int(counter.get_total_flops())


def one_example(schema: Mapping[str, Any], params: Params) -> Examples:
    """An all-zero example of a schema (`corymb.data.schema.DataSchema`), on the device of the parameters."""
    like = next(iter(params.values()))
    kind = torch.int64 if schema.get("codes") else like.dtype
    label = like.dtype if schema.get("task") == "regression" else torch.int64
    x = torch.zeros(1, *schema["features"], dtype=kind, device=like.device)
    return Examples(
        x, torch.zeros(1, dtype=label, device=like.device), torch.ones(1, dtype=like.dtype, device=like.device)
    )


@contextmanager
def _decomposed_layers() -> Iterator[None]:
    """Disable cuDNN and oneDNN: their recurrent layers are single operations, which the counter does not know."""
    before = torch.backends.cudnn.enabled, torch._C._get_mkldnn_enabled()
    torch.backends.cudnn.enabled = False
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before[0]
        torch._C._set_mkldnn_enabled(before[1])
