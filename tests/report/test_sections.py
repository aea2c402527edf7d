import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from corymb.algorithms.catalogue import CATALOGUE
from corymb.core.federation import Ledger
from corymb.evaluate import ByClient
from corymb.report import sections
from corymb.report.figures import drawing
from corymb.report.html import as_json, write_report
from corymb.report.sections import clusters, figures, fill, tabs
from corymb.report.sections.clients import client_table
from corymb.report.sections.clients.little_data import little_data
from corymb.report.sections.clients.rejected import MOST_ROWS, rejected, rejections
from corymb.report.sections.communication.savings import saving_text
from tests.report.reported import HARMFUL, Page, examples_run, noted, runs, soft_run

EVIDENCE = {
    "k": 2,
    "evidence": "2 clusters: ...",
    "gain": 0.3,
    "gain_error": 0.05,
    "gain_p": 1e-5,
    "gain_by_cluster": [0.2, 0.4],
    "gain_error_by_cluster": [0.1, 0.2],
    "gain_p_by_cluster": [0.01, 0.02],
    "clients_by_cluster": [5, 7],
    "nearest_pair": {"mean": 0.1, "error": 0.01, "p": 1e-6, "size": 0.12, "clients": 12, "worse": 0.9},
    "doubtful_pair": None,
}


def test_the_notes_of_algorithms_are_drawn():
    run = runs()[0]
    threshold = {"distance_counts": [3, 0, 2], "distance_edges": [0.0, 1, 2, 3], "threshold": 1.5, "gap": 3.0}
    drawn = figures([noted(run, **threshold, chance=1.2)])
    histogram = next(figure for figure in drawn if figure.name == "distances")
    assert histogram.data[0]["y"] == [3, 0, 2]
    assert "3.00×" in histogram.caption
    drawn = figures([noted(run, **EVIDENCE)])
    figure = next(figure for figure in drawn if figure.name == "evidence")
    assert figure.data[0]["x"] == [0.2, 0.4, 0.3]
    assert figure.data[0]["error_x"]["array"] == [0.1, 0.2, 0.05]
    assert figure.data[0]["y"][-1] == "all clients"
    assert "sharing a model would make the loss 12% larger" in figure.caption
    assert "most doubtful" not in figure.caption
    assert figure.caption.startswith("2 clusters: ...")


def test_clients_that_gave_no_losses_are_left_out():
    run = runs()[0]
    losses = run.losses.clone()
    losses[3] = float("nan")
    drawn = {figure.name: figure for figure in figures([replace(run, losses=losses)])}
    assert sum(len(trace["x"]) for trace in drawn["map"].data) == len(run.names) - 1
    json.loads(as_json([figure._asdict() for figure in drawn.values()]))


def test_a_client_that_is_rejected_is_listed_once_a_reason():
    entries = [{"clock": clock, "client": HARMFUL[0], "reason": "not finite"} for clock in (0, 1)]
    run = replace(runs()[0], ledger=Ledger(rejected=entries))
    assert rejections(run) == [{"client": HARMFUL[0], "reason": "not finite", "replies": "2", "rounds": "1 to 2"}]


def test_reasons_that_differ_in_numbers_only_share_a_row():
    last = runs()[0].history[-1]["clock"]
    entries = [
        {"clock": clock, "client": "a", "reason": f"update is {times} times as long as is usual"}
        for clock, times in ((0, "5.2e+10"), (1, "37"), (last, "4.1e+09"))  # the last one in the final evaluation
    ]
    (row,) = rejections(replace(runs()[0], ledger=Ledger(rejected=entries)))
    assert row["reason"] == "update is 4.1e+09 times as long as is usual (the last time)"
    assert (row["replies"], row["rounds"]) == ("3", f"1 to {last}")


def figure_of(run, name):
    return next(figure for figure in figures([run]) if figure.name == name)


