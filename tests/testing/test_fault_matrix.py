import pytest

from corymb.testing.fault_matrix import ALGORITHMS, Cell, cells, run_cell

ALL = list(cells())
SOME = ALL[::193]
"""`make faults` has all of them."""


MENDED = [Cell(fault, "moment descent", "vectorised") for fault in ("huge", "large", "one-large")]


@pytest.mark.parametrize("cell", sorted({*SOME, *MENDED}), ids=", ".join)
def test_a_cell_of_the_matrix(cell):
    assert run_cell(cell).problem == ""


def test_every_algorithm_is_in_the_matrix():
    from corymb.algorithms.catalogue import CATALOGUE
    from corymb.testing.cases import CASES

    kinds = {type(CASES[name].algorithm) for name in ALGORITHMS.values()}
    assert {entry.algorithm for entry in CATALOGUE.values()} <= kinds
    assert len(ALL) >= 25 * len(kinds) * 3
