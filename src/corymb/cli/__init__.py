"""The command line, one module per command, and its exit codes."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes; `docs/command-line.md` lists them."""

    OK = 0
    BUG = 1
    BAD_INPUT = 2
    TOO_FEW_REPLIES = 3
    FILES = 4
    DIVERGED = 5
    INTERRUPTED = 130
