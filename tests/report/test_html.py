import base64
import hashlib
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from corymb.cli.app import main
from corymb.evaluate import ByClient
from corymb.report import html as report
from corymb.report.html import options_whole, write_report
from corymb.report.sections import tabs
from corymb.settings import InvalidInput
from tests.report.reported import HARMFUL, Page, runs


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_report(runs(), tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def page(written):
    return Page(written.read_text(encoding="utf-8"))


def test_the_page_asks_the_network_for_nothing(written, page):
    for tag, attributes in page.elements:
        assert "src" not in attributes, tag
        assert attributes.get("href", "#").startswith(("#", "data:")), tag
        assert not any(name.startswith("on") for name in attributes), tag
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "http" not in policy
    style = report._template("report.css")
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
        run.snapshot, labels=labels, models={"w": torch.zeros(k, 3)}, notes={"k": 1}
    )  # fmt: skip
    history = [{**run.history[0], "clock": t, "stage": "", "moves": moves} for t in range(300)]
    names = tuple(f"{number:060}" for number in range(n))
    losses, scores = torch.from_numpy(rng.random((n, k)) + 0.1), torch.from_numpy(rng.random(n))
    by_client = {name: ByClient(scores, scores) for name in run.by_client}
    large = replace(
        run, snapshot=snapshot, names=names, history=history, losses=losses, scores=scores, by_client=by_client
    )
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
    assert ids >= {*tabs(), *(f"tab-{name}" for name in tabs()), "verdict", "theme", "client-table"}
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
    for wanted in ("Rejected clients", "How to reproduce", "Settings", "versions.torch", "seed", "Side by side"):
        assert wanted in texts, wanted


def test_client_names_are_escaped_everywhere(page):
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


def test_the_format_is_that_of_the_ending(tmp_path):
    with pytest.raises(InvalidInput, match="html, md, csv, png"):
        write_report(runs(), tmp_path / "a.pdf")
    with pytest.raises(InvalidInput, match="is a folder"):
        write_report(runs(), tmp_path)
    with pytest.raises(InvalidInput, match="at least one"):
        write_report([])


@pytest.mark.parametrize(("module", "format"), [("plotly.offline", "html"), ("pandas", "csv"), ("matplotlib", "png")])
def test_missing_dependencies_are_named(module, format, tmp_path, monkeypatch):
    report._plotly.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInput, match=re.escape("corymb[report]")):
        write_report(runs(), tmp_path / f"a.{format}")


def test_the_command_writes_into_the_first_run(tmp_path, capsys):
    folders = [str(run.save(tmp_path / str(place))) for place, run in enumerate(runs()[:2])]
    assert main(["report", *folders]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "0" / "report.html")
    again = f"corymb run data.safetensors ifca --config {tmp_path / '0' / 'config.toml'}"
    assert again in (tmp_path / "0" / "report.html").read_text("utf-8")
    assert main(["report", folders[0], "--format", "md", "--out", str(tmp_path / "new" / "x.txt")]) == 0
    assert (tmp_path / "new" / "x.txt").read_text("utf-8").startswith("# IFCA on")


@pytest.mark.parametrize("arguments", [[], ["nowhere"]])
def test_without_a_run_there_is_no_report(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_options_are_kept_on_one_line():
    text = options_whole("With --saving.stable_rounds 3 (--format csv), a--b <i> stays.")
    assert text == (
        'With <span class="option">--saving.stable_rounds</span> 3 (<span class="option">--format</span> csv), '
        "a--b &lt;i&gt; stays."
    )
