"""`corymb completion`: a script with which a shell completes commands and options."""

# No postponed annotations here: cyclopts reads them.
from typing import Annotated, Literal

from cyclopts import Parameter


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell that the script is for.")],
) -> None:
    """Print the script. It knows commands and options; the settings of an algorithm are in its help."""
    from corymb.cli.app import make_app  # which makes this command too

    print(make_app().generate_completion(prog_name="corymb", shell=shell))
