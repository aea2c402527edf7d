import json
import re
from dataclasses import replace

from corymb.cli.app import main
from corymb.report.comparison import as_page
from corymb.runs.compare import compare, group
from tests.report.reported import HARMFUL, Page, runs


def test_the_page_has_the_tables_of_the_comparison_and_runs_nothing_else():
    ifca, fedavg, *_ = runs()
    found = compare(group(HARMFUL[0], [ifca]), group(HARMFUL[1], [fedavg]))
    text = as_page(found).decode()
    page = Page(text)
    assert "alert" not in " ".join(str(values) for _, values in page.elements)
    assert len([1 for name, _ in page.elements if name == "script"]) == 3  # values, plotly, the page's own
    assert not [values for _, values in page.elements if values.get("src", "").startswith("http")]
    words = " ".join(" ".join(page.texts).split())
    for delta in found.deltas:
        assert delta.name in words
    assert "Clients by cluster, A against B" in words
    assert "B: cluster 0" in words
    assert f"ARI {found.confusion.ari:.3f}." in words


def test_groups_have_tests_and_runs_with_other_clients_no_clusters():
    ifca, fedavg, *_ = runs()
    sides = [[run, replace(run, snapshot=replace(run.snapshot, seed=1))] for run in (ifca, fedavg)]
    words = " ".join(Page(as_page(compare(group("a", sides[0]), group("b", sides[1]))).decode()).texts)
    assert "p (W)" in words
    assert "A has the better mean test accuracy: A " in words
    assert "Over 2 seeds, the difference has p < 0.0001 by the paired t-test, 0.5 by Wilcoxon's." in words
    assert "Over all seeds the ARI" in words
    other = replace(fedavg, names=tuple(f"other-{name}" for name in fedavg.names))
    words = " ".join(Page(as_page(compare(group("a", [ifca]), group("b", [other]))).decode()).texts)
    assert "the runs have different clients" in words
    assert "Clients by cluster, A against B" not in words


def test_the_command_writes_the_page(tmp_path, capsys):
    for name, run in zip(("ifca", "fedavg"), runs()[:2], strict=True):
        run.save(tmp_path / name)
    line = ["compare", str(tmp_path / "ifca"), str(tmp_path / "fedavg")]
    assert main([*line, "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "new" / "page.html")
    assert re.match("<!doctype html>", (tmp_path / "new" / "page.html").read_text())
    assert main([*line, "--out", str(tmp_path / "page.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == [0]
    assert main([*line, "--out", str(tmp_path / "page.pdf")]) == 2
    assert "use the extension .html" in capsys.readouterr().err
