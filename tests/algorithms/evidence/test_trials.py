"""Verdicts on pairs of clusters, and the numbers that follow from them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from corymb.algorithms.evidence.headline import Evidence
from corymb.algorithms.evidence.trials import LossReports, Pair, Trials, _renumbered, judge, proposals
from corymb.algorithms.evidence.weighing import Compared, LossReport
from corymb.clustering.paired import NONE, Difference
from corymb.core.snapshot import Snapshot


def reported(losses: list[list[float]], label: list[int], k: int, noise: float = 0.02) -> LossReports:
    """Clients' mean held-out losses under each model, from 20 examples each; a little noise tells clients apart."""
    mean = torch.tensor(losses, dtype=torch.float64)
    mean = mean + noise * torch.randn(mean.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spread = noise**2 * 20 * torch.eye(mean.shape[1], dtype=torch.float64).expand(len(mean), -1, -1)
    number = torch.full((len(mean),), 20.0)
    return LossReports(torch.tensor(label), Compared(mean, spread), Compared(mean, spread), number, k)


def state(k: int, pairs: tuple[Pair, ...], label: list[int]) -> tuple[Snapshot, Trials]:
    rows = torch.arange(float(k)).unsqueeze(1)
    trials = Trials(
        one={"w": torch.tensor([-1.0])}, pairs=pairs, mergers={"w": 100 + torch.arange(float(len(pairs))).unsqueeze(1)}
    )
    return Snapshot(models={"w": rows}, labels=torch.tensor(label)), trials


LABEL = [0] * 10 + [1] * 10
OWN, OTHER = 0.3, 1.5


def _two(merger: float) -> list[list[float]]:
    """Two clusters of ten, a merger with this loss, and one model as bad as the merger."""
    return [[OWN, OTHER, merger, merger]] * 10 + [[OTHER, OWN, merger, merger]] * 10


def test_a_merger_as_good_as_both_is_taken() -> None:
    at, trials = state(2, (Pair(0, 1, 0),), LABEL)
    done = judge(at, trials, reported(_two(OWN), LABEL, 2), last=False)
    assert done.at.k == 1
    assert done.merged == 1
    assert done.at.models["w"].tolist() == [[100.0]]
    assert done.at.labels.tolist() == [0] * 20
    assert done.trials.pairs == ()
    assert done.trials.doubtful is not None
    assert done.reported.k == 1
    assert done.reported.held.mean.shape == (20, 2)


def test_a_merger_that_costs_much_keeps_the_pair_apart_for_good() -> None:
    at, trials = state(2, (Pair(0, 1, 0),), LABEL)
    done = judge(at, trials, reported(_two(0.9), LABEL, 2), last=False)
    assert done.at.k == 2
    assert done.trials.pairs == ()
    assert bool(done.trials.apart[0, 1])
    assert done.trials.nearest is not None
    assert done.trials.nearest.size > 1
    assert proposals(done.trials, done.reported) == []


def test_a_small_difference_is_tried_again_and_then_believed() -> None:
    at, trials = state(2, (Pair(0, 1, 0),), LABEL)
    reports = reported(_two(1.07 * OWN), LABEL, 2, noise=0.005)
    for tried in (1, 2):
        done = judge(at, trials, reports, last=False)
        assert done.trials.pairs == (Pair(0, 1, tried),)
        assert done.trials.mergers["w"].tolist() == [[100.0]]
        trials = done.trials
    done = judge(at, trials, reports, last=False)
    assert done.at.k == 2
    assert bool(done.trials.apart[0, 1])


def test_the_last_decision_leaves_no_pair_on_trial() -> None:
    at, trials = state(2, (Pair(0, 1, 0),), LABEL)
    done = judge(at, trials, reported(_two(1.07 * OWN), LABEL, 2, noise=0.005), last=True)
    assert done.trials.pairs == ()
    assert done.at.k == 2


def test_numbers_follow_merges_and_clusters_that_are_gone() -> None:
    """Of five clusters 1 and 3 merge, 2 is empty, and 4 has a client that does as well in another cluster."""
    label = [0] * 6 + [1] * 6 + [3] * 6 + [4]
    own = {0: 0, 1: 1, 3: 3, 4: 4}
    losses = []
    for cluster in label:
        row = [OTHER] * 5 + [OWN if cluster in (1, 3) else OTHER, OTHER]
        row[own[cluster]] = OWN
        losses.append(row)
    losses[-1][0] = OWN
    at, trials = state(5, (Pair(1, 3, 0),), label)
    done = judge(at, trials, reported(losses, label, 5), last=False)
    assert done.at.models["w"].flatten().tolist() == [0.0, 100.0]
    assert done.at.labels.tolist() == [0] * 6 + [1] * 12 + [-1]
    assert done.reported.label.tolist() == [0] * 6 + [1] * 12 + [0]


def test_two_halves_that_merge_are_as_large_as_their_sum() -> None:
    label = [0] * 10 + [1] + [2] * 2
    losses = [[OWN, OTHER, OTHER, OTHER, OTHER]] * 10 + [[OTHER, OWN, OWN, OWN, OTHER]] * 3
    at, trials = state(3, (Pair(1, 2, 0),), label)
    done = judge(at, trials, reported(losses, label, 3), last=False)
    assert done.at.labels.tolist() == [0] * 10 + [1] * 3


def test_clusters_that_were_not_asked_stay() -> None:
    at, trials = state(3, (Pair(0, 1, 0),), [*LABEL, 2, 2])
    reports = reported([[*row[:2], 9.0, *row[2:]] for row in _two(OWN)], LABEL, 3)
    done = judge(at, trials, reports, last=True, only=torch.tensor([0, 1]))
    assert done.at.models["w"].flatten().tolist() == [100.0, 2.0]
    assert done.at.labels.tolist() == [0] * 20 + [1, 1]


def test_pairs_are_disjoint_and_nearest_first() -> None:
    rows: Tensor = torch.full((32, 5), OTHER)
    label = [0] * 8 + [1] * 8 + [2] * 8 + [3] * 8
    near = {0: 1, 1: 0, 2: 3, 3: 2}
    for place, cluster in enumerate(label):
        rows[place, cluster], rows[place, near[cluster]] = OWN, 0.4 if cluster < 2 else 0.5
    reports = reported(rows.tolist(), label, 4)
    _, trials = state(4, (), label)
    trials = replace(trials, apart=torch.zeros(4, 4, dtype=torch.bool))
    assert proposals(trials, reports) == [Pair(0, 1, 0), Pair(2, 3, 0)]
    trials.apart[0, 1] = trials.apart[1, 0] = True
    assert proposals(trials, reports) == [Pair(2, 3, 0)]


def test_covariances_are_kept_as_they_were_reported_whatever_is_renumbered() -> None:
    """There are n k² of them: with hundreds of clusters, copies in double precision would not fit into memory."""
    draw = torch.Generator().manual_seed(1)
    deviations = torch.randn(20, 6, 9, generator=draw)
    sent = [Compared(torch.rand(20, 6, generator=draw), deviations @ deviations.mT) for _ in range(2)]
    label = torch.arange(20) % 4
    weighed = LossReport(torch.rand(20, 6), torch.rand(20, 6), sent[0], sent[1], torch.full((20,), 9.0))
    reports = LossReports.by(weighed, label, 4)
    assert reports.held.spread.data_ptr() == sent[0].spread.data_ptr()
    new_number, columns = torch.tensor([0, 1, 0, -1]), [4, 1]  # 0 and 2 are merged, 3 is dissolved
    twice = _renumbered(_renumbered(reports, new_number, columns), torch.tensor([1, 0]), [1, 0])
    assert twice.plain.spread.data_ptr() == sent[1].spread.data_ptr()
    keep = torch.tensor([1, 4, 5])
    copied = [Compared(c.mean[:, keep].double(), c.spread[:, keep][:, :, keep].double()) for c in sent]
    by_hand = LossReports(twice.label, copied[0], copied[1], reports.number, 2)
    for model, than, plain in product(range(3), range(3), (True, False)):
        mask = twice.label == min(than, 1)
        assert twice.compare(mask, model, than, plain=plain) == by_hand.compare(mask, model, than, plain=plain)


def test_carried_state_round_trips() -> None:
    seen = Difference(0.1, 0.2, 0.3, 0.4, 5, 0.6)
    _, trials = state(3, (Pair(0, 2, 1),), [])
    trials = replace(trials, looks=4, skewed=False, splits=1, nearest=seen, apart=torch.eye(3, dtype=torch.bool))
    back = Trials.from_carry(trials.to_carry())
    assert back.pairs == trials.pairs
    assert back.nearest == seen
    assert back.doubtful is None
    assert (back.looks, back.skewed, back.splits) == (4, False, 1)
    assert torch.equal(back.apart, trials.apart)
    assert torch.equal(back.mergers["w"], trials.mergers["w"])


SURE = Difference(0.4, 0.02, 1e-12, 1.3, 40, 1.0)


def _evidence(**changes: object) -> Evidence:
    usual = Evidence(0.7, 0.3, SURE, [SURE, SURE], 0.5, False, SURE, None)
    return usual._replace(**changes)  # type: ignore[arg-type]


def test_clusters_must_beat_one_model_surely_and_by_enough() -> None:
    assert _evidence().pays
    assert _evidence().notes()["k"] == 2
    unsure = Difference(0.4, 0.3, 0.1, 1.3, 40, 0.6)
    assert not _evidence(overall=unsure, clusters=[unsure, unsure]).pays
    assert _evidence(overall=unsure, clusters=[unsure, SURE]).pays  # one cluster of few clients can be sure
    assert not _evidence(loss_of_clusters=0.66).pays
    assert not _evidence(skewed=True, biased_share=0.2).pays
    assert not _evidence(clusters=[SURE]).pays


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "2 clusters: held-out loss 0.300, with one model 0.700 (gain 0.400 ± 0.020, 100% of clients gain)."),
        ({"loss_of_clusters": 0.66}, "One model: 2 clusters were tried, but do not pay"),
        (
            {"clusters": [NONE], "widest": Difference(0.01, 0.005, 0.1, 0.05, 40, 0.5)},
            "no two groups of clients were found that need different ones. A difference of 8% would have been seen.",
        ),
    ],
)
def test_the_headline_says_what_was_found_and_what_could_not_have_been_seen(
    changes: dict[str, object], words: str
) -> None:
    assert words in _evidence(**changes).headline()


