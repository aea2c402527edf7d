"""Where clients are and how they are run: a loop, or many at once."""

from corymb.engines.loop import LoopEngine
from corymb.engines.room import Where
from corymb.engines.vectorised import VectorisedEngine

__all__ = ["LoopEngine", "VectorisedEngine", "Where"]
