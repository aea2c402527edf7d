"""Names each part of Flower's private API in use that a new version has moved."""

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


def test_flower_still_has_the_private_members_that_are_used():
    from flwr.superlink.grid import HttpGrid
    from flwr.supernode import start_client_internal

    source = inspect.getsource(HttpGrid)
    assert all(name in source for name in ("_retry_invoker", "_runtime_client", "self._client"))
    code = inspect.getsource(start_client_internal)
    assert "time.sleep(3)" in code, "the SuperNode's idle wait, which corymb.engines.flower.supernode shortens"
    assert "time.sleep(0.5)" in code
    assert "obj_contents = pull_objects(" in code, "the SuperNode's looks for objects, which are made more frequent"


OBJECTS = ["message", "record", "array"]


class Tree:
    """A message and the objects in it, as Flower announces them."""

    def __init__(self, object_id, children=()):
        self.object_id, self.children = object_id, list(children)


def test_a_message_is_read_as_it_arrives_and_nothing_twice():
    from corymb.engines.flower.private import ObjectUnavailableError, _Arriving

    there, read = set(), []

    def pull(name):
        if name not in there:
            raise ObjectUnavailableError(name)
        read.append(name)
        return b"x"

    arriving = _Arriving(Tree("message", [Tree("record", [Tree("array")])]), pull)
    for name in OBJECTS:
        assert not arriving.read()
        there |= set(OBJECTS[: OBJECTS.index(name) + 1])
    assert arriving.read()
    assert sorted(read) == sorted(OBJECTS)
    assert arriving.silent < 60


def test_a_task_is_abandoned_when_the_node_has_another():
    from corymb.engines.flower.executor import _Tasks

    tokens = ["first", "", "second"]
    tasks = _Tasks(lambda: tokens.pop(0) if tokens else "")
    assert tasks.take() == "first"
    assert not tasks.another()
    assert tasks.another()
    assert tasks.another()  # still the same one
    assert (tasks.take(), tasks.take()) == ("second", "")


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
