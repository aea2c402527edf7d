"""Flower's SuperNode, polling for messages more often than every 3 s: `python -m …supernode [its options]`.

Its waits are hard-coded. A call waits for the next poll, so these waits are most of the time that a call takes.
"""

from __future__ import annotations

import os
import time
from typing import Any

IDLE = 3.0
"""Seconds that a SuperNode sleeps if there was no message."""
ANSWER = 0.5
"""Seconds that it sleeps if a reply is not ready."""
POLL = "CORYMB_FLOWER_POLL"
"""The environment variable with the number of seconds to sleep instead of `IDLE`."""
REFUSED = "CORYMB_FLOWER_REFUSED"
"""The environment variable with the name of a file for the reason why the SuperLink refuses this node for good."""


class FastClock:
    """Stands in for the module `time`, with shorter sleeps."""

    def __init__(self, poll: float) -> None:
        self._poll = poll

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        """Sleep; shorter if `seconds` is one of the SuperNode's hard-coded waits."""
        time.sleep({IDLE: min(IDLE, self._poll), ANSWER: min(ANSWER, self._poll / 4)}.get(float(seconds), seconds))


def main() -> None:
    """Run a SuperNode."""
    from corymb.engines.flower.private import supernode

    supernode(FastClock(float(os.environ.get(POLL, "1.0"))), os.environ.get(REFUSED))


if __name__ == "__main__":
    main()
