from corymb.experiments import demo


def test_the_demo_prints_a_row_for_each_algorithm(capsys):
    rows = [demo.Entry(row.title, row.algorithm, _quick(row)) for row in demo.ROWS]
    demo.main(rows)
    printed = capsys.readouterr().out
    assert all(row.title in printed for row in demo.ROWS)
    assert "accuracy" in printed


def _quick(row):
    if row.algorithm == "oracle":
        return {"inner": {"rounds": 1}}
    return {**row.settings, "rounds": 1} | ({"restarts": 1} if "restarts" in row.settings else {})
