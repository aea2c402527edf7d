"""Moment descent: finds every cluster from any start, using only sums over panels."""

import itertools
import logging

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import corymb
from corymb.algorithms import IFCA, moment_descent
from corymb.algorithms.fedx import FedX
from corymb.algorithms.moment_descent import MomentDescent
from corymb.algorithms.parts import moments
from corymb.algorithms.parts.options import wrapped
from corymb.algorithms.parts.regression import whitening
from corymb.core.driver import drive
from corymb.core.federation import Each, Federation, TooFewReplies
from corymb.core.snapshot import Snapshot, planned_rounds
from corymb.data.built_in.synthetic import mixed_regression
from corymb.evaluate import parameter_metrics
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import LinearRegression, Regression
from corymb.objectives.features import Polynomial, RandomFourier
from corymb.settings import InvalidInput, from_dict, to_dict
from tests import tiny
from tests.test_orthogonal import angle

AS_IN_THE_PAPER = {"whiten": False, "iterations": 5, "then": None}
FAST = FedX(rounds=30, averaging="members")  # a third of the rounds that the paper's average takes


def small(seed=0, *, n=120, m=30, d=20, **how):
    return mixed_regression(seed, n=n, m=m, d=d, test=1, **how)


def federation(data, *, engine="vectorised", features=None, **options):
    inputs = data.train.x.shape[1]
    return tiny.federation(engine, LinearRegression(inputs, features=features, dtype=torch.float64), data, **options)


def last(algorithm, fed, start=None, seed=0):
    return list(drive(algorithm, fed, start, seed=seed))[-1]


def at_models(weight, n):
    return Snapshot(models={"weight": weight.double()}, labels=torch.full((n,), -1))


def error(at, data):
    return parameter_metrics(at.models, data.true_parameters)["parameter_error"]


def oracle(data, fed, second=FAST):
    return error(last(second, fed, at_models(data.true_parameters["weight"], len(data))), data)


def anchor_errors(at, data):
    own = data.true_parameters["weight"][data.truth[at.carry["anchors"]]]
    return (at.carry["estimates"] - own).norm(dim=1)


def separation(data):
    return float(torch.pdist(data.true_parameters["weight"]).min())


# ---- what it is for


def test_the_first_setting_of_the_paper():
    data = mixed_regression(0)
    fed = federation(data)
    first = last(MomentDescent(k=3, then=None), fed)
    assert len(first.carry["anchors"]) == 20
    assert first.notes["groups"] == 3
    assert anchor_errors(first, data).max() < separation(data) / 2
    assert error(last(FAST, fed, first.handover()), data) < 1.05 * oracle(data, fed)


def fails(first, data):
    return first.notes["groups"] != 3 or bool(anchor_errors(first, data).max() > separation(data) / 2)


def test_one_pair_a_client_is_too_few_for_the_first_setting():
    """A test of the test above: it must be able to fail."""
    data = mixed_regression(0)
    assert fails(last(MomentDescent(k=3, pairs=1, **AS_IN_THE_PAPER), federation(data)), data)


def test_too_few_pairs_of_points_are_reported(caplog):
    with caplog.at_level(logging.WARNING):
        last(MomentDescent(k=3, pairs=1, iterations=1, subspace_steps=1, then=None), federation(small(n=60)))
    assert "the panel has 60 pairs of points; about 10 d k² = 1800 are wanted" in caplog.text


def test_without_the_sign_rule_anchors_get_lost(monkeypatch):
    """A test of the test above: it must be able to fail."""
    monkeypatch.setattr(moments, "oriented", lambda direction, towards: direction)
    data = mixed_regression(0)
    assert fails(last(MomentDescent(k=3, **AS_IN_THE_PAPER), federation(data)), data)


