import json
from dataclasses import replace

import pytest
import torch

import corymb
from corymb import InvalidInput, advise
from corymb.data import FederatedDataset, as_dataset
from corymb.data.ragged import Ragged
from corymb.runs.advising import trials
from corymb.runs.advising.advise import NothingToJudge
from tests.runs import small
from tests.runs.advising.advised import DATA, FEW, advice_on


@pytest.mark.parametrize(
    ("name", "clusters", "algorithm"), [("clusters", 2, "ifca"), ("one-model", 1, "fedavg"), ("alone", 0, "alone")]
)
def test_each_verdict_with_its_evidence_and_the_command_to_run_next(name, clusters, algorithm):
    advice = advice_on(name)
    assert (advice.verdict, advice.clusters, advice.algorithm) == (name, clusters, algorithm)
    assert len(advice.sentences) == 2
    typed = name == "clusters"  # the others have no name on the command line
    assert advice.command.startswith(
        f"corymb run {advice.data} {algorithm} " if typed else "corymb.fit(advice.run_next"
    )
    assert ("--k auto" in advice.command) == typed
    assert (getattr(advice.run_next, "k", None) == "auto") == (algorithm == "ifca")
    told = json.loads(json.dumps(advice.to_dict(), allow_nan=False))
    assert {"verdict", "clusters", "evidence"} <= set(told)
    of_alone = told["evidence"]["candidates"]["alone"]["gain"]
    assert (of_alone["mean"] > 0) == (of_alone["p"] < 0.5)
    assert (of_alone["p"] < 0.01) == (name == "alone" or of_alone["share"] > 0.1)
    assert advice.run_next.rounds == FEW["rounds"]


def test_what_to_run_next_is_said_in_python_where_the_data_are_there_only():
    advice = advise(small.arrays(), given=FEW, threads=1)
    assert advice.command == "corymb.fit(advice.run_next, data, threads=1)"
    assert str(advice).endswith("Next: corymb.fit(advice.run_next, data, threads=1)")


def test_one_model_never_reports_that_there_are_no_clusters():
    advice = advice_on("one-model")
    text = " ".join([*advice.sentences, *advice.cautions])
    assert "does not mean that there are no clusters" in text or "clusters that were found" in text
    assert "of the loss from separate models would mostly go undetected" in text
    assert "If you expect two groups, also run ifca --k 2 and compare." in text
    assert " no clusters" not in text.replace("does not mean that there are no clusters", "")


def test_test_examples_take_no_part():
    data, before = DATA["one-model"](), advice_on("one-model")
    spoiled = Ragged(data.test.x, torch.full_like(data.test.y, 1e6), data.test.offsets)
    after = advise(replace(data, test=spoiled), given=FEW, threads=1)
    assert after.sentences == before.sentences


def test_the_named_metric_is_the_judge():
    data = DATA["one-model"]()
    by_r2 = advise(data, given=FEW, threads=1, metric="r2")
    gain, candidates = by_r2.candidates["alone"].gain, by_r2.candidates
    assert gain.mean == pytest.approx(candidates["alone"].value - candidates["fedavg"].value)
    assert gain.size == pytest.approx(gain.mean / (1 - candidates["fedavg"].value))
    assert "held-out r2" in by_r2.sentences[0]
    assert by_r2.command == "corymb.fit(advice.run_next, data, threads=1, metric='r2')"
    assert corymb.fit(by_r2.run_next, data, threads=1, metric="r2").metrics["test_r2"] < 1
    with pytest.raises(InvalidInput, match="accuracy"):
        advise(data, given=FEW, metric="accuracy")


def test_a_candidate_that_diverges_is_reported_and_left_out(monkeypatch):
    steep = {**trials.SETTINGS, "alone": {"local": {"lr": 1e6}}}
    monkeypatch.setattr(trials, "SETTINGS", steep)
    advice = advise(DATA["one-model"](), given=FEW, threads=1)
    assert advice.verdict == "one-model"
    assert "alone" not in advice.candidates
    assert any(line.startswith("Training alone was left out: ") for line in advice.cautions)


def test_where_everything_diverges_there_is_no_advice():
    with pytest.raises(NothingToJudge, match=r"smaller --local\.lr"):
        advise(DATA["one-model"](), given={"rounds": 6, "local": {"lr": 1e6}}, threads=1)


def test_several_seeds_are_several_splits_of_the_same_data():
    advice = advise(DATA["one-model"](), seeds=[5, 6], given={"rounds": 2}, threads=1)
    assert (advice.seeds, len(advice.clusters_by_seed)) == ([5, 6], 2)
    assert advice.clients == 12
    assert advice.held_out == 12 * 10  # as many as one split has: splits overlap


def test_on_a_table_clusters_are_trained_on_for_no_more_rounds_than_are_given():
    data, few = as_dataset(small.prices(), seed=0), {"rounds": 2}
    assert trials.configured(trials.SR_FCA, data, few).finish.rounds == 2
    assert trials.planned(data, few)[trials.SR_FCA] == 2 + 2 + trials.EXTRA_ROUNDS
    assert trials.planned(DATA["clusters"](), few)[trials.SR_FCA] == 2 + trials.EXTRA_ROUNDS  # no table: not trained on


def test_data_that_cannot_be_split_are_refused():
    single = FederatedDataset.from_arrays([[0.0], [1.0]], [0.0, 1.0], ["a", "b"], test=0)
    with pytest.raises(InvalidInput, match="No client has two training examples"):
        advise(single)
    with pytest.raises(InvalidInput, match="one client"):
        advise(single.subset([0]))
    with pytest.raises(InvalidInput, match="The data are a int"):
        advise(3)
    with pytest.raises(InvalidInput, match="seeds is empty"):
        advise(DATA["alone"](), seeds=[])
