"""Laws of source code: no execution of data, no global random generators, and no forbidden imports."""

from __future__ import annotations

import ast
from pathlib import Path

BANNED_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "random")
BANNED = {
    *("eval", "exec", "yaml.load", "yaml.unsafe_load", "torch.load", "torch.save", "torch.hub.load"),
    *("torch.manual_seed", "torch.seed", "torch.random.manual_seed", "torch.cuda.manual_seed"),
    *("torch.cuda.manual_seed_all", "torch.set_rng_state", "numpy.random.seed", "np.random.seed"),
}
DRAWS = ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like")
NEED_A_GENERATOR = ("normal", "bernoulli", "multinomial", "poisson", "binomial")
IN_PLACE = ("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_")
NOT_FOR_ALGORITHMS = (
    "corymb.data",
    "corymb.engines",
    "corymb.evaluate",
    "corymb.runs",
    "corymb.report",
    "corymb.cli",
    "corymb.testing",
)
NOT_FOR_ENGINES = ("corymb.algorithms", "corymb.runs", "corymb.data", "corymb.testing")


def check_safe(path: Path) -> None:
    """A Python file neither executes data nor uses a global generator."""
    tree = ast.parse(path.read_text())
    assert not within(imports(tree), *BANNED_MODULES)
    assert faults(tree) == []


def check_imports(path: Path, *banned: str) -> None:
    """A Python file imports nothing from these packages, not even within a function."""
    assert not within(imports(ast.parse(path.read_text())), *banned), path


def imports(tree: ast.AST) -> set[str]:
    """Every module, and every name from a module, that is imported anywhere."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def within(names: set[str], *packages: str) -> set[str]:
    """The names that belong to one of the packages."""
    return {name for name in names if any(name == p or name.startswith(f"{p}.") for p in packages)}


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return "?"


def faults(tree: ast.AST) -> list[str]:
    """Calls and imports that could execute data, or use a global generator."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _dotted(node) in BANNED | {f"torch.{draw}" for draw in DRAWS}:
            found.append(_dotted(node))
        if isinstance(node, ast.ImportFrom) and node.module in ("torch", "numpy.random", "yaml"):
            wrong = {"load", "save", "manual_seed", "seed", *DRAWS}
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name in wrong]
        if isinstance(node, ast.Call):
            found += _faults_of_call(node)
    return found


def _faults_of_call(node: ast.Call) -> list[str]:
    name, keywords = _dotted(node.func), {keyword.arg for keyword in node.keywords}
    last = name.rpartition(".")[2]
    found = [name] if name in ("eval", "exec", "__import__") else []
    if "generator" not in keywords:
        if name.startswith("torch.") and last in NEED_A_GENERATOR:
            found.append(name)
        if "." in name and last in IN_PLACE:
            found.append(name)
    seeded = last in ("default_rng", "SeedSequence") and node.args
    if name.startswith(("np.random.", "numpy.random.")) and not seeded:
        found.append(name)
    return found
