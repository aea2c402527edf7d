"""Where clients are and how they are run: a loop, or many at once.

Imported when they are first used: a SuperNode and whoever keeps it running need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corymb.engines.loop import LoopEngine
    from corymb.engines.placement import Placement
    from corymb.engines.vectorised.engine import VectorisedEngine

__all__ = ["LoopEngine", "Placement", "VectorisedEngine"]
_HOMES = {
    "LoopEngine": "corymb.engines.loop",
    "Placement": "corymb.engines.placement",
    "VectorisedEngine": "corymb.engines.vectorised.engine",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
