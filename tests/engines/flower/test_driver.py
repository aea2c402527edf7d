"""The grid of a run that this process started, if Flower ends the run or it is used after it was closed."""

import logging
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra [flower] is not installed")

from corymb.engines.flower import driver
from corymb.engines.flower.grid import GridChanged
from corymb.engines.flower.private import Link


class Task:
    """A run of a federation of one node."""

    def __init__(self, number):
        self.run_id, self.lost, self.finished = number, threading.Event(), []
        self.grid = SimpleNamespace(get_node_ids=lambda: [7])

    def finish(self, problem=""):
        self.finished.append(problem)


@pytest.fixture
def tasks(monkeypatch):
    """The runs that were started."""
    started = []
    monkeypatch.setattr(driver, "_take_run", lambda link: started.append(Task(len(started))) or started[-1])
    return started


def test_a_run_that_flower_abandons_is_replaced_with_a_warning(tasks, caplog):
    grid = driver.RunGrid(Link("127.0.0.1:1"))
    assert grid.get_node_ids() == [7]
    tasks[0].lost.set()
    with pytest.raises(GridChanged):
        grid.get_node_ids()
    assert grid.get_node_ids() == [7]
    assert [task.finished for task in tasks] == [["given up"], []]
    assert "Flower has ended its run 0: going on in a new one" in caplog.text


def test_a_grid_that_is_used_after_it_was_closed_starts_a_run_without_a_word_and_closes_it_once(tasks, caplog):
    caplog.set_level(logging.INFO)
    grid = driver.RunGrid(Link("127.0.0.1:1"))
    grid.close()
    with pytest.raises(GridChanged):
        grid.get_node_ids()
    assert grid.get_node_ids() == [7]
    grid.close()
    grid.close()
    assert [task.finished for task in tasks] == [[""], [""]]
    assert not caplog.records