@pytest.mark.parametrize("radius", [0.0, 1.0, 3.0, 30.0, 1000.0])
def test_any_start_has_the_same_outcome(radius):
    """θ_0 in random directions and very far away, where the true parameters have norms around 1."""
    data = small(n=90, m=60, d=12)
    fed = federation(data)
    direction = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(int(radius)))
    start = at_models((radius * direction / direction.norm())[None], len(data))
    first = last(MomentDescent(k=3, subspace_steps=6, then=None), fed, start)
    assert first.notes["groups"] == 3
    assert anchor_errors(first, data).max() < separation(data) / 2
    assert error(last(FAST, fed, first.handover()), data) < 1.05 * oracle(data, fed)


@pytest.mark.parametrize("k", [2, 5])
def test_other_numbers_of_clusters(k):
    data = small(n=25 * k, m=50, k=k, d=10)
    fed = federation(data)
    at = last(MomentDescent(k=k, then=FAST), fed)
    assert at.k == k
    assert error(at, data) < 1.05 * oracle(data, fed)


def test_another_covariance_in_every_cluster():
    """Eigenvalues from 0.6 to 1.4: what is white for everybody is not white in a cluster."""
    rng = np.random.default_rng(0)
    turned = [np.linalg.qr(rng.normal(size=(20, 20)))[0] for _ in range(3)]
    data = small(covariances=[q @ np.diag(np.linspace(0.6, 1.4, 20)) @ q.T for q in turned])
    fed = federation(data)
    first = last(MomentDescent(k=3, subspace_steps=6, then=None), fed)
    assert first.notes["groups"] == 3
    assert anchor_errors(first, data).max() < separation(data) / 2
    assert error(last(FAST, fed, first.handover()), data) < 1.05 * oracle(data, fed)


def test_clients_with_two_points_are_enough_for_the_panel():
    data = small(m=((1200, 2), (8, 40)), n=None, d=6)  # one point in eight is an anchor's
    fed = federation(data)
    first = last(MomentDescent(k=3, anchors=8, subspace_steps=6, then=None), fed)
    assert set(fed.sizes[first.carry["anchors"]].tolist()) == {40}
    assert first.notes["groups"] == 3
    assert anchor_errors(first, data).max() < separation(data) / 2


@pytest.mark.paper
def test_five_hundred_features():
    """245,000 pairs of points: 54 times 10 d / p_min² = 45,000."""
    data = mixed_regression(0, n=200, m=50, d=500, test=1)
    fed = federation(data)
    first = last(MomentDescent(k=3, then=None), fed)
    assert first.notes["groups"] == 3
    second = FedX(rounds=200, averaging="members")
    assert error(last(second, fed, first.handover()), data) < 1.05 * oracle(data, fed, second)


@pytest.mark.parametrize(
    "features",
    [Polynomial(degree=2, basis="hermite"), Polynomial(degree=2), RandomFourier(width=15, scale=0.3)],
    ids=["Hermite", "monomials", "random Fourier"],
)
def test_nonlinear_features(features):
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(100 * 40, 4)))
    phi = features(x)
    truth = torch.arange(100) % 2
    theta = torch.tensor(rng.normal(size=(2, phi.shape[1]))) / phi.square().mean().sqrt()
    y = (phi * theta[truth.repeat_interleave(40)]).sum(1) + 0.1 * torch.tensor(rng.normal(size=len(x)))
    data = tiny.clients(x, y, [40] * 100)
    fed = federation(data, features=features)
    at = last(MomentDescent(k=2, then=FedX(refinement="whitened", rounds=60)), fed)
    assert parameter_metrics(at.models, {"weight": theta})["parameter_error"] < 0.05 * float(torch.pdist(theta))
    assert len({(a, b) for a, b in zip(at.labels.tolist(), truth.tolist(), strict=True)}) == 2


# ---- the pieces


def pooled_moment(data, theta):
    """Y = Σ_c (s_c s_cᵀ − Σ ε εᵀ) / (m_c − 1) / Σ_c m_c, in numpy."""
    cuts, total = data.train.offsets.tolist(), 0
    for begin, end in itertools.pairwise(cuts):
        x, y, m = data.train.x[begin:end].numpy(), data.train.y[begin:end].numpy(), end - begin
        eps = (y - x @ theta)[:, None] * x
        total = total + (np.outer(eps.sum(0), eps.sum(0)) - eps.T @ eps) / (m - 1)
    return total / cuts[-1]


