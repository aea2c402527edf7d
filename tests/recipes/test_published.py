"""A paper's figures next to ours."""

import pytest

from corymb.recipes.published import Published, in_sigmas, measures_of, of_seeds, table_of, times_of

FIGURES = [Published("Table 1", "mnist", "ifca", 94.2, 0.3), Published("Table 1", "mnist", "global", 86.7)]
RESULTS = {
    "mnist/ifca/0": {"accuracy": 94.0, "seconds": 2.0, "device": "CPU"},
    "mnist/ifca/1": {"accuracy": 95.0, "seconds": 3.0, "device": "CPU"},
    "mnist/ifca-plain/0": {"accuracy": 1.0},
}


def test_seeds_of_one_method_are_taken_together():
    assert of_seeds(RESULTS, "mnist", "ifca") == [94.0, 95.0]
    assert of_seeds(RESULTS, "mnist", "global") == []


def test_a_table_has_both_figures_and_their_difference():
    lines = list(table_of(FIGURES, RESULTS))
    assert "| mnist | ifca | 94.20 ± 0.30 | 94.50 ± 0.71 (2) | +0.30 | +0.4 |" in lines
    assert "| mnist | global | 86.70 | not run | – | – |" in lines
    assert in_sigmas([94.0], FIGURES[0]) is None
    assert in_sigmas([86.0, 87.0], FIGURES[1]) is not None


def test_measures_are_of_what_has_been_run():
    found = measures_of(FIGURES, RESULTS)
    assert found["mnist.ifca.least_above"] == pytest.approx(-0.2)
    assert found["mnist.ifca.seeds"] == 2
    assert not any(name.startswith("mnist.global") for name in found)


def test_times_are_reported_by_machine():
    assert "| mnist | CPU | 2 | 5 |" in list(times_of(RESULTS))
