import base64
import hashlib
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from corymb.cli.app import main
from corymb.core.federation import Ledger
from corymb.report import facts as report_facts
from corymb.report import html as report
from corymb.report.facts import Moment, kept_rounds, moments, savings
from corymb.report.figures import figures
from corymb.report.figures.river import MOST_STOPS, river, stops
from corymb.report.html import TABS, write_report
from corymb.report.words import titles_of, verdict, warnings_of
from corymb.settings import InvalidInput
from tests.report.reported import HARMFUL, people, runs, saving_run


class Page(HTMLParser):
    """The elements, attributes and texts of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.scripts, self._inside = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        (self.scripts if self._inside == "script" else self.texts).append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_report(runs(), tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def page(written):
    return Page(written.read_text(encoding="utf-8"))


def noted(run, **notes):
    return replace(run, snapshot=replace(run.snapshot, notes={**run.snapshot.notes, **notes}))


# ---- the page


def test_the_page_asks_the_network_for_nothing(written, page):
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        assert attributes.get("href", "#").startswith(("#", "data:")), tag
        assert not any(name.startswith("on") for name in attributes), tag
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "http" not in policy
    style = report._part("report.css")
    assert "url(" not in style
    assert "@import" not in style


def test_the_page_is_under_six_megabytes(written):
    assert written.stat().st_size < 6_000_000


def test_a_large_run_makes_no_large_page(tmp_path):
    n, k = 3000, 20
    rng, run = np.random.default_rng(0), runs()[0]
    labels = torch.from_numpy(rng.integers(0, k, n))
    moves = dict(zip(map(str, range(n)), labels.tolist(), strict=True))
    snapshot = replace(
        run.snapshot, labels=labels, models={"w": torch.zeros(k, 3)}, notes={"silhouette_by_k": {}}
    )  # fmt: skip
    history = [{**run.history[0], "clock": t, "stage": "", "moves": moves} for t in range(300)]
    names = tuple(f"{number:060}" for number in range(n))
    losses, scores = torch.from_numpy(rng.random((n, k)) + 0.1), torch.from_numpy(rng.random(n))
    large = replace(run, snapshot=snapshot, names=names, history=history, losses=losses, scores=scores)
    assert write_report(large, tmp_path / "a.html").stat().st_size < 6_000_000


def test_only_the_scripts_of_the_page_may_run(page):
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    kinds = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    assert kinds == ["application/json", None, None]
    for script in page.scripts[1:]:
        code = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{code}'" in policy


def test_all_parts_are_there(page):
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert ids >= {*TABS, *(f"tab-{name}" for name in TABS), "verdict", "theme", "client-table"}
    names = [
        "sizes",
        "quality",
        "movement",
        "map",
        "losses",
        "by-cluster",
        "training",
        "stability",
        "margins",
        "traffic",
    ]
    assert ids >= {f"plot-{name}" for name in names}
    texts = " ".join(page.texts)
    for wanted in ("Rejected clients", "To make it again", "Settings", "versions.torch", "seed", "Side by side"):
        assert wanted in texts, wanted


def test_clients_names_are_text_wherever_they_stand(page):
    texts, values = set(page.texts), json.loads(page.scripts[0])
    for name in HARMFUL:
        assert name in texts, name
    drawn = {text for trace in values["map"]["data"] for text in trace["text"]}
    assert any(text.startswith("&lt;script&gt;alert(1)&lt;/script&gt;") for text in drawn)
    assert not any("<script" in text or "<b>" in text for text in drawn)
    assert "img" not in {tag for tag, _ in page.elements}


def test_no_text_ends_the_script_it_stands_in():
    text = report.as_json({"</script>": "<!-- & \u2028"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"</script>": "<!-- & \u2028"}


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_baseline_alone_has_a_report_too(place, tmp_path):
    text = write_report(runs()[place], tmp_path / "a.html").read_text(encoding="utf-8")
    assert "Overview" in Page(text).texts


def test_what_algorithms_leave_in_their_notes_is_drawn():
    run = runs()[0]
    threshold = {"distance_counts": [3, 0, 2], "distance_edges": [0.0, 1, 2, 3], "threshold": 1.5, "gap": 3.0}
    drawn = figures([noted(run, **threshold, chance=1.2)])
    histogram = next(figure for figure in drawn if figure.name == "distances")
    assert histogram.data[0]["y"] == [3, 0, 2]
    assert "3.00×" in histogram.caption
    drawn = figures([noted(run, silhouette_by_k={"2": 0.9, "3": 0.4}, k=2)])
    assert next(figure for figure in drawn if figure.name == "silhouettes").data[0]["x"] == ["2", "3"]


def test_clients_that_gave_no_losses_are_left_out():
    run = runs()[0]
    losses = run.losses.clone()
    losses[3] = float("nan")
    drawn = {figure.name: figure for figure in figures([replace(run, losses=losses)])}
    assert sum(len(trace["x"]) for trace in drawn["map"].data) == len(run.names) - 1
    json.loads(report.as_json([figure._asdict() for figure in drawn.values()]))


# ---- words


def test_the_verdict_is_three_sentences():
    found, sure, gained = verdict(runs())
    assert found == "IFCA found 2 clusters among 12 clients, each of 6."
    assert sure.startswith("The groups are exactly the known ones, for all clients the next best model")
    assert re.search(
        r"points better than one model for all, .* every client alone and .* in the known groups\.$", gained
    )
    assert "give a run of fedavg" in verdict(runs()[:1])[2]


def test_where_less_is_better_a_smaller_error_is_a_gain():
    error = report_facts.Score("squared_error", True)
    assert error.gain(1.0, 2.0) == "50.0% better than"
    assert error.gain(2.0, 1.0) == "100.0% worse than"
    assert report_facts.Score("accuracy", False).gain(0.9, 0.9) == "the same as"


def test_warnings_name_what_went_wrong():
    run = runs()[0]
    assert warnings_of(run) == []
    rejected = [{"clock": clock, "client": HARMFUL[0], "reason": "not finite"} for clock in (1, 2)]
    bad = replace(run, ledger=Ledger(rejected=rejected), stopped="interrupted")
    rows = [{**row, "notes": {"collapse": {}}} if place == 2 else row for place, row in enumerate(kept_rounds(run))]
    warned = " ".join(warnings_of(replace(noted(bad, best_restart=None), history=rows)))
    assert "interrupted" in warned
    assert "2 replies of 1 clients" in warned
    assert "regrouped in round 3" in warned
    assert report.rejected(bad) == [(HARMFUL[0], "not finite", 2, "1 to 2")]


def test_runs_of_one_kind_are_told_apart():
    ifca, fedavg, *_ = runs()
    assert titles_of([ifca, fedavg, fedavg]) == ["IFCA", "global (FedAvg), run 2", "global (FedAvg), run 3"]


# ---- round by round


def test_the_path_of_labels_ends_at_the_result():
    run = runs()[0]
    path = moments(run)
    assert len(path) == len(kept_rounds(run)) == 8
    assert path[-1].labels.tolist() == run.snapshot.labels.tolist()
    assert moments(replace(run, history=[{"clock": 1, "stage": "", "churn": 1.0}])) == []


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


def test_savings_are_against_all_models_in_every_round():
    assert savings(runs()[0]).share == pytest.approx(0, abs=1e-3)
    assert 0.1 < savings(saving_run()).share < 0.5
    assert savings(runs()[1]) is None
    assert "was saved" in report.saving_text(saving_run())


# ---- other formats, other ways in


def test_markdown_has_the_verdict_and_escapes_names(tmp_path):
    rejected = [{"clock": 1, "client": name, "reason": "not finite"} for name in HARMFUL]
    run = replace(runs()[0], ledger=Ledger(rejected=rejected))
    text = write_report([run, *runs()[1:]], tmp_path / "a.md").read_text(encoding="utf-8")
    assert verdict([run, *runs()[1:]])[0] in text
    assert "<script" not in text
    assert "a\\|b \\*c\\* \\`d\\`" in text


def test_csv_has_a_line_for_each_client_of_each_run(tmp_path):
    import pandas

    table = pandas.read_csv(write_report(runs(), tmp_path / "a.csv"))
    assert len(table) == len(runs()) * len(people())
    first = table[table["run"] == 0]
    assert dict(zip(first["client"], first["cluster"], strict=True)) == runs()[0].labels
    assert first["loss_0"].notna().all()


def test_png_is_a_picture(tmp_path):
    for several in (runs(), runs()[1:2]):
        assert write_report(several, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_format_is_that_of_the_ending(tmp_path):
    with pytest.raises(InvalidInput, match="html, md, csv, png"):
        write_report(runs(), tmp_path / "a.pdf")
    with pytest.raises(InvalidInput, match="is a folder"):
        write_report(runs(), tmp_path)
    with pytest.raises(InvalidInput, match="at least one"):
        write_report([])


@pytest.mark.parametrize(("module", "format"), [("plotly.offline", "html"), ("pandas", "csv"), ("matplotlib", "png")])
def test_what_is_missing_is_named(module, format, tmp_path, monkeypatch):
    report._plotly.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInput, match=re.escape("corymb[report]")):
        write_report(runs(), tmp_path / f"a.{format}")


def test_the_command_writes_into_the_first_run(tmp_path, capsys):
    folders = [str(run.save(tmp_path / str(place))) for place, run in enumerate(runs()[:2])]
    assert main(["report", *folders]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "0" / "report.html")
    assert f"corymb run --config {tmp_path / '0' / 'config.toml'}" in (tmp_path / "0" / "report.html").read_text(
        "utf-8"
    )
    assert main(["report", folders[0], "--format", "md", "--out", str(tmp_path / "new" / "x.txt")]) == 0
    assert (tmp_path / "new" / "x.txt").read_text("utf-8").startswith("# IFCA on")


@pytest.mark.parametrize("arguments", [[], ["nowhere"]])
def test_without_a_run_there_is_no_report(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# ---- notebooks


def test_a_notebook_shows_a_run_and_a_data_set():
    shown, data = Page(runs()[0]._repr_html_()), Page(people()._repr_html_())
    assert "churn " in shown.texts
    assert "script" not in {tag for tag, _ in shown.elements + data.elements}
    assert any(HARMFUL[0] in text for text in data.texts)
