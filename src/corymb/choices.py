"""The allowed values of some settings, in a module without torch, so that the command line can list them at once."""

from __future__ import annotations

from typing import Literal

Task = Literal["classification", "regression", "density"]
"""What is learned. A density is learned from features alone; labels, if any, are the true clusters of examples."""
Missing = Literal["refuse", "mean", "median", "drop"]
"""How missing cells of a table are handled."""
Scale = Literal["standard", "pixels", "none", "codes"]
"""What features are: numbers to standardise, pixels, numbers to leave as they are, or codes that a model embeds."""
Dropout = Literal["on", "off", "refuse"]
"""How a model's dropout is handled."""
KernelName = Literal["fused", "foreach", "serial"]
"""The kernels of the vectorised engine."""
