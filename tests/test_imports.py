"""`import corymb` is light, IFCA runs on torch, numpy and safetensors alone, and no modules import each other."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = [
    *("scipy", "sklearn", "pydantic", "cyclopts", "jinja2", "rich", "plotly"),
    *("flwr", "tomli_w", "pandas", "pyarrow", "matplotlib", "ray"),
]
FOR_TESTS = "corymb.testing"

IMPORTED = f"""
import sys, corymb
assert "torch" not in sys.modules, "import corymb brings torch"
corymb.fit, corymb.IFCA, corymb.Run, corymb.FederatedDataset
print([name for name in {[*HEAVY, FOR_TESTS]} if name in sys.modules])
"""

BLOCKED = f"""
import sys
for name in {HEAVY}:
    sys.modules[name] = None  # importing it now fails
import corymb
data = corymb.datasets.mixed_regression_ifca(n=6, m=10, d=3, test=4)
run = corymb.fit(corymb.IFCA(k=2, rounds=3, restarts=2), data, progress=True)
assert run.metrics.keys() >= {{"test_squared_error", "ari"}}
assert run.predict(data.test.of(0)[0], client="client-0").shape == (4,)
import numpy as np
own = corymb.fit(corymb.FedAvg(rounds=1), (np.eye(8) * 50, np.arange(8) % 2, np.arange(8) % 2))
assert "test_accuracy" in own.metrics
"""


def in_a_process_of_its_own(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_heavy_is_imported_before_it_is_used():
    assert in_a_process_of_its_own(IMPORTED).strip() == "[]"


def test_ifca_runs_with_bare_torch():
    in_a_process_of_its_own(BLOCKED)


# ---- cycles


def modules_of(source: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules."""
    found = {}
    for path in source.rglob("*.py"):
        parts = (source.name, *path.relative_to(source).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(node: ast.AST):
    """(module, names) of every import in a syntax tree, wherever it stands, but for those under TYPE_CHECKING."""
    if isinstance(node, ast.If) and ast.unparse(node.test).removeprefix("typing.") == "TYPE_CHECKING":
        inner = node.orelse
    else:
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module, tuple(alias.name for alias in node.names)
    for child in inner:
        yield from imported(child)


def import_graph(source: Path) -> dict[str, set[str]]:
    """What each module of a package imports from the package: imports inside functions count."""
    modules, graph = modules_of(source), {}
    for name, path in modules.items():
        found = set()
        for module, names in imported(ast.parse(path.read_text(encoding="utf-8"))):
            submodules = {f"{module}.{inner}" for inner in names}
            found |= submodules & modules.keys()
            if not submodules or not submodules <= modules.keys():
                found.add(module)
        graph[name] = {other for other in found & modules.keys() if other != name}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    number, lowest, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            place = stack.index(node)
            component = stack[place:]
            del stack[place:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return found


def test_no_modules_import_each_other():
    found = cycles(import_graph(Path(__file__).parents[1] / "src" / "corymb"))
    assert found == [], "modules that import each other, directly or in a circle:\n" + "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("back", "wanted"),
    [
        ("import pack.a", [["pack.a", "pack.b", "pack.inner.c"]]),
        ("from pack import a", [["pack.a", "pack.b", "pack.inner.c"]]),
        ("def f():\n    from pack.a import x", [["pack.a", "pack.b", "pack.inner.c"]]),
        ("if TYPE_CHECKING:\n    from pack.a import x", []),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    import pack.b", [["pack.b", "pack.inner.c"]]),
        ("import os", []),
    ],
)
def test_a_cycle_is_found_and_named(back, wanted, tmp_path):
    texts = {
        "__init__": "",
        "a": "from pack.b import x",
        "b": "import pack.inner.c",
        "inner/__init__": "",
        "inner/c": back,
    }
    for name, text in texts.items():
        path = tmp_path / "pack" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert cycles(import_graph(tmp_path / "pack")) == wanted