def test_clusters_must_beat_the_best_single_model_not_only_the_one_for_all() -> None:
    """A cluster of large clients can have the best model for all: the others do not need their own."""
    losses = [[OWN, OWN, 0.6]] * 10 + [[OWN, OWN, 0.6]] * 10
    reports, (_, trials) = reported(losses, LABEL, 2), state(2, (), LABEL)
    found = reports.evidence(trials)
    assert found.single in (0, 1)
    assert not found.pays
    assert found.guarded
    needed = reported(_two(0.9)[:10] + _two(0.9)[10:], LABEL, 2)._replace(k=2)
    assert needed.evidence(trials).pays


def test_a_cluster_of_clients_that_hold_nothing_out_dissolves() -> None:
    """A client with a single example is no evidence for a model that no other client needs."""
    label = [0] * 5 + [1]
    at, trials = state(2, (Pair(0, 1, 0),), label)
    reports = reported([[OWN, OTHER, OTHER, OTHER]] * 5 + [[0.0] * 4], label, 2)
    held = torch.tensor([20.0] * 5 + [0.0])
    done = judge(at, trials, reports._replace(number=held), last=False)
    assert done.at.k == 1
    assert done.at.labels.tolist() == [0] * 5 + [-1]  # it chooses anew
    assert judge(at, trials, reports, last=False).at.k == 2
