"""The baselines: what leaves a client that is alone, the oracle's clusters, one-shot, IFCA's local test protocol."""

import pytest
import torch

from corymb.algorithms import IFCA, Alone, FedAvg, FedProx, FedX, OneShot, Oracle
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.data.built_in.digits import digits
from corymb.data.built_in.synthetic import mixed_regression_ifca
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.evaluate import adjusted_rand_index, evaluate, local_models_on_cluster
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression
from corymb.settings import InvalidInput
from corymb.testing.cases import LINE, MOMENTS, TRUTH
from tests.contracts.cases import CASES

LOCAL = Descent(lr=0.3, steps=10)


@pytest.fixture(scope="module")
def data():
    return digits(seed=0)


def federation(data, engine=VectorisedEngine):
    return Federation(engine(Classification(Network(mlp(64, [32], 10)), 10), data))


def last(algorithm, fed, seed=0):
    for at in drive(algorithm, fed, seed=seed):
        final = at
    return final


def test_alone_sends_one_start_and_receives_only_losses(data):
    fed = federation(data)
    last(Alone(rounds=3, local=LOCAL), fed)
    parameters = 64 * 32 + 32 + 32 * 10 + 10
    assert fed.ledger.bytes_down == 80 * parameters * 4
    assert fed.ledger.bytes_up == 3 * 80 * 4


def test_alone_is_training_without_a_break(data):
    """Three rounds of ten local steps are thirty steps of a client alone."""
    fed = federation(data, LoopEngine)
    cohort = fed.clients[:2]
    small = fed.only(cohort)
    final = last(Alone(rounds=3, local=LOCAL), small)
    whole = federation(data, LoopEngine)
    final_whole = last(Alone(rounds=1, local=Descent(lr=0.3, steps=30)), whole.only(whole.clients[:2]))
    a = evaluate(small, Alone(), final)["train_loss"]
    b = evaluate(whole.only(whole.clients[:2]), Alone(), final_whole)["train_loss"]
    assert a == pytest.approx(b, rel=1e-5)


def test_alone_with_penalties_takes_one_round_and_fewer_examples_astray():
    data = mixed_regression_ifca(n=6, m=6, d=4, test=50, sigma=2.0)
    errors = {}
    for keep in ("last", "penalised"):
        fed = Federation(VectorisedEngine(LinearRegression(4), data))
        algorithm = Alone(rounds=40, local=Descent(lr=0.1, steps=20), keep=keep)
        *_, at = rounds = list(drive(algorithm, fed, seed=0))
        assert len(rounds) == (1 if keep == "penalised" else 40)
        assert list(drive(algorithm, fed, at, seed=0)) == []
        errors[keep] = evaluate(fed, algorithm, at)["test_squared_error"]
    assert errors["penalised"] < errors["last"]


def test_alone_with_penalties_trains_what_is_not_linear(data):
    fed = federation(data)
    small = fed.only(fed.clients[:2])
    rounds = [list(drive(Alone(rounds=2, local=LOCAL, keep=keep), small, seed=0)) for keep in ("best", "penalised")]
    assert [at.notes["train_loss"] for at in rounds[0]] == [at.notes["train_loss"] for at in rounds[1]]


def test_fedavg_counts_clients_alike_or_by_their_examples():
    case = CASES["FedAvg"]
    own, sizes = [], case.federation("loop").sizes
    for i in range(len(sizes)):
        fed = case.federation("loop")
        own.append(last(FedAvg(rounds=1, local=LINE), fed.only(fed.clients[i : i + 1])).models["weight"][0])
    for weights, portion in (("clients", torch.ones(len(sizes))), ("examples", sizes)):
        found = last(FedAvg(rounds=1, local=LINE, weights=weights), case.federation("loop")).models["weight"][0]
        portion = portion.double() / portion.sum()
        assert torch.allclose(found, portion @ torch.stack(own), atol=1e-12)


def test_the_local_protocol_tests_every_model_on_its_whole_cluster(data):
    fed = federation(data)
    algorithm = Alone(rounds=3, local=LOCAL)
    final = last(algorithm, fed)
    whole = local_models_on_cluster(fed, algorithm, final, data.truth, at_once=7)
    own = evaluate(fed, algorithm, final)["test_accuracy"]
    assert whole == pytest.approx(own, abs=0.05)  # the same quantity on other examples of the same rotation
    wrong = local_models_on_cluster(fed, algorithm, final, data.truth.roll(20), at_once=7)
    assert wrong == pytest.approx(whole, abs=1e-6)  # clusters keep their members under another name
    mixed = local_models_on_cluster(fed, algorithm, final, torch.arange(80) % 4)
    assert mixed < whole - 0.2  # models on other rotations: this is what the protocol must not do


