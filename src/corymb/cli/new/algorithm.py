"""`corymb new algorithm`: a working template for an algorithm, with a test."""

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
"""Templates, and the names of the files made from them."""


def new_algorithm(
    name: Annotated[str, Parameter(help="The algorithm's name; my-average, my_average and MyAverage are equivalent.")],
    *,
    folder: Annotated[Path, Parameter(help="The folder for the two files.")] = Path(),
) -> int:
    """Create an algorithm and its test. The template clusters clients as IFCA does, in 40 lines: adapt it."""
    module, title = names_for(name)
    place = expanded(folder)
    files = {template: place / path.format(module=module) for template, path in FILES.items()}
    for path in files.values():
        require(not path.exists(), f"{path} already exists and is not overwritten: give another name or --folder.")
    place.mkdir(parents=True, exist_ok=True)
    for template, path in files.items():
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        path.write_text(text.replace("{{module}}", module).replace("{{class}}", title), encoding="utf-8")
    print(f"Wrote {' and '.join(map(str, files.values()))}.")
    cd = "" if place == Path() else f"cd {place} && "
    print(f"To test it: {cd}python test_{module}.py (or pytest)")
    print(f"To run it: {cd}corymb run digits {module}:{title} --k 4")
    return 0


def names_for(name: str) -> tuple[str, str]:
    """The names of the module and of the class.

    >>> names_for("my-average"), names_for("MyAverage"), names_for("FedEM2")
    (('my_average', 'MyAverage'), ('my_average', 'MyAverage'), ('fed_em2', 'FedEM2'))
    """
    good = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,59}", name) is not None
    require(good, f"{name!r} is not a valid name for an algorithm: use letters, digits and dashes (my-average).")
    words = re.findall(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z0-9]+", name)
    module = "_".join(words).lower()
    taken = keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("corymb", "torch", "numpy")
    require(not taken, f"{module!r} is a Python keyword or the name of another module: give another name.")
    return module, "".join(word if word.isupper() else word[0].upper() + word[1:] for word in words)
