from corymb.algorithms import FedAvg
from corymb.cli.summary import print_result
from corymb.runs.fit import fit
from tests.runs import small


def test_who_was_not_scored_is_in_the_summary(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    run = fit(FedAvg(rounds=2), small.out_of_range())
    assert print_result(run, as_json=False) == 0
    assert "1 of 6 clients not scored: client-3" in capsys.readouterr().out
    assert print_result(fit(FedAvg(rounds=2), small.prices()), as_json=False) == 0
    assert "not scored" not in capsys.readouterr().out
