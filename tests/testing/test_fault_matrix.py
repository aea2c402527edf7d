import pytest

from corymb.testing.fault_matrix import ALGORITHMS, cells, run_cell

ALL = list(cells())


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, marks=() if place % 97 == 0 else pytest.mark.soak) for place, cell in enumerate(ALL)],
    ids=", ".join,
)
def test_a_cell_of_the_matrix(cell):
    assert run_cell(cell).problem == ""


def test_every_algorithm_is_in_the_matrix():
    from corymb.algorithms.catalogue import CATALOGUE
    from corymb.testing.cases import CASES

    kinds = {type(CASES[name].algorithm) for name in ALGORITHMS.values()}
    assert {entry.algorithm for entry in CATALOGUE.values()} <= kinds
    assert len(ALL) >= 25 * len(kinds) * 3
