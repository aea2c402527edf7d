"""A canary: what we use of Flower that is not its public API. When Flower moves a name, this says which."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra [flower] is not installed")
FOLDER = Path(__file__).parents[3] / "src" / "corymb" / "engines" / "flower"
SOURCE = FOLDER / "private.py"
PUBLIC = {"flwr.app"}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("flwr"):
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize(("module", "name"), sorted(set(imported(SOURCE))))
def test_flower_still_has(module, name):
    found = importlib.import_module(module)
    assert hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), f"flwr has moved {module}.{name}"


def test_private_names_are_used_in_one_file_only():
    others = [path for path in FOLDER.glob("*.py") if path != SOURCE] + [FOLDER.parents[1] / "flower_app.py"]
    allowed = PUBLIC | {"flwr.clientapp", "flwr.serverapp"}
    used = {(path.name, module) for path in others for module, _ in imported(path)}
    assert {module for _, module in used} <= allowed, used


def test_the_members_that_are_reached_into_are_there():
    from flwr.superlink.grid import HttpGrid
    from flwr.supernode import start_client_internal

    source = inspect.getsource(HttpGrid)
    assert all(name in source for name in ("_retry_invoker", "_runtime_client", "self._client"))
    code = inspect.getsource(start_client_internal)
    assert "time.sleep(3)" in code, "the SuperNode's idle wait, which corymb.engines.flower.supernode shortens"
    assert "time.sleep(0.5)" in code


def test_the_app_that_flower_sends_to_nodes_holds_no_code():
    import io
    import warnings
    import zipfile

    from corymb.engines.flower.private import FAB_FILES, build_fab_from_files

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        fab, _ = build_fab_from_files(FAB_FILES)
    names = zipfile.ZipFile(io.BytesIO(fab)).namelist()
    assert not [name for name in names if name.endswith(".py")]
    assert "pyproject.toml" in names
