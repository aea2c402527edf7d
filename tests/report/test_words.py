import re
from dataclasses import replace

import pytest
import torch

from corymb.algorithms import IFCA, FedAvg
from corymb.cli.summary import advice
from corymb.core.federation import Ledger
from corymb.local import Descent
from corymb.report.facts import fit_elsewhere, kept_rounds
from corymb.report.html import key_numbers, write_report
from corymb.report.scores import Score
from corymb.report.sections.overview.side_by_side import side_by_side
from corymb.report.sections.overview.sizes import sizes
from corymb.report.words import (
    ari_of,
    evidence_of,
    titles_of,
    unused_models,
    verdict,
    warnings_of,
)
from corymb.runs.fit import fit
from tests.report.reported import HARMFUL, noted, runs
from tests.runs import small


def test_the_verdict_is_three_sentences():
    found, sure, gained = verdict(runs())
    assert found == "IFCA found 2 clusters among 12 clients, 6 in each."
    assert sure.startswith("The clusters match the true groups exactly, for all clients the loss of the second-best")
    assert re.search(r"points better than one global model, .* local training and .* within the true groups\.$", gained)
    assert "add a fedavg run" in verdict(runs()[:1])[2]


def test_evidence_for_clusters_that_later_rounds_dissolved_says_how_many_are_left():
    run = runs()[0]
    assert evidence_of(run) == ""
    assert evidence_of(noted(run, k=2, evidence="2 clusters: held-out loss 0.1.")) == "2 clusters: held-out loss 0.1."
    sentence = evidence_of(noted(run, k=3, evidence="3 clusters: held-out loss 0.1."))
    assert sentence == "2 clusters at the end; when tested on held-out examples: 3 clusters: held-out loss 0.1."


def test_warnings_name_what_went_wrong():
    run = runs()[0]
    assert warnings_of(run) == []
    rejected = [{"clock": clock, "client": HARMFUL[0], "reason": "not finite"} for clock in (1, 2)]
    bad = replace(run, ledger=Ledger(rejected=rejected), stopped="interrupted")
    rows = [
        {**row, "notes": {"collapse": {"moved": 2}}} if place == 2 else row
        for place, row in enumerate(kept_rounds(run))
    ]
    warned = " ".join(warnings_of(replace(noted(bad, best_restart=None), history=rows)))
    assert "interrupted" in warned
    assert "2 replies from 1 client were" in warned
    assert "regrouped in round 3 (2 moved)" in warned


def test_models_that_no_client_uses_are_reported_also_if_only_one_is_left():
    run = runs()[0]
    assert unused_models(run) == ""
    empty = replace(run.snapshot, labels=torch.zeros_like(run.snapshot.labels))
    one = replace(run, snapshot=empty, config={**run.config, "restarts": 1})
    text = "1 of 2 models ended without clients: k may be larger than the number of groups, or two groups may share a"
    assert unused_models(one).startswith(text)
    assert unused_models(one) in warnings_of(one)
    assert unused_models(one) in advice(one, None)
    assert "--restarts" not in unused_models(replace(one, config={**one.config, "restarts": 5}))


def test_ifca_with_too_few_clients_to_be_watched_says_what_to_do():
    run = fit(IFCA(k=2, rounds=2), small.arrays(clients=4))
    text = "hether two groups share a model cannot be told with 4 clients, only with 5 for each of the 2 models: --init"
    assert [one for one in warnings_of(run) if text in one]
    assert [one for one in advice(run, None) if text in one]
    assert f"  note      w{text}" in repr(run)
    settings = {**run.config, "init": "one-shot"}, {**run.config, "restarts": 5}, {**run.config, "repair": False}
    enough = fit(IFCA(k=2, rounds=2), small.arrays(clients=10))
    for other in (enough, fit(FedAvg(rounds=2), small.arrays(clients=4)), *(replace(run, config=c) for c in settings)):
        assert text not in " ".join([*warnings_of(other), *advice(other, None), repr(other)])


