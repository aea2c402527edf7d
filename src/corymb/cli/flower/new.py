"""`corymb flower new`: creates a folder with everything a federation needs, ready to run on this machine."""

# No postponed annotations here: cyclopts reads them.
import keyword
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from corymb.settings import require

TEMPLATES = Path(__file__).parent / "templates"
FILES = {
    "federation.toml": "federation.toml",
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "init.py.txt": "{package}/__init__.py",
    "data.py.txt": "{package}/data.py",
    "model.py.txt": "{package}/model.py",
    "algorithm.py.txt": "{package}/algorithm.py",
}
"""The templates, and the files made from them."""


def new(name: Annotated[str, Parameter(help="The name of the federation, and of the folder to make.")]) -> int:
    """Make a folder for a federation: a data function for its nodes, a model and an algorithm to change."""
    folder = Path(name)
    package = folder.name.replace("-", "_")
    good = package.isidentifier() and not keyword.iskeyword(package) and package != "corymb"
    require(good, f"{folder.name!r} is not a valid name for a package: use letters, digits and dashes.")
    require(not folder.exists() or not any(folder.iterdir()), f"{folder} already exists and is not empty.")
    for template, place in FILES.items():
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        path = folder / place.format(package=package)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{{name}}", folder.name).replace("{{package}}", package), encoding="utf-8")
    print(f"{folder}: next, cd {folder} && corymb flower up --nodes 3 && corymb flower run")
    return 0
