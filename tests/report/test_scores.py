from dataclasses import replace

import pytest

from corymb.report.scores import Score, score_of
from tests.report.reported import runs


def test_where_less_is_better_a_smaller_error_is_a_gain():
    error = Score("squared_error", True)
    assert error.gain(1.0, 2.0) == "50.0% better than"
    assert error.gain(2.0, 1.0) == "100.0% worse than"
    assert Score("accuracy", False).gain(0.9, 0.9) == "the same as"


@pytest.mark.parametrize(("name", "worst", "lower"), [("rank", 0.9, True), ("rank", 0.1, False)])
def test_a_score_without_its_objective_is_read_from_the_worst_tenth(name, worst, lower):
    run = replace(runs()[0], objective=None, metrics={f"test_{name}": 0.5, f"worst_decile_{name}": worst})
    assert score_of(run) == Score(name, lower)
