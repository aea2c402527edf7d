"""Flower's SuperNode, which looks for messages more often than every 3 s: `python -m …supernode [its options]`.

Its waits are fixed in its code. A call of ours has to wait for its next look, so they are most of what a call takes.
"""

from __future__ import annotations

import os
import time
from typing import Any

IDLE = 3.0
"""What a SuperNode sleeps when there was no message."""
ANSWER = 0.5
"""What it sleeps when a reply is not there yet."""
POLL = "CORYMB_FLOWER_POLL"
"""The variable that says how many seconds it sleeps instead of the former."""
REFUSED = "CORYMB_FLOWER_REFUSED"
"""The variable that names a file to say in why the SuperLink refuses this node for good, if it does."""


class Brisk:
    """The module `time`, with shorter sleeps."""

    def __init__(self, poll: float) -> None:
        self._poll = poll

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleep for less, where that is one of the fixed waits."""
        time.sleep({IDLE: min(IDLE, self._poll), ANSWER: min(ANSWER, self._poll / 4)}.get(float(seconds), seconds))


def main() -> None:
    """Run a SuperNode."""
    from corymb.engines.flower.private import supernode

    supernode(Brisk(float(os.environ.get(POLL, "1.0"))), os.environ.get(REFUSED))


if __name__ == "__main__":
    main()
