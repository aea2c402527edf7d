"""Only what client functions return leaves a client, and nothing in the library executes what it reads."""

import ast
from pathlib import Path

import pytest

import corymb
from corymb.testing.engines import ENGINES
from corymb.testing.laws import privacy, source
from tests.contracts.cases import CASES

SOURCE = Path(corymb.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
every_engine = pytest.mark.parametrize("engine", ENGINES)


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


ON_THE_WIRE = ["keeper", "CFL", "SR-FCA"]
"""What an algorithm asks for is the same on every engine: on the wire these do, and `make soak` has the others."""


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(name, engine, marks=[pytest.mark.soak] if engine == "wired" and name not in ON_THE_WIRE else [])
        for name in CASES
        for engine in ENGINES
        if engine == "vectorised" or CASES[name].remembers
    ],
)
def test_neither_examples_nor_memory_cross_the_door(name, engine):
    privacy.check_nothing_else_crosses(CASES[name], engine)


@every_engine
@pytest.mark.parametrize(
    "law",
    [privacy.check_spy_sees, privacy.check_parts_hold_replies_only, privacy.check_no_path_to_examples],
    ids=lambda law: law.__name__,
)
def test_the_door(law, engine):
    law(engine)


# ---- what the source says


@pytest.mark.parametrize("path", [path for path in FILES if name_of(path).startswith("algorithms")], ids=name_of)
def test_an_algorithm_imports_neither_data_nor_engines(path):
    source.check_imports(path, *source.NOT_FOR_ALGORITHMS)


def test_engines_do_not_import_algorithms():
    for path in FILES:
        if name_of(path).partition("/")[0] == "engines":
            source.check_imports(path, *source.NOT_FOR_ENGINES)


def test_nothing_but_the_contract_suite_imports_it():
    for path in FILES:
        if name_of(path).partition("/")[0] != "testing":
            source.check_imports(path, "corymb.testing")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_runs_what_it_reads_or_touches_a_global_generator(path):
    source.check_safe(path)


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "save = torch.save",
        "yaml.load(text)",
        "torch.manual_seed(0)",
        "np.random.seed(0)",
        "numpy.random.rand(3)",
        "np.random.default_rng()",
        "torch.randn(3)",
        "torch.randint_like(x, 3)",
        "x.uniform_()",
        "torch.bernoulli(p)",
        "from torch import rand",
    ],
)
def test_the_check_of_the_source_can_fail(line):
    assert source.faults(ast.parse(line))


@pytest.mark.parametrize("line", ["module.eval()", "torch.Generator().manual_seed(3)", "np.random.default_rng(seed)"])
def test_the_check_of_the_source_can_pass(line):
    assert not source.faults(ast.parse(line))