@settings(max_examples=8)
@given(n=st.integers(12, 30), d=st.integers(2, 12), k=st.integers(1, 3), seed=st.integers(0, 999))
def test_orthogonal_iteration_through_the_door_is_numpys_svd(n, d, k, seed):
    rng = np.random.default_rng(seed)
    k = min(k, d)
    data = tiny.regression(rng.integers(2, 12, size=n).tolist(), rng.integers(k, size=n).tolist(), d=d, seed=seed)
    theta = rng.normal(size=d)
    algorithm = MomentDescent(k=k, iterations=1, subspace_steps=24, anchors=k, points=2, whiten=False, then=None)
    start = at_models(torch.tensor(theta)[None], n)
    found = list(drive(algorithm, federation(data), start))[-2].carry
    for anchor, basis in zip(found["anchors"].tolist(), found["bases"].numpy(), strict=True):
        others = data.at([c for c in range(n) if c != anchor])  # an anchor's own points are left out of its subspace
        vectors, values, _ = np.linalg.svd(pooled_moment(others, theta))
        assume(k == d or values[k - 1] >= 2 * values[k])
        assert angle(basis, vectors[:, :k]) < 1e-4


def test_the_direct_way_finds_the_same_subspace():
    data = small(n=200, m=40, d=5)
    one, other = (
        list(drive(MomentDescent(k=3, iterations=1, then=None, **how), federation(data)))[-2].carry["bases"]
        for how in ({"subspace_steps": 60}, {"subspace": "svd"})
    )
    assert max(angle(a.numpy(), b.numpy()) for a, b in zip(one, other, strict=True)) < 1e-4


def test_anchors_that_take_turns_find_the_same(monkeypatch):
    data, algorithm = small(n=40, d=6), MomentDescent(k=2, iterations=2, noise=0.1, anchors=7, then=None)
    whole = last(algorithm, federation(data))
    monkeypatch.setattr(moment_descent, "NUMBERS", 3 * 6 * 2)  # three anchors at once
    turns = last(algorithm, federation(data))
    assert tiny.farthest(turns.carry["estimates"], whole.carry["estimates"]) < 1e-9


def test_a_step_by_hand():
    """The anchor moves by σ/2 along the leading direction inside the subspace, towards its mean residual."""
    data = small(n=20, d=5)
    snapshots = list(drive(MomentDescent(k=2, iterations=1, anchors=4, whiten=False, then=None), federation(data)))
    before, after = snapshots[-2].carry, snapshots[-1].carry
    for i, anchor in enumerate(before["anchors"].tolist()):
        rows = slice(int(data.train.offsets[anchor]), int(data.train.offsets[anchor + 1]))
        x, y = data.train.x[rows].double().numpy(), data.train.y[rows].double().numpy()
        theta, basis = before["estimates"][i].numpy(), before["bases"][i].numpy()
        eps = ((y - x @ theta)[:, None] * x) @ basis
        moment = (np.outer(eps.sum(0), eps.sum(0)) - eps.T @ eps) / (len(y) * (len(y) - 1))
        values, vectors = np.linalg.eigh(moment)
        b = vectors[:, -1] * np.sign(vectors[:, -1] @ eps.mean(0))
        want = theta + np.sqrt(values[-1]) / 2 * basis @ b
        assert np.abs(after["estimates"][i].numpy() - want).max() < 1e-6


def test_anchors_stop_where_they_feel_near_enough():
    data = small()
    fed = federation(data)
    whole = last(MomentDescent(k=3, then=None, separation=separation(data), epsilon=0.0), fed)
    early = last(MomentDescent(k=3, then=None, separation=separation(data), epsilon=100.0), fed)
    assert whole.notes["groups"] == 3
    assert whole.notes["joined_below"] == pytest.approx(separation(data) / 2)
    assert torch.equal(early.carry["estimates"], early.carry["estimates"][:1].expand(20, -1))  # never moved
    assert early.notes["groups"] == 1


