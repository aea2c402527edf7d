"""The command line as a process of its own: `corymb`, and `python -m corymb` where the script is not on the path."""

import gc
import sys
from typing import NoReturn

from corymb.cli.app import main


def script() -> NoReturn:
    """Run the command that the process was started with, and exit.

    Nearly all that imports make stays to the end: looking for garbage among it, as it is made and again when the
    process ends, took a fifth of the time of a short command.
    """
    gc.disable()
    code = main(loaded=_keep)
    gc.freeze()
    sys.exit(code)


def _keep() -> None:
    """From here on garbage is looked for among what is new."""
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    script()
