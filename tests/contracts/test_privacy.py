"""Nothing crosses the door but what client functions return, and nothing in the library can run what it reads."""

import ast
from pathlib import Path

import pytest
import torch
from torch import Tensor

import corymb
from corymb.core.client import Client, on_client
from corymb.core.driver import drive
from corymb.core.federation import Call, Federation
from corymb.evaluate import evaluate
from corymb.trees import flatten, leaves
from tests.contracts.cases import CASES, TRUTH
from tests.tiny import ENGINES

SOURCE = Path(corymb.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


class Spy:
    """An engine that writes down every call that goes in and every part that comes out."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.calls: list[Call] = []
        self.parts: list = []
        self.kept: list[dict[str, Tensor]] = []

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def run(self, call, ids):
        self.calls.append(call)
        for part in self.engine.run(call, ids):
            self.parts.append(part)
            yield part
        tables = self.engine.host.memory._tables
        self.kept.append({f"{name}/{i}": leaf for name, t in tables.items() for i, leaf in enumerate(leaves(t.values))})


def numbers(tree) -> set[float]:
    """Every float in a tree but whole numbers, which may well be the same by chance."""
    found: set[float] = set()
    for leaf in leaves(tree):
        if leaf.is_floating_point():
            found |= set(leaf[leaf != leaf.round()].tolist())
    return found


@pytest.mark.parametrize(
    ("name", "engine"),
    [(name, engine) for name in CASES for engine in ENGINES if engine == "vectorised" or CASES[name].remembers],
)
def test_neither_examples_nor_memory_cross_the_door(name, engine):
    case = CASES[name]
    fed = case.federation(engine)
    spy = Spy(fed.__dict__["_engine"])
    fed = Federation(spy)
    *_, at = drive(case.algorithm, fed)
    evaluate(fed, case.algorithm, at, truth=torch.tensor(TRUTH))
    data = case.data()
    examples = numbers([data.train.x, data.train.y, data.test.x, data.test.y])
    assert len(examples) > 50
    out = set().union(*(numbers(part.value) for part in spy.parts))
    sent = set().union(*(numbers([call.args, call.options]) for call in spy.calls))
    assert len(out) > 20
    assert not examples & out
    assert not examples & sent
    kept = set().union(*(numbers(tables) for tables in spy.kept))
    assert bool(kept) == case.remembers
    assert bool(kept & out) == case.publishes
    assert case.publishes or not kept & sent


@on_client
def give_away(client: Client):
    client.memory.set("secret", client.train.x.sum() * 3)
    return client.train.x[0], client.memory.get("secret", client.train.x[0, 0])


@pytest.mark.parametrize("engine", ENGINES)
def test_the_spy_sees_what_is_given_away(engine):
    """Else the test above would prove nothing."""
    case = CASES["IFCA"]
    spy = Spy(case.federation(engine).__dict__["_engine"])
    Federation(spy).clients.map(give_away)
    out = numbers(spy.parts[0].value)
    assert out & numbers(case.data().train.x)
    assert out & numbers(spy.kept[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reply_is_all_that_a_part_holds(engine):
    case = CASES["keeper"]
    spy = Spy(case.federation(engine).__dict__["_engine"])
    fed = Federation(spy)
    list(drive(case.algorithm, fed))
    for part, call in zip(spy.parts, spy.calls, strict=True):
        assert type(part)._fields == ("ids", "value", "rejected", "host", "spread", "error")
        names = set(flatten(part.value.total)[1].names) if call.verb == "sum" else set()
        assert names <= set(fed.objective.init(fed.key("any")))


@pytest.mark.parametrize("engine", ENGINES)
def test_no_public_path_leads_from_the_servers_room_to_an_example(engine):
    case = CASES["IFCA"]
    fed = case.federation(engine)
    secret = numbers([case.data().train.x, case.data().test.x])
    replies = fed.clients.map(give_nothing)
    seen, queue = set(), [fed, fed.clients, fed.evaluation(), fed.ledger, replies, fed.objective]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, (str, int, float, type, type(None))):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            assert not numbers(item) & secret
        elif isinstance(item, (list, tuple)):
            queue += item
        elif isinstance(item, dict):
            queue += item.values()
        else:
            public = [name for name in dir(item) if not name.startswith("_")]
            queue += [value for name in public if not callable(value := getattr(item, name))]
    assert len(seen) > 10


@on_client
def give_nothing(client: Client):
    return client.train.weight.sum()


# ---- what the source says


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def within(names: set[str], *packages: str) -> set[str]:
    return {name for name in names if any(name == p or name.startswith(f"{p}.") for p in packages)}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


ALGORITHMS = [path for path in FILES if "algorithms" in path.parts]


@pytest.mark.parametrize("path", ALGORITHMS, ids=name_of)
def test_an_algorithm_imports_neither_data_nor_engines(path):
    assert not within(
        imports(path), "corymb.data", "corymb.engines", "corymb.evaluate", "corymb.runs", "corymb.report", "corymb.cli"
    )


def test_engines_do_not_import_algorithms():
    for path in FILES:
        if "engines" in path.parts:
            assert not within(imports(path), "corymb.algorithms", "corymb.runs", "corymb.data"), path


BANNED_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "random")
BANNED = {
    *("eval", "exec", "yaml.load", "yaml.unsafe_load", "torch.load", "torch.save", "torch.hub.load"),
    *("torch.manual_seed", "torch.seed", "torch.random.manual_seed", "torch.cuda.manual_seed"),
    *("torch.cuda.manual_seed_all", "torch.set_rng_state", "numpy.random.seed", "np.random.seed"),
}
DRAWS = ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like")
NEED_A_GENERATOR = ("normal", "bernoulli", "multinomial", "poisson", "binomial")
IN_PLACE = ("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_")


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def sins(tree: ast.AST) -> list[str]:
    """Calls and imports that could run what is read, or touch a global generator."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and dotted(node) in BANNED:
            found.append(dotted(node))
        if isinstance(node, ast.Attribute) and dotted(node) in {f"torch.{draw}" for draw in DRAWS}:
            found.append(dotted(node))
        if isinstance(node, ast.ImportFrom) and node.module in ("torch", "numpy.random", "yaml"):
            wrong = {"load", "save", "manual_seed", "seed", *DRAWS}
            found += [f"{node.module}.{alias.name}" for alias in node.names if alias.name in wrong]
        if not isinstance(node, ast.Call):
            continue
        name, keywords = dotted(node.func), {keyword.arg for keyword in node.keywords}
        last = name.rpartition(".")[2]
        if name in ("eval", "exec", "__import__"):
            found.append(name)
        if "generator" not in keywords and (name.startswith("torch.") and last in NEED_A_GENERATOR):
            found.append(name)
        if "generator" not in keywords and "." in name and last in IN_PLACE:
            found.append(name)
        seeded = last in ("default_rng", "SeedSequence") and node.args
        if name.startswith(("np.random.", "numpy.random.")) and not seeded:
            found.append(name)
    return found


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_runs_what_it_reads_or_touches_a_global_generator(path):
    assert not within(imports(path), *BANNED_MODULES)
    assert sins(tree_of(path)) == []


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
    assert sins(ast.parse(line))


@pytest.mark.parametrize("line", ["module.eval()", "torch.Generator().manual_seed(3)", "np.random.default_rng(seed)"])
def test_the_check_of_the_source_can_pass(line):
    assert not sins(ast.parse(line))
