"""What some settings choose from, apart from the code that obeys them: a list of options needs no torch."""

from __future__ import annotations

from typing import Literal

Task = Literal["classification", "regression", "density"]
"""A density is learned from features alone; labels, where there are any, are the true clusters of examples."""
Missing = Literal["refuse", "mean", "median", "drop"]
"""What is done about a missing cell of a table."""
Scale = Literal["standard", "pixels", "none", "codes"]
"""What features are: numbers to be standardised, pixels, numbers to be left alone, or codes that a model embeds."""
Dropout = Literal["on", "off", "refuse"]
"""What is done about a model's dropout."""
KernelName = Literal["fused", "foreach", "serial"]
"""How the vectorised engine computes."""
