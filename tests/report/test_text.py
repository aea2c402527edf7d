from dataclasses import replace

from corymb.core.federation import Ledger
from corymb.report.html import write_report
from corymb.report.words import verdict
from tests.report.reported import HARMFUL, people, runs


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
