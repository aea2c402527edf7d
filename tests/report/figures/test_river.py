import numpy as np
import pytest

from corymb.report.facts import Moment
from corymb.report.figures.river import MOST_STOPS, river, stops


def test_the_river_keeps_every_client():
    rng = np.random.default_rng(0)
    path = [Moment(t, rng.integers(-1, 3, 40)) for t in range(30)]
    drawn = river(path)
    assert len(drawn.rounds) == MOST_STOPS
    assert (drawn.rounds[0], drawn.rounds[-1]) == (0, 29)
    for column in range(MOST_STOPS):
        assert sum(bar.clients for bar in drawn.bars if bar.column == column) == 40
    thick = sum(abs(stream.y[0] - stream.y[-2]) for stream in drawn.streams)
    assert thick == pytest.approx(MOST_STOPS - 1, abs=0.01)


def test_rounds_without_a_move_are_no_stops():
    still = [Moment(t, np.array([0, 1])) for t in range(5)]
    assert [moment.round for moment in stops(still)] == [0, 4]