def test_more_or_fewer_groups_than_k_are_regrouped_and_reported(caplog):
    data = small()
    with caplog.at_level(logging.WARNING):
        at = last(MomentDescent(k=3, iterations=5, separation=1e-3, epsilon=0.0, then=None), federation(data))
    assert "groups, not k = 3: k-means regroups them" in caplog.text
    assert at.notes["groups"] == 20
    assert at.labels[at.carry["anchors"]].unique().tolist() == [0, 1, 2]
    assert at.models["weight"].shape == (3, 20)


def test_fresh_panels_and_points():
    data = small(n=300, m=160, d=10)
    fed = federation(data)
    snapshots = list(drive(MomentDescent(k=3, fresh=True, iterations=4, then=None), fed))
    moves = [at for at in snapshots if "iteration" in at.notes]
    panels = [set(at.carry["panel"].tolist()) for at in moves]
    anchors = set(moves[0].carry["anchors"].tolist())
    assert [len(panel) for panel in panels] == [70, 70, 70, 70]
    assert all(one.isdisjoint(other) for one, other in itertools.combinations([*panels, anchors], 2))
    assert moves[-1].notes["groups"] == 3
    assert anchor_errors(moves[-1], data).max() < separation(data) / 2


# ---- what the data say of the models


def judged(caplog, asked, *, rounds=40, **data):
    with caplog.at_level(logging.WARNING):
        at = last(MomentDescent(k=asked, then=FedX(refinement="whitened", rounds=rounds)), federation(small(**data)))
    return at.notes


def test_a_right_result_is_judged_right(caplog):
    notes = judged(caplog, 3)
    assert notes["mixed_groups"] == notes["same_groups"] == notes["moving_groups"] == []
    assert notes["unsure"] == 0
    assert not caplog.records


def test_models_that_have_not_converged_are_reported(caplog):
    assert judged(caplog, 3, rounds=3)["moving_groups"] == [0, 1, 2]
    assert "the model of group 1 has not converged: about" in caplog.text
    assert "Give phase 2 more rounds (then.rounds)" in caplog.text


def test_too_few_groups_are_reported(caplog):
    notes = judged(caplog, 2)
    assert len(notes["mixed_groups"]) == 1
    assert "do not share one model: their own models are" in caplog.text
    assert "Raise k, or anchors or iterations" in caplog.text


def test_finding_groups_in_a_single_cluster_is_reported(caplog):
    data = small(k=1)
    with caplog.at_level(logging.WARNING):
        at = last(MomentDescent(k=2, then=None), federation(data))
        assert at.notes["groups"] == 1
        assert "the anchors form 1 groups, not k = 2" in caplog.text
    assert judged(caplog, 2, k=1)["same_groups"] == [[0, 1]]
    assert "groups 0 and 1 cannot be told apart" in caplog.text


def test_as_many_anchors_as_clusters_can_be_as_many_groups():
    data = small(k=2, n=60, m=60, d=6)
    at = last(MomentDescent(k=2, anchors=2, then=None), federation(data), seed=1)
    own = data.truth[at.carry["anchors"]]
    assert at.notes["groups"] == len(own.unique()) == 2


def test_ifca_passes_settings_on():
    inside = wrapped(IFCA(k=2, init=MomentDescent(anchors=9, iterations=4)))
    assert inside.first == MomentDescent(k=2, anchors=9, iterations=4, then=None)
    assert wrapped(IFCA(k=2, init="moment-descent")).first == MomentDescent(k=2, then=None)


