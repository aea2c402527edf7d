"""Where clients are and how they are run: a loop, or many at once."""

from corymb.engines.loop import LoopEngine
from corymb.engines.placement import Placement
from corymb.engines.vectorised.engine import VectorisedEngine

__all__ = ["LoopEngine", "Placement", "VectorisedEngine"]