def test_losses_are_drawn_at_the_rounds_they_were_measured_in():
    run = runs()[0]
    losses = [None, 0.9, None, 0.5]
    rows = [{**row, "stage": "", "train_loss": loss} for row, loss in zip(run.history, losses, strict=False)]
    plain = replace(run, history=rows, snapshot=replace(run.snapshot, notes={}))
    assert [trace["x"] for trace in figure_of(plain, "training").data] == [[2, 4]]
    stages = ["first", "restart-1", "restart-2", "scored-2"]
    rows = [{**row, "stage": stage, "train_loss": 1.0} for row, stage in zip(run.history, stages, strict=False)]
    kept = replace(run, history=rows, snapshot=replace(run.snapshot, notes={"best_restart": 2}))
    assert sorted(trace["x"] for trace in figure_of(kept, "training").data) == [[1], [2], [2]]


def test_clients_without_a_cluster_have_no_name_in_the_map():
    run = runs()[0]
    labels = run.snapshot.labels.clone()
    labels[:3] = -1
    figure = figure_of(replace(run, snapshot=replace(run.snapshot, labels=labels)), "map")
    assert {note["text"] for note in figure.layout["annotations"]} == {"cluster 0", "cluster 1"}
    assert figure.caption.endswith(" Grey marks have no cluster.")
    assert "Grey" not in figure_of(run, "map").caption
    nobody = replace(run, snapshot=replace(run.snapshot, labels=torch.full_like(labels, -1)))
    assert figure_of(nobody, "map").layout["annotations"] == []


def test_bars_of_clients_without_a_cluster_are_explained():
    run = runs()[0]
    moves = {str(place): 0 for place in range(6)}
    rows = [{**row, "stage": "", "moves": moves if t == 0 else {}} for t, row in enumerate(run.history[:3])]
    partly = replace(run, history=rows, snapshot=replace(run.snapshot, notes={}))
    assert figure_of(partly, "movement").caption.endswith(" Grey: clients without a cluster.")
    assert "Grey" not in figure_of(run, "movement").caption


@pytest.mark.parametrize("place", [1, 2])
def test_clients_of_a_run_without_clusters_are_drawn_together(place):
    figure = figure_of(runs()[place], "by-cluster")
    assert figure.title == "Test accuracy of each client"
    assert [(trace["name"], len(trace["x"])) for trace in figure.data] == [("all clients", 12)]
    assert not [c for filled in fill([runs()[place]]) for c in filled.contents if c.title == "Test scores by cluster"]


def test_small_values_are_not_rounded_away():
    run = runs()[0]
    values = torch.linspace(1e-7, 9e-7, 12).double()
    small = replace(run, by_client={**run.by_client, "accuracy": ByClient(values, values)})
    drawn = sorted(x for trace in figure_of(small, "by-cluster").data for x in trace["x"])
    assert drawn == pytest.approx(values.tolist(), rel=1e-4)


def test_a_private_run_is_not_told_to_send_settled_clients_one_model():
    run = runs()[0]
    models = saving_text(run)
    assert "--saving.stable_rounds" in models
    private = replace(run, config={**run.config, "privacy": {"noise": 1.0}})
    assert saving_text(private) == models.partition(" With")[0]


def test_clients_with_little_data_are_reported_with_notes(tmp_path):
    run = runs()[0]
    schema = run.schema._replace(clients={"one_class": 2}, notes=(f"client {HARMFUL[0]!r} is odd",))
    told = replace(run, schema=schema)
    assert [row["value"] for row in little_data([told]).rows] == ["2", schema.notes[0]]
    assert little_data([replace(run, schema=run.schema._replace(clients={}, notes=()))]) is None
    assert HARMFUL[0] not in write_report(told, tmp_path / "a.html").read_text()  # escaped


def test_a_run_in_which_nobody_knows_all_losses_or_shares_has_a_page(tmp_path):
    run = soft_run()
    losses = run.losses.clone()
    losses[:, 0] = float("nan")
    unknown = replace(run, losses=losses, snapshot=replace(run.snapshot, shares=torch.zeros(12, 2)))
    drawn = {figure.name for figure in figures([unknown])}
    assert not drawn & {"map", "losses", "margins", "memberships"}
    write_report(unknown, tmp_path / "a.html")
    write_report(unknown, tmp_path / "a.png")


def test_notes_are_shown_with_their_meaning():
    (table,) = (
        c for c in fill([noted(runs()[0], unused_models=1)]) for c in c.contents if c.title.startswith("Final notes")
    )
    rows = {row["note"]: row for row in table.rows}
    assert rows["unused_models"]["value"] == "1"
    assert rows["unused_models"]["meaning"] == CATALOGUE["ifca"].notes["unused_models"].meaning
    assert "collapse" not in rows


