"""The catalogue explains every note of the algorithms, and knows which part of each continues from given models."""

import pytest

from corymb import algorithms
from corymb.algorithms import IFCA, FedX, MomentDescent
from corymb.algorithms.catalogue import CATALOGUE
from corymb.algorithms.parts.then import keeps_memory
from corymb.testing.laws.algorithms import whole
from tests.contracts.cases import CASES

WRAPPERS = {"Restarts", "Then"}
BY_CLASS = {entry.algorithm: entry for entry in CATALOGUE.values()}


def test_every_algorithm_has_an_entry_and_every_name_one_class():
    public = {name for name in algorithms.__all__ if hasattr(getattr(algorithms, name), "run")}
    assert {kind.__name__ for kind in BY_CLASS} == public - WRAPPERS
    assert len(BY_CLASS) == len(CATALOGUE)
    assert len({entry.title for entry in CATALOGUE.values()}) == len(CATALOGUE)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if type(case.algorithm) in BY_CLASS])
def test_every_note_is_explained(name):
    case = CASES[name]
    notes = BY_CLASS[type(case.algorithm)].notes
    found = {note for at in whole(case, "vectorised") for note in at.notes}
    assert found <= set(notes)


def test_notes_that_no_tiny_run_has_are_explained_too():
    assert {"collapse", "repairs", "restart_losses", "gain_by_cluster"} <= set(CATALOGUE["ifca"].notes)
    assert {"gap", "chance", "warning"} <= set(CATALOGUE["sr-fca"].notes)


@pytest.mark.parametrize("name", CASES)
def test_algorithms_with_client_memory_declare_it(name):
    """`Restarts` relies on it. The contracts check with a spy what each case stores."""
    assert keeps_memory(CASES[name].algorithm) == CASES[name].remembers


@pytest.mark.parametrize(
    ("name", "algorithm", "want"),
    [
        ("ifca", IFCA(k=3, restarts=4, init="one-shot"), IFCA(k=3)),
        ("ifca", IFCA(k="auto"), IFCA(k=None)),
        ("moment-descent", MomentDescent(then=FedX(rounds=7)), FedX(rounds=7)),
        ("moment-descent", MomentDescent(then=None), None),
    ],
)
def test_continuing_from_given_models_does_not_search_for_a_start(name, algorithm, want):
    assert CATALOGUE[name].started(algorithm) == want
