"""Private rounds: the plain run without noise, bounded influence with it, and a budget that ends the run."""

import math
from dataclasses import replace

import pytest
import torch

from corymb import IFCA, SRFCA, FedAvg, FedProx, Privacy
from corymb.algorithms.parts.restarts import Restarts
from corymb.algorithms.privately.rounds import SECRET
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.faults import Fault, inject
from corymb.local import Descent
from corymb.objectives import LinearRegression
from corymb.privacy.accountant import Release, spent
from corymb.settings import InvalidInput
from corymb.testing.engines import DOUBLE
from corymb.testing.small_data import regression
from tests.tiny import farthest

N = 14
TRUTH = [client % 2 for client in range(N)]
LOCAL = Descent(lr=0.05, steps=3)
OFF = Privacy(noise=0.0, least=1)
ON = Privacy(noise=1.0, clip=0.5, least=1, secret=3)
PLAIN = {
    "FedAvg": FedAvg(rounds=3, local=LOCAL),
    "FedProx": FedProx(rounds=3, local=LOCAL, mu=0.5),
    "IFCA": IFCA(k=2, rounds=4, local=LOCAL, repair=False),
    "IFCA, gradients": IFCA(k=2, rounds=3, local=Descent(lr=0.3), averaging="gradients", repair=False),
    "SR-FCA": SRFCA(threshold="gap", refinements=2, rounds=2, local=LOCAL, trim=0.0),
}


def engine(kind=VectorisedEngine):
    return kind(LinearRegression(3, dtype=torch.float64), regression((6,) * N, TRUTH), DOUBLE)


def run(algorithm, fed=None, start=None):
    fed = fed or Federation(engine())
    return list(drive(algorithm, fed, start, seed=1)), fed


@pytest.mark.parametrize("name", PLAIN)
def test_without_noise_and_clip_it_is_the_plain_run(name):
    plain, _ = run(PLAIN[name])
    private, fed = run(replace(PLAIN[name], privacy=OFF))
    assert len(plain) == len(private)
    assert farthest(plain[-1].models, private[-1].models) < 1e-6
    assert torch.equal(plain[-1].labels, private[-1].labels)
    assert fed.ledger.epsilon == math.inf


@pytest.mark.parametrize(("name", "share"), [("FedAvg", 1 / N), ("FedProx", 1 / N), ("IFCA, gradients", 0.3 / N)])
def test_one_client_moves_a_model_by_its_share_of_the_clip_and_no_more(name, share):
    """The whole of what ε is about; `share` is what a unit in the sum makes of a model."""
    private = replace(PLAIN[name], privacy=replace(ON, noise=0.0, clip=0.01), rounds=1)
    engines = (inject(engine(), faults) for faults in ([], [Fault("dropout", clients=("client-3",))]))
    with_all, without = (run(private, Federation(one))[0][-1].models["weight"] for one in engines)
    assert float((with_all - without).norm()) == pytest.approx(0.01 * share)


def test_a_client_that_does_not_clip_is_refused_and_named():
    fed = Federation(inject(engine(), [Fault("large", clients=("client-3",))]))
    run(FedAvg(rounds=2, local=LOCAL, privacy=replace(ON, noise=0.0)), fed)
    assert {entry["client"] for entry in fed.ledger.rejected} == {"client-3"}


def test_honest_clients_at_the_clip_are_not_refused():
    fed = run(FedAvg(rounds=2, local=LOCAL, privacy=replace(ON, clip=1e-3)))[1]
    assert fed.ledger.rejected == []


def test_engines_agree_and_the_secret_is_the_noise():
    algorithm = IFCA(k=2, rounds=2, local=LOCAL, participants=0.7, privacy=replace(ON, labels=2.0))
    one, other = (run(algorithm, Federation(engine(kind)))[0][-1] for kind in (VectorisedEngine, LoopEngine))
    assert farthest(one.models, other.models) < 1e-9
    fresh = [run(replace(algorithm, privacy=replace(algorithm.privacy, secret=None)))[0][-1] for _ in range(2)]
    assert farthest(fresh[0].models, fresh[1].models) > 1e-3
    assert int(fresh[0].carry[SECRET]) != int(fresh[1].carry[SECRET])


def test_going_on_draws_the_same_noise():
    algorithm = FedAvg(rounds=4, local=LOCAL, privacy=replace(ON, secret=None))
    whole, _ = run(algorithm)
    rest, _ = run(algorithm, start=whole[1])
    assert farthest(whole[-1].models, rest[-1].models) == 0