NEW_SECTION = """
from corymb.report.content import Section, Table


def seeds(runs):
    return Table("seeds", "Seeds of all runs", [{"run": str(i), "seed": str(run.seed)} for i, run in enumerate(runs)])


SECTION = Section(order=15, show=seeds)
"""


def test_a_new_section_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "seeds.py").write_text(NEW_SECTION)
    before = Page(write_report(runs(), tmp_path / "before.html").read_text("utf-8"))
    monkeypatch.setattr(clusters, "__path__", [*clusters.__path__, str(tmp_path)])
    after = Page(write_report(runs(), tmp_path / "after.html").read_text("utf-8"))
    assert "Seeds of all runs" not in before.texts
    titles = [text for text in after.texts if text in ("How clients moved", "Seeds of all runs", "Map of clients")]
    assert titles == ["How clients moved", "Seeds of all runs", "Map of clients"]
    assert "### Seeds of all runs" in write_report(runs(), tmp_path / "after.md").read_text("utf-8")


def test_names_of_contents_are_unique():
    found = [content.name for filled in fill(runs()) for content in filled.contents if hasattr(content, "name")]
    assert len(found) == len(set(found))


def test_figures_of_many_clients_say_how_many_they_show(monkeypatch):
    run, whole = runs()[0], {figure.name: figure.caption for figure in figures(runs())}
    for name in ("map", "losses", "by-cluster", "margins"):
        assert "are shown" not in whole[name]
    monkeypatch.setattr(drawing, "MOST_CLIENTS", 6)
    monkeypatch.setattr(drawing, "FEWEST", 2)
    drawn = {figure.name: figure for figure in figures([run])}
    for name in ("map", "losses", "by-cluster", "margins"):
        assert drawn[name].caption.endswith(" 6 of 12 clients are shown; the CSV report (--format csv) has all."), name
    for name in ("map", "by-cluster", "margins"):
        assert sum(len(trace["x"]) for trace in drawn[name].data) == 6


def test_names_of_large_clusters_have_room_beside_the_river():
    def room(run):
        figure = next(figure for figure in figures([run]) if figure.name == "movement")
        longest = max(figure.layout["annotations"], key=lambda note: len(note["text"]))["text"]
        return longest, figure.layout["margin"]["r"]

    run, many = runs()[0], 12_000
    assert room(run)[0] == "cluster 0, 6"
    moves = {str(place): place % 2 for place in range(many)}
    history = [{**row, "moves": moves if t == 0 else {}, "stage": ""} for t, row in enumerate(run.history[:3])]
    snapshot = replace(run.snapshot, labels=torch.arange(many) % 2, notes={})
    names = tuple(map(str, range(many)))
    large = replace(run, names=names, history=history, snapshot=snapshot, losses=None, metrics={})
    text, margin = room(large)
    assert text == "cluster 0, 6,000"
    assert margin > room(run)[1]


def crowded(k=40, each=5):
    """A run with so many clusters that their names do not fit into figures of the usual size."""
    run, n = runs()[0], 40 * each
    rng = np.random.default_rng(0)
    labels = torch.arange(n) % k
    moves = dict(zip(map(str, range(n)), labels.tolist(), strict=True))
    history = [{**row, "moves": moves if t == 0 else {}, "stage": ""} for t, row in enumerate(run.history[:3])]
    snapshot = replace(run.snapshot, labels=labels, models={"w": torch.zeros(k, 3)}, notes={})
    losses, scores = torch.from_numpy(rng.random((n, k)) + 0.1), torch.from_numpy(rng.random(n))
    by_client = {name: ByClient(scores, scores) for name in run.by_client}
    names = tuple(f"site-{place}" for place in range(n))
    return replace(
        run, snapshot=snapshot, names=names, history=history, losses=losses, scores=scores, by_client=by_client
    )