def test_the_oracle_trains_inside_the_true_clusters(data):
    fed = federation(data)
    algorithm = Oracle(groups=tuple(data.truth.tolist()), inner=FedAvg(rounds=5, local=LOCAL))
    final = last(algorithm, fed)
    assert torch.equal(final.labels, data.truth)
    assert final.k == 4
    alone = federation(data).only(federation(data).clients)
    one = last(FedAvg(rounds=5, local=LOCAL), alone)
    better = evaluate(fed, algorithm, final)["test_accuracy"]
    assert better > evaluate(alone, FedAvg(), one)["test_accuracy"] + 0.05


def test_groups_that_do_not_fit_are_refused(data):
    with pytest.raises(InvalidInput, match="numbered 0 to 1"):
        Oracle(groups=(0, 2))
    with pytest.raises(InvalidInput, match="groups has 2 entries"):
        last(Oracle(groups=(0, 1)), federation(data))


def test_one_shot_finds_rotations_and_trains_inside_them(data):
    fed = federation(data)
    final = last(OneShot(k=4, alone=Descent(lr=0.3, steps=30), inner=FedAvg(rounds=2, local=LOCAL)), fed)
    assert adjusted_rand_index(final.labels, data.truth) == 1.0


def test_one_shot_solves_linear_models_exactly():
    """One client a cluster: its model after the exchange is its own least-squares solution, of least norm if m < d."""
    data = mixed_regression_ifca(0, n=2, m=4, d=6, k=2, sigma=0.1, test=1)
    fed = Federation(VectorisedEngine(LinearRegression(6), data))
    first = next(drive(OneShot(k=2), fed))
    for i in range(2):
        x, y = data.train.of(i)
        assert torch.allclose(first.models["weight"][first.labels[i]], torch.linalg.pinv(x) @ y, atol=1e-4)


def test_fedprox_without_pull_is_fedavg_and_with_it_stays_nearer(data):
    plain = last(FedAvg(rounds=2, local=LOCAL), federation(data))
    free = last(FedProx(mu=0, rounds=2, local=LOCAL), federation(data))
    held = last(FedProx(mu=2.0, rounds=2, local=LOCAL), federation(data))
    start = last(FedAvg(rounds=1, local=Descent(lr=1e-9)), federation(data))
    for name, value in plain.models.items():
        assert torch.equal(value, free.models[name])
    assert (held.models["1.weight"] - start.models["1.weight"]).norm() < (
        plain.models["1.weight"] - start.models["1.weight"]
    ).norm()


def test_any_algorithm_runs_inside_clusters(data):
    fed = federation(data)
    final = last(Oracle(groups=tuple(data.truth.tolist()), inner=IFCA(k=2, rounds=2, local=LOCAL)), fed)
    assert final.k == 8
    assert torch.equal(final.labels // 2, data.truth)


@pytest.mark.parametrize(
    "inner",
    [
        FedAvg(rounds=2, local=LINE),
        FedProx(rounds=2, local=LINE),
        IFCA(k=2, rounds=2, local=LINE),
        FedX(k=2, rounds=2, assignment="soft"),
        MOMENTS,
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_algorithms_inside_clusters_are_those_of_the_clusters_clients_alone(inner):
    """The oracle's first cluster has the same models as a federation of its clients by themselves."""
    case = CASES["Oracle"]
    fed = case.federation("loop")
    *_, joint = drive(Oracle(groups=TRUTH, inner=inner), fed, seed=1)
    alone = case.federation("loop")
    *_, first = drive(inner, alone.only(alone.clients.where(torch.tensor(TRUTH) == 0)), seed=1)
    assert torch.equal(joint.labels[torch.tensor(TRUTH) == 0], first.labels[torch.tensor(TRUTH) == 0])
    assert torch.allclose(joint.models["weight"][: first.k], first.models["weight"], rtol=0, atol=1e-12)
    assert joint.k == 2 * first.k
    if first.shares is not None:
        assert joint.shares.shape == (7, 4)
        assert torch.allclose(joint.shares[:, :2], first.shares)


def test_a_federation_of_some_clients_may_have_an_oracle():
    fed = CASES["Oracle"].federation("loop")
    some = fed.only(fed.clients[[1, 2, 5]])
    *_, at = drive(Oracle(groups=(1, 0, 0), inner=FedAvg(rounds=1, local=LINE)), some)
    assert at.labels.tolist() == [-1, 1, 0, -1, -1, 0, -1]
