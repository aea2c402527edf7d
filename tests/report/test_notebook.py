from tests.report.reported import HARMFUL, Page, people, runs


def test_a_notebook_shows_a_run_and_a_data_set():
    shown, data = Page(runs()[0]._repr_html_()), Page(people()._repr_html_())
    assert "churn " in shown.texts
    assert "script" not in {tag for tag, _ in shown.elements + data.elements}
    assert any(HARMFUL[0] in text for text in data.texts)