def test_many_clusters_have_narrow_rows_and_only_names_with_room():
    few, many = ({figure.name: figure for figure in figures([run])} for run in (runs()[0], crowded()))
    for name in ("sizes", "losses", "by-cluster", "margins", "map"):
        assert (few[name].wide, many[name].wide) == (False, True), name
        assert many[name].layout["height"] < 1000, name
    river = [note["y"] for note in many["movement"].layout["annotations"]]
    assert len(river) == 40
    pixels = many["movement"].layout["height"] - 80
    low, high = many["movement"].layout["yaxis"]["range"]
    assert min(np.diff(river)) * pixels / (low - high) > 12
    assert 5 < len(many["map"].layout["annotations"]) < 40
    assert "have no room" in many["map"].caption
    assert "have no room" not in few["map"].caption


@pytest.mark.parametrize(("trivial", "lines", "anchor"), [(0.1, 1, "left"), (1.2, 1, "right"), (40.0, 0, None)])
def test_the_trivial_score_is_named_within_the_figure_of_quality(trivial, lines, anchor):
    run = runs()[0]
    metrics = {"test_log_loss": 0.5, "worst_decile_log_loss": 0.9, "trivial_log_loss": trivial}
    (figure,) = (
        figure
        for figure in figures([replace(run, metrics=metrics, config={**run.config, "metric": "log_loss"})])
        if figure.name == "quality"
    )
    assert len(figure.layout.get("shapes", ())) == lines
    assert [note["xanchor"] for note in figure.layout.get("annotations", ())] == [anchor] * lines
    assert lines or "Off the scale: always giving every class its share of all examples, 40." in figure.caption
    assert figure.layout["xaxis"]["title"]["text"] == "test log loss"


@pytest.mark.parametrize(
    ("size", "unit", "drawn"), [(0, "bytes", 0), (900, "bytes", 900), (4_200, "kB", 4.2), (3e9, "GB", 3)]
)
def test_bytes_are_drawn_in_a_unit_of_their_size(size, unit, drawn):
    run = runs()[0]
    rows = [{**row, "bytes_down": size, "bytes_up": 0} for row in run.history]
    (figure,) = (figure for figure in figures([replace(run, history=rows)]) if figure.name == "traffic")
    assert figure.layout["yaxis"]["title"]["text"] == unit
    assert figure.data[0]["y"][0] == drawn


def test_every_cluster_is_in_a_sample_of_clients():
    labels = np.repeat([0, 1, 2], [9_000, 2, 998])
    chosen = drawing.spread(np.arange(10_000), labels, 3)
    assert set(labels[chosen]) == {0, 1, 2}
    assert len(chosen) <= drawing.MOST_CLIENTS + 3
    own = np.arange(10_000)
    assert len(drawing.spread(own, own, 10_000)) == 1  # as many clusters as clients do not fit


def test_a_box_of_a_sample_has_both_ends(monkeypatch):
    monkeypatch.setattr(drawing, "MOST_CLIENTS", 4)
    monkeypatch.setattr(drawing, "FEWEST", 2)
    run = runs()[0]
    values = np.arange(12.0)[::-1]
    for label, plot in zip(run.sizes, drawing.boxes(run, values, percent=False), strict=True):
        mine = values[run.snapshot.labels.numpy() == label]
        assert (plot["x"][0], plot["x"][-1]) == (mine.min(), mine.max())
        assert len(plot["x"]) == 2


def test_a_table_of_some_clients_says_where_all_are(monkeypatch):
    assert client_table.client_table(runs()).note == ""
    monkeypatch.setattr(client_table, "MOST_ROWS", 5)
    table = client_table.client_table(runs())
    assert len(table.rows) == 5
    assert table.title == "The first 5 of 12 clients"
    assert table.note == "Search and download are of these; the CSV report (--format csv) has all."


def test_rejected_clients_beyond_the_table_are_counted(tmp_path):
    entries = [{"clock": 1, "client": f"c{i:04}", "reason": "not finite"} for i in range(1_234)]
    run = replace(runs()[0], ledger=Ledger(rejected=entries))
    table = rejected([run])
    assert len(table.rows) == MOST_ROWS
    assert table.note == "200 of 1,234 rows are shown; run.rejected, in Python, has every reply."
    saved = rejected([replace(run, folder=tmp_path)])
    assert saved.note.endswith(" So has audit.jsonl in the run's folder.")
    assert rejected([replace(run, ledger=Ledger(rejected=entries[:MOST_ROWS]))]).note == ""
    for name in ("report.html", "report.md"):
        assert "200 of 1,234 rows are shown" in write_report(run, tmp_path / name).read_text(encoding="utf-8")


