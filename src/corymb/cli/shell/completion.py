"""`corymb completion`: a shell completion script."""

# No postponed annotations here: cyclopts reads them.
from typing import Annotated, Literal

from cyclopts import Parameter


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell to complete in.")],
) -> None:
    """Print the script. It completes commands and options, but not the settings of an algorithm."""
    from corymb.cli.app import make_app  # which makes this command too

    print(make_app().generate_completion(prog_name="corymb", shell=shell))
