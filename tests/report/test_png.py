from dataclasses import replace

import pytest
import torch

from corymb.report.html import write_report
from tests.report.reported import runs


@pytest.fixture
def panels(tmp_path, monkeypatch):
    """Draws a report's picture and returns its panels by title."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(pyplot, "close", lambda figure: None)

    def draw(*several):
        write_report(several, tmp_path / "a.png")
        figure = pyplot.gcf()
        return {panel.get_title(loc="left"): panel for panel in figure.axes}

    yield draw
    monkeypatch.undo()
    pyplot.close("all")


def texts(panel):
    return [text.get_text() for text in panel.texts]


def test_png_is_a_picture(tmp_path):
    for several in (runs(), runs()[1:2]):
        assert write_report(several, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_losses_that_are_almost_equal_look_so(panels):
    run = runs()[0]
    close = replace(run, losses=torch.where(run.snapshot.labels[:, None] == torch.arange(2), 1.0, 1.01).double())
    (image,) = panels(close)["Loss of every model at every client"].images
    assert image.get_clim() == (0, 3)  # powers of 2, up to 8 times the lowest


def test_runs_without_clusters_have_panels_that_say_so(panels):
    for run in runs()[1:3]:
        drawn = panels(run)
        assert texts(drawn["Clients in each cluster"]) == ["no clusters are known"]
        assert not drawn["Clients in each cluster"].patches
        assert not drawn["Share of clients that changed cluster"].lines
        assert "several models" in texts(drawn["Map of clients"])[0]


def test_names_of_many_clusters_are_small_and_need_no_legend(panels):
    run, k = runs()[0], 20
    labels = torch.arange(k)
    snapshot = replace(run.snapshot, labels=labels, models={"w": torch.zeros(k, 3)}, notes={})
    losses = torch.ones(k, k).double() + 9 * (1 - torch.eye(k).double())
    names = tuple(f"site-{place}" for place in range(k))
    rows = [{**row, "moves": {}, "stage": ""} for row in run.history]
    drawn = panels(replace(run, snapshot=snapshot, losses=losses, names=names, history=rows))
    assert drawn["Map of clients by their losses"].get_legend() is None
    for title in ("Clients in each cluster", "Loss of every model at every client"):
        sizes = {label.get_fontsize() for label in drawn[title].get_yticklabels()}
        assert max(sizes) < 8, title


def test_a_trivial_score_far_away_is_named_and_does_not_squeeze_the_rest(panels):
    run = runs()[0]
    metrics = {"test_log_loss": 0.5, "worst_decile_log_loss": 0.9, "trivial_log_loss": 40.0}
    config = {**run.config, "metric": "log_loss"}
    panel = panels(replace(run, metrics=metrics, config=config))["Quality"]
    assert panel.get_xlim()[1] < 2
    assert "off the scale: trivial baseline, 40" in texts(panel)
    near = panels(replace(run, metrics={**metrics, "trivial_log_loss": 1.0}, config=config))["Quality"]
    assert "trivial baseline" in texts(near)
