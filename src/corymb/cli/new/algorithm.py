"""`corymb new algorithm`: an algorithm of one's own and its test, which run at once."""

# No postponed annotations here: cyclopts reads them.
import keyword
import re
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from corymb.settings import expanded, require

TEMPLATES = Path(__file__).parent / "templates"
FILES = {"algorithm.py.txt": "{module}.py", "test_algorithm.py.txt": "test_{module}.py"}
"""Templates, and where they go."""


def new_algorithm(
    name: Annotated[str, Parameter(help="Its name: my-average, my_average and MyAverage give the same files.")],
    *,
    folder: Annotated[Path, Parameter(help="Where the two files go.")] = Path(),
) -> int:
    """Write an algorithm and its test. It clusters clients as IFCA does, in 40 lines: change it into yours."""
    module, title = names_for(name)
    place = expanded(folder)
    files = {template: place / path.format(module=module) for template, path in FILES.items()}
    for path in files.values():
        require(not path.exists(), f"{path} is there already: nothing is overwritten; give another name or --folder.")
    place.mkdir(parents=True, exist_ok=True)
    for template, path in files.items():
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        path.write_text(text.replace("{{module}}", module).replace("{{class}}", title), encoding="utf-8")
    print(f"Wrote {' and '.join(map(str, files.values()))}.")
    there = "" if place == Path() else f"cd {place} && "
    print(f"To check it: {there}python test_{module}.py (or pytest)")
    print(f"To run it: {there}corymb run digits {module}:{title} --k 4")
    return 0


def names_for(name: str) -> tuple[str, str]:
    """The names of the module and of the class.

    >>> names_for("my-average"), names_for("MyAverage"), names_for("FedEM2")
    (('my_average', 'MyAverage'), ('my_average', 'MyAverage'), ('fed_em2', 'FedEM2'))
    """
    good = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,59}", name) is not None
    require(good, f"{name!r} is no name for an algorithm: use letters, digits and dashes, such as my-average.")
    words = re.findall(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z0-9]+", name)
    module = "_".join(words).lower()
    taken = keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("corymb", "torch", "numpy")
    require(not taken, f"{module!r} is the name of something else in Python: give another name.")
    return module, "".join(word if word.isupper() else word[0].upper() + word[1:] for word in words)