def test_sections_of_a_tab_have_orders_of_their_own():
    for tab in tabs():
        orders = [section.order for section in sections.sections(tab)]
        assert len(orders) == len(set(orders)), tab


def test_soft_memberships_are_drawn_where_there_are_any():
    drawn = {figure.name: figure for figure in figures([soft_run()])}
    columns = zip(*(trace["y"] for trace in drawn["memberships"].data), strict=True)
    assert all(sum(column) == pytest.approx(1, abs=1e-3) for column in columns)
    assert len(drawn["memberships"].data[0]["x"]) == len(soft_run().names)
    assert "memberships" not in {figure.name for figure in figures(runs())}


def test_clients_without_shares_are_left_out_of_the_memberships():
    run = soft_run()
    shares = torch.cat([run.snapshot.shares[:-1], torch.zeros(1, 2)])
    partial = replace(run, snapshot=replace(run.snapshot, shares=shares))
    (figure,) = (figure for figure in figures([partial]) if figure.name == "memberships")
    assert len(figure.data[0]["x"]) == len(run.names) - 1
    assert "11 of 12 clients are shown" in figure.caption


@pytest.mark.parametrize(("trivial", "lines"), [(0.4, 1), (40.0, 0)])
def test_the_trivial_score_is_drawn_by_round_unless_it_would_flatten_the_rest(trivial, lines):
    run = runs()[0]
    rounds = [
        {**row, "stage": "", "metrics": {"test_log_loss": 0.5 - t / 20, "worst_decile_log_loss": 0.9 - t / 20}}
        for t, row in enumerate(run.history[:4])
    ]
    config = {**run.config, "metric": "log_loss"}
    metrics = {**run.metrics, "trivial_log_loss": trivial}
    noted_none = replace(run.snapshot, notes={})
    (figure,) = (
        figure
        for figure in figures([replace(run, history=rounds, config=config, metrics=metrics, snapshot=noted_none)])
        if figure.name == "course"
    )
    assert len(figure.layout["shapes"]) == lines
    assert ("Dotted: always" in figure.caption) == bool(lines)
    assert lines or "Off the scale: always giving every class its share of all examples, 40." in figure.caption


def test_clusters_of_examples_have_a_map_and_what_they_look_like():
    run = examples_run()
    drawn = {figure.name: figure for figure in figures([run])}
    assert drawn["sizes"].title == "Examples in each cluster"
    assert sum(drawn["sizes"].data[0]["x"]) == sum(run.points)
    assert len(drawn["drawn-map"].data) == run.clusters
    assert "No client's example is shown" in drawn["drawn-map"].caption
    assert drawn["stability"].title.startswith("Examples that changed")
    assert {"movement", "map", "by-cluster"}.isdisjoint(drawn)
    table = next(content for content in clusters_of(run) if content.name == "drawn")
    assert [str(row["cluster"]) for row in table.rows] == [str(j) for j, size in enumerate(run.points) if size]
    assert len(table.rows[0]) == 4
    pictures = {figure.name: figure for figure in figures([examples_run(pictures=True)])}
    assert pictures["drawn"].layout["images"][0]["source"].startswith("data:image/png;base64,")


def clusters_of(run):
    return next(filled.contents for filled in fill([run]) if filled.tab is clusters.TAB)


def test_the_page_of_clusters_of_examples_says_so(tmp_path):
    run = examples_run()
    text = write_report(run, tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    words = " ".join(" ".join(page.texts).split())
    assert f"clusters among {sum(run.points)} examples of 4 clients" in words
    assert "No client changed cluster" not in words
    assert "add a kfed run to the report" in words
    assert "<script>alert(1)" not in text
    for ending in ("md", "csv", "png"):
        assert write_report(run, tmp_path / f"page.{ending}").stat().st_size > 100
    assert "| cluster | examples | share |" in (tmp_path / "page.md").read_text(encoding="utf-8")
