"""Writes docs/explanation/what-the-server-learns.md from the client functions themselves.

`python docs/what_the_server_learns.py` writes the page; a test fails while it is not what this would write.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import typing
from pathlib import Path
from types import ModuleType

import corymb
from corymb.core.client import ClientFn, Served, Share, Shares

PAGE = Path(__file__).parent / "explanation" / "what-the-server-learns.md"
LEFT_OUT = ("corymb.testing", "corymb.recipes", "corymb.flower_app", "corymb.engines.flower", "corymb.__main__")
INTRO = """# What the server learns

Written by `python docs/what_the_server_learns.py` from the return types of all client functions; a test fails when it
is out of date. What is not in these tables never reaches the server's code: `ARCHITECTURE.md` says what checks that.

* **sum**: values are added up by weight before the algorithm sees them, k sums over all clients asked; labels and notes
  come back as rows, one for each client. Where one process or node answers for a single client, its sum is that
  client's own value. With `aggregate=` or `clip=` every value is needed by itself, as a row.
* **map**: everything comes back as rows, one for each client.
* The server knows besides: clients' names, how many examples each says it has, who answered, who was refused and why,
  and the schema of the data.

`Params` is a model (or its update, or gradient); a `Tensor` a number or an array. Private rounds (`privacy=`) ask the
functions of `corymb.algorithms.privately` and no others: [privacy](privacy.md).
"""


def sources() -> dict[str, str]:
    """The text of all modules of the library that a run may use, by their names."""
    names = sorted(found.name for found in pkgutil.walk_packages(corymb.__path__, "corymb.", onerror=lambda name: None))
    specs = {name: importlib.util.find_spec(name) for name in names if not name.startswith(LEFT_OUT)}
    places = {name: spec.origin for name, spec in specs.items() if spec is not None and spec.origin is not None}
    return {name: Path(place).read_text(encoding="utf-8") for name, place in places.items()}


def functions(module: ModuleType) -> dict[str, ClientFn]:
    """The client functions that stand in a module, in its order."""
    own = {name: value for name, value in vars(module).items() if isinstance(value, ClientFn)}
    return {name: fn for name, fn in own.items() if fn.body.__module__ == module.__name__}


def verbs(every: dict[str, str]) -> dict[str, set[str]]:
    """How each function is asked, by what the source says: `module:function` and the verbs."""
    found: dict[str, set[str]] = {}
    for module, text in every.items():
        nodes = list(ast.walk(ast.parse(text)))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        homes = {alias.asname or alias.name: f"{node.module}:{alias.name}" for node in imports for alias in node.names}
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("map", "sum"):
                for name in (arg.id for arg in node.args[:1] if isinstance(arg, ast.Name)):
                    found.setdefault(homes.get(name, f"{module}:{name}"), set()).add(node.func.attr)
    return found


def returned(fn: ClientFn) -> str:
    """What comes back: the annotation, with the fields of named tuples written out."""
    annotation = fn.body.__annotations__.get("return", "?")
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    namespace = vars(importlib.import_module(fn.body.__module__))
    fields = []
    for name in dict.fromkeys(node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)):
        kind = namespace.get(name)
        if isinstance(kind, type) and hasattr(kind, "_fields") and kind not in (Share, Shares, Served):
            hints = {key: typing.get_type_hints(kind).get(key) for key in kind._fields}
            fields.append(f"{name}: " + ", ".join(f"{key} ({_plain(hint)})" for key, hint in hints.items()))
    told = f"`{text.replace('|', 'or')}`"
    return told if not fields else f"{told}; {'; '.join(fields)}"


def _plain(hint: object) -> str:
    text = re.sub(r"\b(?:[a-z_]+\.)+", "", inspect.formatannotation(hint)).replace("|", "or")
    return "Params" if text == "dict[str, Tensor]" else text


def page() -> str:
    """The whole page."""
    every = sources()
    asked, parts = verbs(every), [INTRO]
    for module in (importlib.import_module(name) for name, text in every.items() if "@on_client" in text):
        if own := functions(module):
            rows = [f"| `{name}` | {_line(fn)} | {_asked(fn, asked)} | {returned(fn)} |" for name, fn in own.items()]
            head = ["| client function | what it gives | asked by | type |", "|---|---|---|---|"]
            parts.append("\n".join([f"\n## {module.__name__}\n", *head, *rows]) + "\n")
    return "".join(parts)


def _line(fn: ClientFn) -> str:
    return (inspect.getdoc(fn.body) or "").partition("\n")[0].replace("|", "\\|")


def _asked(fn: ClientFn, asked: dict[str, set[str]]) -> str:
    return " and ".join(sorted(asked.get(fn.name, ()))) or "other client functions, or to serve a model"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
