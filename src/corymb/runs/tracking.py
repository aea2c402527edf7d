"""Log the rounds of runs to TensorBoard. For other trackers see docs/how-to/tracking.md."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from corymb.runs.history import Round
from corymb.settings import InvalidInput


def scalars(row: Round) -> Iterator[tuple[str, float]]:
    """The finite numbers of a round's record, by name: `churn`, `train_loss`, `metrics/test_accuracy`, ...

    >>> list(scalars({"clock": 3, "stage": "", "churn": 0.5, "train_loss": None, "metrics": {"ari": 1.0}}))
    [('churn', 0.5), ('metrics/ari', 1.0)]
    """
    for name, value in row.items():
        if name == "metrics":
            yield from ((f"metrics/{metric}", number) for metric, number in value.items() if math.isfinite(number))
        elif name not in ("clock", "round") and isinstance(value, (int, float)) and math.isfinite(value):
            yield name, float(value)


class TensorBoard:
    """Writes the numbers of every round to a folder for `tensorboard --logdir`.

    `fit(..., callbacks=TensorBoard("runs/a/tensorboard"))`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InvalidInput("TensorBoard is not installed: pip install 'corymb[tracking]'.") from None
        self._writer: Any = SummaryWriter(os.fspath(folder))

    def on_round(self, row: Round) -> None:
        """Write a round's record."""
        for name, value in scalars(row):
            self._writer.add_scalar(name, value, row["clock"])
        self._writer.flush()

    __call__ = on_round

    def on_end(self, run: object) -> None:
        """Close the log when the run has ended."""
        self.close()

    def close(self) -> None:
        """Close the log."""
        self._writer.close()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
