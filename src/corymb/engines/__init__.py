"""Engines run client functions: in a loop, or for many clients at once.

They are imported on first use, since a SuperNode and the process that supervises it need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corymb.lazy import lazily

if TYPE_CHECKING:
    from corymb.engines.loop import LoopEngine
    from corymb.engines.placement import Placement
    from corymb.engines.vectorised.engine import VectorisedEngine

__all__ = ["LoopEngine", "Placement", "VectorisedEngine"]
__getattr__ = lazily(
    __name__,
    {
        "LoopEngine": "corymb.engines.loop",
        "Placement": "corymb.engines.placement",
        "VectorisedEngine": "corymb.engines.vectorised.engine",
    },
)