@pytest.mark.parametrize("d", [7, 600])
def test_whitening_is_the_root_of_the_second_moment(d, monkeypatch):
    """All of it, in parts where a reply would be long, or only its leading directions where there are many."""
    monkeypatch.setattr(whitening, "NUMBERS", 20)
    data = small(n=20, m=40, d=d)
    data.train.x[:, 0] *= 50
    data.train.x[:, 1] += 3
    found = whitening.whitening_of(federation(data), torch.zeros(d).double())
    second = (data.train.x.mT @ data.train.x / len(data.train.x)).double()
    white = found.root @ second @ found.root
    assert tiny.farthest(found.kept, torch.eye(d).double()) < 1e-6
    if d == 7:
        assert tiny.farthest(white, torch.eye(d).double()) < 1e-4
        best = torch.linalg.lstsq(data.train.x, data.train.y).solution.double()
        assert tiny.farthest(found.pooled, best) < 1e-3
    else:
        assert float(torch.linalg.eigvalsh(white).max()) < 2  # a step of 1 is stable


# ---- what crosses the door


class Spy:
    """Records what the algorithm gets, and what it sends."""

    def __init__(self, monkeypatch):
        self.seen = []
        ask = Federation.ask

        def listening(fed, ids, verb, fn, args, options, *rest):
            replies = ask(fed, ids, verb, fn, args, options, *rest)
            self.seen.append((verb, fn.name.partition(":")[2], args, replies))
            return replies

        monkeypatch.setattr(Federation, "ask", listening)

    def of(self, name):
        return [row for row in self.seen if row[1] == name]


@pytest.mark.parametrize("engine", tiny.ENGINES)
@pytest.mark.parametrize("subspace", ["iteration", "svd"])
def test_only_sums_over_the_panel_reach_the_algorithm(monkeypatch, engine, subspace):
    spy = Spy(monkeypatch)
    data = small(n=15, d=4)
    fed = federation(data, engine=engine)
    algorithm = MomentDescent(k=2, iterations=2, subspace=subspace, subspace_steps=2, anchors=4, then=FedX(rounds=2))
    list(drive(algorithm, fed))
    assert {name for _, name, _, _ in spy.seen} == {
        *("send_second_moments", "multiply", "move", "choose_and_work", "curvature", "judge")
    }
    for verb, _, (estimates, bases, own), replies in spy.of("multiply"):
        assert verb == "sum"
        assert len(replies.clients) == 15
        assert replies.value.note == ()
        assert replies.value.label is None
        assert replies.value.total["product"].shape == (1, 4, *bases.shape[::2])  # one sum, not 15
        weight = float(replies.value.weight)
        assert weight == float(fed.sizes.sum())
        for client in range(15):  # nobody's own product is what was seen
            alone = Federation(fed._engine).clients[[client]]
            mine = alone.sum(moments.multiply, estimates, bases, Each(own.rows[client : client + 1]), pairs=None)
            assert not torch.allclose(mine.value.total["product"], replies.value.total["product"], rtol=0.3)
            del spy.seen[-1]


def test_only_anchors_return_estimates(monkeypatch):
    spy = Spy(monkeypatch)
    at = last(MomentDescent(k=3, iterations=2, subspace_steps=2, then=None), federation(small()))
    for verb, _, _, replies in spy.of("move"):
        assert verb == "map"
        assert torch.equal(replies.clients.ids, at.carry["anchors"])
        assert replies.value.estimate.shape == (20, 20)
        assert replies.value.sigma.shape == (20,)


def test_panel_clients_see_estimates_with_two_draws_of_noise_of_their_own(monkeypatch):
    spy = Spy(monkeypatch)
    data = small()
    fed = federation(data)
    snapshots = list(drive(MomentDescent(k=3, noise=0.1, iterations=2, subspace_steps=2, whiten=False, then=None), fed))
    first, again, second, _ = (args[0].rows for _, _, args, _ in spy.of("multiply"))
    clean = snapshots[0].carry["estimates"]
    draws = (first - clean) / 0.1  # n 2 a d
    assert first.shape == (120, 2, 20, 20)
    assert torch.equal(first, again)  # or the noise could be averaged away within an iteration
    assert abs(float(draws.std()) - 1) < 0.01
    flat = draws.reshape(240, -1)
    assert (torch.corrcoef(flat) - torch.eye(240)).abs().max() < 0.3  # no two draws have anything in common
    assert not torch.equal(first, second)
    assert fed.ledger.bytes_down > 0