def test_clients_refused_in_most_rounds_are_named_with_advice():
    run = runs()[0]
    who, other = HARMFUL[0], next(name for name in run.names if name != HARMFUL[0])
    reason = "update is 12 times as long as is usual"
    rejected = [{"clock": clock, "client": who, "reason": reason} for clock in range(len(run.history))]
    rejected.append({"clock": 1, "client": other, "reason": "not finite"})
    warned = warnings_of(replace(run, ledger=Ledger(rejected=rejected)))
    n = len(run.history)
    assert warned[1:] == [
        f"Client {who!r} had its reply rejected in {n} of {n} rounds ({reason}): its data did not count in those "
        "rounds; if its updates are correct, --no_guard accepts them."
    ]


def test_clients_that_were_never_asked_are_explained():
    run = runs()[0]
    labels = run.snapshot.labels.clone()
    labels[:3] = -1
    partial = replace(run, snapshot=replace(run.snapshot, labels=labels))
    assert "3 clients have no cluster." in warnings_of(partial)
    sampled = replace(partial, config={**run.config, "participants": 2})
    assert "3 clients have no cluster: with participants = 2, not every client is asked." in warnings_of(sampled)


@pytest.mark.parametrize("format", ["html", "md", "png"])
def test_clients_that_were_not_scored_are_named(format, tmp_path):
    run = fit(FedAvg(rounds=3), small.out_of_range(), evaluate_every=1)
    assert warnings_of(run)[-1] == "1 of 6 clients not scored: client-3"
    assert "over clients is –," in verdict([run])[2]
    page = write_report([run, run], tmp_path / f"report.{format}").read_bytes()
    assert format == "png" or b"1 of 6 clients not scored: client-3" in page


def test_a_diverged_run_is_reported():
    run = fit(FedAvg(rounds=9, local=Descent(lr=1.0, steps=5)), small.prices(), evaluate_every=1)
    stopped, grew, *_, trivial = warnings_of(run)
    assert trivial.startswith("The run is no better than always answering the mean: test squared error ")
    assert stopped == "The run was stopped early (diverged) after 3 rounds."
    assert grew.startswith("The run diverged: training loss grew from 0.926 to ")
    assert grew.endswith("lower --local.lr (now 1).")


def test_runs_of_one_kind_are_distinguished():
    ifca, fedavg, *_ = runs()
    assert titles_of([ifca, fedavg, fedavg]) == ["IFCA", "global (FedAvg), run 2", "global (FedAvg), run 3"]


def test_an_algorithm_that_nobody_named_goes_by_its_own_name():
    run = replace(runs()[0], config={**runs()[0].config, "algorithm": "Mine"})
    assert titles_of([run]) == ["Mine"]
    assert verdict([run])[0].startswith("Mine found 2 clusters")


def test_a_run_of_one_model_is_not_advised_to_add_itself():
    _, fedavg, alone, _ = runs()
    text = " ".join(verdict([fedavg]))
    assert "fedavg" not in text
    assert "add an ifca run to the report" in text
    assert "compare with one global model" in verdict([alone])[2]
    assert key_numbers(fedavg)[1] == ("1", "model")
    assert "12 in 1 cluster of 12" in repr(fedavg)


def test_baselines_are_not_said_to_have_found_or_missed_clusters():
    ifca, fedavg, alone, oracle = runs()
    assert verdict([fedavg])[0] == "FedAvg trained one model for 12 clients."
    assert verdict([alone])[0] == "12 clients trained alone: each has a model of its own."
    assert verdict([oracle])[:2] == [
        "The oracle was given the true groups: 2 clusters among 12 clients, 6 in each.",
        "Clients were assigned by these groups, not by the data.",
    ]
    assert verdict([fedavg])[1] == "There are no clusters, so there is no assignment to be uncertain about."
    for run, of_clusters in ((ifca, True), (fedavg, False), (alone, False), (oracle, True)):
        assert ("ari" in run.metrics) == (run is not alone)
        assert (ari_of(run) is not None) == of_clusters
        assert any("ARI" in key.name for key in key_numbers(run)) == of_clusters
        assert "true groups" not in verdict([run])[1] or run is ifca
    assert sizes([fedavg]) is None
    assert [(row["ARI"], row["clusters"]) for row in side_by_side(runs()).rows][1:3] == [("–", "–")] * 2
    unasked = replace(fedavg, snapshot=replace(fedavg.snapshot, labels=torch.tensor([-1] + [0] * 11)))
    assert "1 client took part in no round." in warnings_of(unasked)


