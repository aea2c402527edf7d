"""The message about a model's output of the wrong shape."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor


def wrong_shape(out: Tensor, wanted: Sequence[int], meaning: str = "") -> str:
    """What is wrong with a model's output for some examples, with the likely remedy.

    >>> import torch
    >>> wrong_shape(torch.zeros(5, 3), [5, 4], "a logit for each class")
    "The model's output for 5 examples has shape [5, 3], wanted [5, 4]: a logit for each class."
    >>> wrong_shape(torch.zeros(4), [1, 4])
    "The model's output for 1 example has shape [4], wanted [1, 4]; in its forward, replace squeeze() by squeeze(-1)."
    """
    examples, shape = f"{wanted[0]} example{'s' * (wanted[0] != 1)}", list(out.shape)
    means = f": {meaning}" if meaning else ""
    squeezed = wanted[0] == 1 and out.dim() < len(wanted) and out.numel() == prod(wanted)  # the axis of examples too
    remedy = "; in its forward, replace squeeze() by squeeze(-1)" if squeezed else ""
    return f"The model's output for {examples} has shape {shape}, wanted {list(wanted)}{means}{remedy}."
