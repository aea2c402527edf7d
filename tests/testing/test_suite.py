"""The suite for users' algorithms and engines: it passes correct ones and names the law that a wrong one breaks."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import corymb
from corymb.algorithms.parts.restarts import Restarts
from corymb.algorithms.parts.then import Then
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot, packages_of
from corymb.engines import LoopEngine
from corymb.local import Descent, descend, losses, one_hot, serve_assigned
from corymb.testing import check_algorithm, check_engine
from corymb.testing.engines import wired
from corymb.trees import Params, count, take


@on_client
def choose_and_train(client: Client, models: Params, *, how: Descent) -> Share[tuple[()]]:
    label = losses(client, models).argmin()
    return Share(descend(client, take(models, label), how), one_hot(label, count(models)), label)


@on_client
def count_calls(client: Client) -> torch.Tensor:
    calls = client.memory.get("calls", torch.tensor(0.0)) + 1.5
    client.memory.set("calls", calls)
    return calls


@dataclass(frozen=True, kw_only=True)
class Own:
    """An algorithm from outside the package, with something wrong in it where asked for."""

    k: int = 2
    rounds: int = 3
    wrong: str = ""
    serve = serve_assigned

    @property
    def keeps_memory(self) -> bool:
        return self.wrong == "memory"

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        at = start or Snapshot.fresh(fed, self.k)
        for _ in range(at.round, self.rounds - (self.wrong == "shorter")):
            replies = fed.clients.sum(choose_and_train, at.models, how=Descent(lr=0.05))
            models = replies.value.mean(empty=at.models)
            if self.wrong == "global state":
                CALLS.append(None)
                models = {name: value + 1e-6 * len(CALLS) for name, value in models.items()}
            if self.wrong in ("memory", "memory that nobody is told of"):
                fed.clients.map(count_calls)
            if self.wrong == "in place":
                at.labels.fill_(0)
            yield (at := at.next(models=models, labels=(replies.clients, replies.value.label)))


CALLS: list[None] = []


def test_an_algorithm_of_anybodys_passes():
    check_algorithm(Own())
    check_algorithm(Own(rounds=2, wrong="memory"), learns="classes")


def test_one_of_anybodys_passes_inside_ours():
    check_algorithm(Then(first=corymb.FedAvg(rounds=1), second=Restarts(inner=Own(rounds=1), times=2)))


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        ("shorter", "check_plan"),
        ("global state", "check_same_run|check_looking|check_resume"),
        ("in place", "changed after it was yielded"),
        ("memory that nobody is told of", "clients wrote into their memory, so set keeps_memory = True"),
    ],
)
def test_the_law_that_is_broken_is_named(wrong, law):
    with pytest.raises(AssertionError, match=law):
        check_algorithm(Own(wrong=wrong))


@pytest.mark.parametrize("wrong", ["memory", ""])
def test_remembers_may_be_given_and_must_be_right(wrong):
    check_algorithm(Own(rounds=1, wrong=wrong), remembers=bool(wrong))
    with pytest.raises(AssertionError, match=f"clients {'wrote' if wrong else 'did not write'} into their memory"):
        check_algorithm(Own(rounds=1, wrong=wrong), remembers=not wrong)


def test_our_engines_pass(monkeypatch):
    """With the algorithm that has most to remember; `tests/contracts` holds our engines to every law with all."""
    monkeypatch.setattr("corymb.testing.suite.ALGORITHMS", ("keeper",))
    check_engine(LoopEngine)


@pytest.mark.soak
def test_our_engines_pass_with_all_algorithms():
    check_engine(LoopEngine)


class Forgetful(LoopEngine):
    """Clients that start again with every call."""

    def run(self, call, ids):
        self.host._begin()
        yield from super().run(call, ids)


class Backwards(LoopEngine):
    """Clients in another order."""

    def run(self, call, ids):
        for part in super().run(call, ids):
            yield part._replace(ids=part.ids.flip(0))


@pytest.mark.parametrize(("engine", "law"), [(Forgetful, "check_open"), (Backwards, "check_measures")])
def test_an_engine_that_breaks_a_law_gets_an_error_that_names_it(engine, law):
    with pytest.raises(AssertionError, match=law):
        check_engine(engine)


def test_client_functions_of_other_packages_travel_only_where_they_are_allowed():
    from corymb.testing.cases import Case, run
    from corymb.wire import WireError

    case = Case(Own(rounds=1))
    with pytest.raises(WireError, match="not in a package that may be named"):
        list(run(case, case.federation("wired")))
    assert len(list(run(case, case.federation(wired("tests"))))) == 1


def test_packages_of_an_algorithm_are_found_in_its_modules_imports(tmp_path, monkeypatch):
    """Client functions by name, by module, or next to a function that calls them; not the standard library."""
    function = "from corymb import on_client\n@on_client\ndef {}(client):\n    return client.train.weight.sum()\n"
    (tmp_path / "corymb_fns_a.py").write_text(function.format("weigh"))
    (tmp_path / "corymb_fns_b.py").write_text(function.format("measure"))
    (tmp_path / "corymb_fns_c.py").write_text("import json\n")
    asks = "def ask(fed):\n    return fed.clients.map(count)\n"
    (tmp_path / "corymb_fns_d.py").write_text(function.format("count") + asks)
    lines = "from corymb_fns_a import weigh\nimport json, corymb_fns_b, corymb_fns_c\nfrom typing import Protocol\n"
    lines += "from corymb_fns_d import ask\n"
    (tmp_path / "corymb_fns_own.py").write_text(f"{lines}class Own(Protocol):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("corymb_fns_own")
    assert packages_of(own.Own) == ("corymb_fns_own", "corymb_fns_a", "corymb_fns_b", "corymb_fns_d")
    for name in ("own", "a", "b", "c", "d"):
        del sys.modules[f"corymb_fns_{name}"]
    assert packages_of(Then(first=corymb.FedAvg(), second=Restarts(inner=Own()))) == ("corymb", "tests")


def test_the_server_of_a_check_knows_as_much_of_the_data_as_that_of_a_run():
    from corymb.data.schema import DataSchema
    from corymb.testing.cases import Case

    for learns, classes in (("classes", ("0", "1", "2")), ("line", ())):
        for engine in ("loop", wired("tests")):
            schema = Case(Own(), learns).federation(engine).schema
            assert tuple(schema["classes"]) == classes
            assert DataSchema(**schema).task == ("classification" if classes else "regression")


def test_the_suite_needs_no_test_runner():
    blocked = "import sys\nfor name in ('pytest', 'hypothesis', '_pytest'):\n    sys.modules[name] = None\n"
    code = blocked + "import corymb\nassert 'corymb.testing' not in sys.modules\nimport corymb.testing\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(corymb.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