def test_one_cluster_of_several_models_is_said_as_it_is():
    run = runs()[0]
    labels = torch.tensor([-1] * 2 + [0] * 10)
    missed = replace(run, snapshot=replace(run.snapshot, labels=labels), metrics={**run.metrics, "ari": 0.0})
    found, sure, _ = verdict([missed])
    assert found == "IFCA placed 10 of 12 clients in one cluster."
    assert sure.startswith("The true groups were not found (ARI 0.00)")
    assert unused_models(missed) in warnings_of(missed)


def test_in_a_run_of_one_round_nobody_is_said_to_have_moved():
    run = noted(runs()[0], best_restart=None)
    assert "changed cluster" not in verdict([replace(run, history=run.history[:1])])[1]


def test_every_other_run_is_compared_and_runs_of_one_kind_are_told_apart():
    ifca, fedavg, *_ = runs()
    fedprox = replace(fedavg, config={**fedavg.config, "algorithm": "fedprox"})
    again = replace(ifca, config={**ifca.config, "seed": 1})
    text = verdict([ifca, again, fedavg, fedprox])[2]
    assert text.endswith(" better than one global model (FedProx).")
    assert " better than one global model (FedAvg) and " in text
    assert ": the same as IFCA (seed 1), " in text
    assert titles_of([ifca, again, fedavg]) == ["IFCA, seed 0", "IFCA, seed 1", "global (FedAvg)"]
    three = replace(ifca, config={**ifca.config, "k": 3})
    assert titles_of([ifca, three]) == ["IFCA, k = 2", "IFCA, k = 3"]
    assert verdict([ifca, *[fedavg] * 6])[2].endswith(": better than 6 of the 6 other runs.")


def test_large_counts_have_separators():
    run, many = runs()[0], 12_000
    labels = torch.arange(many) % 2
    large = replace(run, names=tuple(map(str, range(many))), snapshot=replace(run.snapshot, labels=labels))
    assert verdict([replace(large, losses=None)])[0] == "IFCA found 2 clusters among 12,000 clients, 6,000 in each."
    assert key_numbers(large)[0] == ("12,000", "clients")


def test_no_headline_has_an_exponent():
    error = Score("squared_error", lower_is_better=True)
    assert error.text(33763.2) == "33,760"
    assert error.text(1234.5) == "1234"
    assert error.text(4e28) == "4e+28"
    run = runs()[0]
    metrics = {"test_squared_error": 33763.2, "worst_decile_squared_error": 1.5e6}
    large = replace(run, metrics=metrics, objective=None)
    assert "over clients is 33,760, and 1,500,000 over the worst tenth" in verdict([large])[2]
    assert [key.value for key in key_numbers(large)][2:4] == ["33,760", "1,500,000"]
    assert "test_squared_error 33,760" in repr(large)


def test_clients_whose_own_cluster_fits_worse_are_counted():
    run = runs()[0]
    losses = torch.where(run.snapshot.labels[:, None] == torch.arange(2), 1.0, 1.05).double()
    losses[0], losses[1, run.snapshot.labels[1]] = 7.0, 2.0  # as bad on both; and better elsewhere
    assert fit_elsewhere(replace(run, losses=losses)) == 1
    text = "1 client fits another cluster better than its own, whose model has a loss at least 10% higher."
    assert text in warnings_of(replace(run, losses=losses))
    labels = run.snapshot.labels.clone()
    labels[1] = -1  # no cluster, so none that fits worse
    assert fit_elsewhere(replace(run, losses=losses, snapshot=replace(run.snapshot, labels=labels))) == 0


def test_a_run_whose_server_knows_no_cluster_is_described_by_its_models():
    run = runs()[0]
    nobody = replace(run, snapshot=replace(run.snapshot, labels=torch.full_like(run.snapshot.labels, -1)))
    found, sure, _ = verdict([nobody])
    assert found == "IFCA trained 2 models for 12 clients; which client uses which is not known."
    assert sure == "There are no assignments to be certain about."
    assert ("2", "models") in [(key.value, key.name) for key in key_numbers(nobody)]


def test_privacy_that_was_spent_is_a_key_number():
    run = runs()[0]
    private = replace(run, metrics={**run.metrics, "epsilon": 10.384, "delta": 1e-5})
    assert ("10.4", "privacy spent (ε at δ = 1e-05)") in [(key.value, key.name) for key in key_numbers(private)]
    assert not [key for key in key_numbers(run) if "privacy" in key.name]
