from corymb.cli import demo


def test_the_demo_prints_a_row_for_each_algorithm_and_writes_a_report(capsys, tmp_path):
    rows = [demo.DemoRun(row.title, row.algorithm, _quick(row)) for row in demo.ROWS]
    demo.main(rows, parent=tmp_path)
    printed = capsys.readouterr().out
    assert all(row.title in printed for row in demo.ROWS)
    assert "accuracy" in printed
    assert str(tmp_path / "demo-1" / "report.html") in printed.replace("\n", "")
    assert b"oracle" in (tmp_path / "demo-1" / "report.html").read_bytes()


def _quick(row):
    if row.algorithm == "oracle":
        return {"inner": {"rounds": 1}}
    return {**row.settings, "rounds": 1} | ({"restarts": 1} if "restarts" in row.settings else {})