@pytest.mark.parametrize("options", [{}, {"noise": 0.1}, {"subspace": "svd"}])
def test_bytes_are_those_of_the_docs(options):
    n, d, k, a, s = 40, 10, 3, 12, 4
    second = FedX(refinement="whitened", rounds=3)
    algorithm = MomentDescent(k=k, anchors=a, iterations=1, subspace_steps=2, then=second, **options)
    run = corymb.fit(algorithm, small(3, n=n, d=d, k=k), evaluate_every=0)
    down, up = ([row[name] for row in run.history] for name in ("bytes_down", "bytes_up"))
    moments, c = n * ((d * d + d) * 8 + 8), k + k * (k - 1) // 2
    step = n * (a * d * (1 + k) * s + 8), n * (a * d * k + 1) * s
    if "noise" in options:
        step = n * (a * d * (2 + k) * s + 8), step[1]
    if "subspace" in options:
        step = n * (a * (d + d * d) * s + 8), n * (a * d * d + 1) * s
    subspace = 1 if "subspace" in options else 2
    assert down[:subspace] == [step[0]] * subspace
    assert up[:subspace] == [step[1] + moments] + [step[1]] * (subspace - 1)
    assert (down[subspace], up[subspace]) == (a * (d + d * k) * s, a * (d + 2) * s)
    fedx = n * k * d * s, n * ((d + k) * s + 4 * k + 8)
    verdict = n * (c * d + k * d + d * d) * s, n * (4 * c + 2 + k) * s
    assert down[subspace + 1 :] == [fedx[0], fedx[0], fedx[0] + verdict[0]]
    assert up[subspace + 1 :] == [fedx[1] + moments, fedx[1], fedx[1] + moments + verdict[1]]


@pytest.mark.parametrize("noise", [0.1, 0.2])
def test_noise_is_averaged_out_over_the_panel(noise):
    data = small()
    fed = federation(data)
    first = last(MomentDescent(k=3, noise=noise, then=None), fed)
    assert first.notes["groups"] == 3
    assert error(last(FAST, fed, first.handover()), data) < 1.05 * oracle(data, fed)


# ---- going on, handing over, failing


def test_resume_in_the_middle_of_either_phase():
    data, algorithm = (
        small(n=40, d=6),
        MomentDescent(k=2, iterations=3, subspace_steps=3, noise=0.05, panel=20, anchors=6, then=FedX(rounds=4)),
    )
    whole = list(drive(algorithm, federation(data), seed=3))
    assert len(whole) == planned_rounds(algorithm) == 16
    assert [at.stage for at in whole] == ["descent"] * 12 + ["fedx"] * 4
    for place in (0, 1, 3, 4, 6, 11, 13):  # within a subspace, after a step, at the end of a phase, within FedX
        rest = list(drive(algorithm, federation(data), whole[place]))
        assert len(rest) == len(whole) - place - 1
        for got, want in zip(rest, whole[place + 1 :], strict=True):
            assert (got.stage, got.round, got.clock) == (want.stage, want.round, want.clock)
            assert torch.equal(got.models["weight"], want.models["weight"])
            assert torch.equal(got.labels, want.labels)
            assert sorted(got.carry) == sorted(want.carry)
            assert all(torch.equal(got.carry[name], want.carry[name]) for name in got.carry)


def test_ifca_continues_from_its_result():
    data = small()
    fed = federation(data)
    first = last(MomentDescent(k=3, then=None), fed)
    ifca = IFCA(k=3, rounds=40, local=Descent(lr=0.02, steps=5))
    assert error(last(ifca, fed, first.handover()), data) < 1.1 * oracle(data, fed)