def test_private_labels_assign_nobody_and_reveal_only_sizes():
    snapshots, _ = run(IFCA(k=2, rounds=2, local=LOCAL, privacy=replace(ON, labels=3.0)))
    assert snapshots[-1].labels.tolist() == [-1] * N
    assert len(snapshots[-1].notes["cluster_sizes"]) == 2


def test_each_client_is_drawn_by_itself():
    _, fed = run(FedAvg(rounds=40, local=Descent(lr=0.01), participants=0.25, privacy=ON))
    assert fed.ledger.asked == pytest.approx(40 * N / 4, rel=0.25)


def test_a_round_that_draws_nobody_is_noise_alone():
    snapshots, fed = run(FedAvg(rounds=6, local=LOCAL, participants=0.01, privacy=ON))
    assert len(snapshots) == 6
    assert fed.ledger.asked < 6


def test_a_budget_ends_the_run_and_is_never_exceeded(caplog):
    algorithm = FedAvg(rounds=30, local=LOCAL, privacy=replace(ON, noise=3.0, epsilon=5.0))
    snapshots, fed = run(algorithm)
    spent = [at.notes["epsilon"] for at in snapshots]
    assert 2 < len(snapshots) < 30
    assert spent == sorted(spent)
    assert fed.ledger.epsilon == spent[-1] <= 5.0
    assert snapshots[-1].notes["privacy_budget"] == "spent"
    assert "budget is spent" in caplog.text
    rest, _ = run(algorithm, start=snapshots[1])
    assert len(rest) == len(snapshots) - 2
    assert run(algorithm, start=snapshots[-1])[0] == []


@pytest.mark.parametrize("algorithm", [PLAIN["FedAvg"], PLAIN["SR-FCA"]], ids=["FedAvg", "SR-FCA"])
def test_a_budget_that_allows_nothing_is_refused_before_anything_runs(algorithm):
    fed = Federation(engine())
    with pytest.raises(InvalidInput, match="cost"):
        list(drive(replace(algorithm, privacy=replace(ON, epsilon=0.01)), fed))
    assert fed.ledger.asked == 0


@pytest.mark.parametrize("second", [FedAvg, FedProx])
def test_a_handover_continues_the_account(second):
    budget = replace(ON, noise=3.0, epsilon=3.0)
    whole, _ = run(FedAvg(rounds=30, local=LOCAL, participants=0.5, privacy=budget))
    first, _ = run(FedAvg(rounds=4, local=LOCAL, participants=0.5, privacy=budget))
    rest, fed = run(second(rounds=30, local=LOCAL, participants=0.5, privacy=budget), start=first[-1].handover())
    assert len(first) + len(rest) == len(whole)
    assert fed.ledger.epsilon == rest[-1].notes["epsilon"] == pytest.approx(whole[-1].notes["epsilon"])
    with pytest.raises(InvalidInput, match=r"does not allow a single round: .* are spent on the models of the start"):
        run(second(rounds=1, local=LOCAL, participants=0.5, privacy=budget), start=rest[-1].handover())


def test_rounds_of_other_noise_and_sampling_add_up():
    budget = replace(ON, noise=3.0)
    first, _ = run(FedAvg(rounds=3, local=LOCAL, participants=0.5, privacy=budget))
    then, _ = run(IFCA(k=1, rounds=2, local=LOCAL, privacy=replace(ON, noise=4.0)), start=first[-1].handover())
    want = spent(Release(4.0, 1.0), 2, ON.delta, ((Release(3.0, 0.5), 3),))
    assert then[-1].notes["epsilon"] == want
    assert max(spent(Release(4.0, 1.0), 2, ON.delta), first[-1].notes["epsilon"]) < want
    again, _ = run(IFCA(k=1, rounds=2, local=LOCAL, privacy=replace(ON, noise=4.0)), start=then[0])
    assert again[-1].notes["epsilon"] == want


def test_sr_fca_continues_the_account_too():
    first, _ = run(FedAvg(rounds=2, local=LOCAL, privacy=ON))
    algorithm = replace(PLAIN["SR-FCA"], privacy=ON)
    then, _ = run(algorithm, start=first[-1].handover())
    assert then[-2].notes["epsilon"] == spent(Release(1.0, 1.0), 4, ON.delta, ((Release(1.0, 1.0), 2),))
    assert run(algorithm, start=then[4])[0][-2].notes == then[-2].notes


def test_private_restarts_are_refused():
    with pytest.raises(InvalidInput, match="not covered by the privacy accounting"):
        Restarts(inner=FedAvg(privacy=ON), times=2)
