"""Ctrl-C and SIGTERM during a run: they never interrupt the saving of a round."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Stopper:
    """Turns Ctrl-C and SIGTERM into a `KeyboardInterrupt` that is held back while a round is being saved."""

    def __init__(self) -> None:
        self._shielded, self._requested = False, False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals, if this is the main thread: other threads do not receive them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {}
        try:
            for which in (signal.SIGINT, signal.SIGTERM):
                before[which] = signal.signal(which, self._asked_to_stop)
            yield
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """Hold back a signal that arrives meanwhile, and raise it afterwards."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._requested:
            raise KeyboardInterrupt

    def _asked_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._requested = True
        if not self._shielded:
            raise KeyboardInterrupt