def test_a_client_with_broken_data_is_named_and_the_rest_continue():
    data = small(n=40, d=6)
    data.train.y[data.train.offsets[3] : data.train.offsets[4]] = torch.nan
    fed = federation(data)
    at = last(MomentDescent(k=2, anchors=40, then=None), fed)
    assert {row["client"] for row in fed.ledger.rejected} == {fed.names[3]}
    broken = int((at.carry["anchors"] == 3).nonzero())
    moved = (at.carry["estimates"] != at.carry["estimates"][broken]).any(1)
    assert moved.sum() == 39  # the broken one stays where it began
    assert torch.isfinite(at.models["weight"]).all()


def test_a_panel_that_shrinks_below_the_least_gives_up():
    data = small(n=12, d=3)
    data.train.y[data.train.offsets[3] : data.train.offsets[7]] = torch.nan
    with pytest.raises(TooFewReplies, match="8 panel clients replied, wanted 10"):
        last(MomentDescent(k=2, anchors=4, then=None), federation(data))


@pytest.mark.parametrize(
    ("data", "how", "message"),
    [
        ({"m": 10}, {}, "0 clients have the 24 points that an anchor needs, wanted at least 3"),
        ({}, {"anchors": 121}, "120 clients have the 24 points that an anchor needs, wanted at least 121"),
        ({"m": 100}, {"fresh": True, "iterations": 5}, "0 clients have the 120 points"),
        ({"d": 2}, {}, "k = 3 is more than the 2 features"),
        ({"n": 20, "m": 30, "d": 700}, {}, "600 points in all for 700 features"),
        ({"n": 8}, {}, "8 clients with two points or more are left for the panel, wanted 10"),
        ({"n": None, "m": ((30, 1), (5, 40))}, {}, "5 clients with two points or more are left"),
        ({"m": 60}, {"fresh": True, "iterations": 2, "panel": 80}, "left for the panel, wanted 80"),
    ],
)
def test_what_the_data_cannot_carry_is_refused(data, how, message):
    with pytest.raises(InvalidInput, match=message):
        list(drive(MomentDescent(k=3, then=None, **how), federation(small(**data))))


def test_a_client_with_one_point_is_left_out_of_the_panel():
    at = last(MomentDescent(k=2, then=None), federation(small(n=None, m=((5, 1), (30, 40)), d=5)))
    assert at.carry["panel"].tolist() == list(range(5, 35))


def test_it_requires_a_linear_model():
    network = tiny.federation(
        "vectorised", Regression(Network(mlp(3, [4], 1), dtype=torch.float64)), tiny.regression((30,) * 12)
    )
    with pytest.raises(InvalidInput, match="Moment descent needs linear regression: use model"):
        list(drive(MomentDescent(k=2), network))
    with pytest.raises(InvalidInput, match=r"but these labels are classes: .* task='regression' if they are numbers"):
        corymb.fit(MomentDescent(k=2), (np.eye(4).repeat(12, 0), np.arange(48) % 2, np.arange(48) // 4))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"anchors": 2}, "2 anchors cannot find k = 3 clusters"),
        ({"iterations": 0}, "iterations"),
        ({"min_panel": 1}, "a panel of one would show the server that client's own product"),
        ({"panel": 5}, "panel=5 is smaller than min_panel=10"),
        ({"points": 1}, "points"),
        ({"separation": 0.0}, "separation"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"spectrum": (2.0, 1.0)}, "spectrum"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(InvalidInput, match=message):
        MomentDescent(**{"k": 3, **wrong})


def test_settings_travel_as_plain_values():
    for algorithm in (MomentDescent(k=4, spectrum=(0.5, 2.0), then=FedX(rounds=7)), MomentDescent(k=2, then=None)):
        assert from_dict(MomentDescent, to_dict(algorithm)) == algorithm


def test_the_defaults():
    algorithm = MomentDescent()
    assert (algorithm.k, algorithm.iterations, algorithm.whiten, algorithm.then.refinement) == (
        3,
        None,
        True,
        "whitened",
    )
    assert planned_rounds(algorithm) == 40 * 11 + algorithm.then.rounds
    assert planned_rounds(MomentDescent(iterations=5, then=None)) == 5 * 11
