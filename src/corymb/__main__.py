"""The entry point of the command line: `corymb`, or `python -m corymb` if the script is not on the path."""

import gc
import os
import sys
from typing import NoReturn

from corymb.cli.app import main


def script() -> NoReturn:
    """Run the command that the process was started with, and exit.

    Garbage collection is off during imports and at exit: nearly all objects made by imports live to the end, and
    collecting among them took a fifth of the time of a short command.
    """
    gc.disable()
    _open_streams()
    code = main(loaded=_keep)
    gc.freeze()
    sys.exit(code)


def _open_streams() -> None:
    """Discard output that a process has nowhere to write to: some schedulers start one with its streams closed.

    Otherwise Python has no `sys.stdout`, and the next file that is opened would get what libraries print.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


def _keep() -> None:
    """Exempt the imported objects from garbage collection, and turn it on."""
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    script()
