"""The entry point of the command line: `corymb`, or `python -m corymb` if the script is not on the path."""

import gc
import sys
from typing import NoReturn

from corymb.cli.app import main


def script() -> NoReturn:
    """Run the command that the process was started with, and exit.

    Garbage collection is off during imports and at exit: nearly all objects made by imports live to the end, and
    collecting among them took a fifth of the time of a short command.
    """
    gc.disable()
    code = main(loaded=_keep)
    gc.freeze()
    sys.exit(code)


def _keep() -> None:
    """Exempt the imported objects from garbage collection, and turn it on."""
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    script()
