"""UIFCA finds clusters of examples, never sends labels, and copes with clients that have very few examples."""

from dataclasses import replace

import pytest
import torch

import corymb
from corymb import UIFCA, Descent, KFed, fit
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.data import FederatedDataset
from corymb.data.built_in.points import gaussians, subspace
from corymb.evaluate import evaluate
from corymb.models.flows import Affine, Shift
from corymb.objectives import Density
from corymb.objectives.module import limited
from corymb.runs.standardise.objective import Standard
from corymb.settings import InvalidInput
from corymb.testing.engines import DOUBLE, Spy, engine_maker
from corymb.testing.small_data import clients
from corymb.trees import leaves

FAST = Descent(lr=0.05, steps=20, optimiser="adam", clip_gradient=100.0)


def data_of(x, sizes, y=None):
    return clients(torch.as_tensor(x).double(), torch.zeros(len(x)).long() if y is None else y, sizes)


def two_heaps(sizes, seed=0):
    """Examples near −3 and +3 by turns, and which is which."""
    key = torch.Generator().manual_seed(seed)
    y = torch.arange(sum(sizes)) % 2
    return (6.0 * y - 3)[:, None] + 0.3 * torch.empty(sum(sizes), 2).normal_(generator=key), y


def last(algorithm, flow, data, engine="vectorised"):
    fed = Federation(engine_maker(engine)(Density(flow, dtype=torch.float64), data, DOUBLE))
    *_, at = drive(algorithm, fed, seed=1)
    return fed, at


def test_subspaces_are_found_by_the_affine_flow():
    run = fit(UIFCA(k=2, rounds=8, local=FAST), subspace(1, k=2, m=150, d=8, rank=3, test=50), seed=1)
    assert run.metrics["purity"] > 0.97
    assert run.metrics["test_purity"] > 0.97
    assert run.labels == {}
    assert run.metrics["accuracy_of_0"] > 0.9


def test_gaussians_are_found_in_closed_form_from_k_feds_labels():
    data = gaussians(2, k=3, m=80, d=6, test=20)
    run = fit(UIFCA(k=3, density="gaussian", rounds=4, init="kfed"), data, seed=1)
    assert run.metrics["purity"] == 1
    labels = run.assign_points(data.test.x.numpy())
    table = torch.zeros(3, 3)
    for one, other in zip(labels, data.test.y, strict=True):
        table[one, other] += 1
    assert (table > 0).sum() == 3
    drawn = run.sample(int(labels[0]), 200)
    assert drawn.shape == (200, 6)
    assert set(run.assign_points(drawn)) == {labels[0]}


def test_sampled_rows_beyond_the_limit_are_in_the_units_of_the_data():
    data = gaussians(2, k=3, m=80, d=6, test=20)
    run = fit(UIFCA(k=3, density="gaussian", rounds=2), data, seed=1)
    usual = run.sample(0, 200)
    standard = Standard(torch.zeros(6), torch.ones(6), torch.tensor(0.0), torch.tensor(1.0))
    drawn = torch.as_tensor(replace(run, standard=standard).sample(0, 200))
    standard = standard._replace(mean=torch.full((6,), 7.0), scale=torch.full((6,), 2.0), limit=torch.full((6,), 0.5))
    limited_run = replace(run, standard=standard)
    sampled = torch.as_tensor(limited_run.sample(0, 200))
    assert bool(((sampled - 7).abs() > 2 * 0.5).any())
    assert torch.allclose(limited((sampled - 7) / 2, standard.limit), drawn, rtol=1e-4, atol=1e-4)
    assert usual.shape == sampled.shape


def test_one_exchange_of_gaussians_is_the_pooled_fit():
    """Sums of counts, x and x xᵀ give the mean and covariance that pooling all examples would."""
    x, _y = two_heaps([9, 4, 11])
    algorithm = UIFCA(k=1, density="gaussian", rounds=1, shrinkage=0.0, least=1)
    _, at = last(algorithm, Affine(2), data_of(x, [9, 4, 11]))
    covariance = x.double().T.cov(correction=0)
    floor = 1e-6 * covariance.diagonal().mean() * torch.eye(2)
    want = Affine.gaussian(x.mean(0).double(), covariance + floor)
    assert torch.allclose(at.models["matrix"][0], want["matrix"], atol=1e-9)
    assert torch.allclose(at.models["shift"][0], want["shift"], atol=1e-9)


@pytest.mark.parametrize("density", ["affine", "gaussian"])
def test_tiny_clients_and_empty_clusters_work(density):
    """A client with one example, more clusters than examples at a client, clusters that end empty."""
    x, _ = two_heaps([1, 2, 14])
    algorithm = UIFCA(k=5, density=density, rounds=3, exchanges=1, local=Descent(lr=0.05, steps=3, batch=2))
    _, at = last(algorithm, Affine(2), data_of(x, [1, 2, 14]))
    assert all(bool(value.isfinite().all()) for value in leaves(at.models))
    assert bool((at.labels == -1).all())


def test_a_single_example_is_not_sent():
    x, _ = two_heaps([1, 12])
    data = data_of(x, [1, 12])
    spy = Spy(engine_maker("wired")(Density(Affine(2), dtype=torch.float64), data, DOUBLE))
    list(drive(UIFCA(k=1, density="gaussian", rounds=2), Federation(spy), seed=1))
    sums = [part.value for parts in spy.parts for part in parts if part.ids.tolist() == [0]]
    assert sums
    assert all(float(one.weight.sum()) == 0 and float(one.total["mean x"].abs().sum()) == 0 for one in sums)


def test_restarts_keep_the_likeliest_run():
    run = fit(UIFCA(k=3, density="shift", rounds=2, local=FAST, restarts=3), gaussians(0, k=3, m=60, d=4), seed=2)
    losses = run.history[-1]["notes"]["restart_losses"]
    assert len(losses) == 3
    assert run.history[-1]["notes"]["best_restart"] == losses.index(min(losses))


def test_a_run_ends_when_labels_rest():
    algorithm = UIFCA(k=2, density="gaussian", rounds=15, init="kfed", settled=0.0)
    x, y = two_heaps([20, 20])
    fed, at = last(algorithm, Affine(2), data_of(x, [20, 20], y))
    assert at.round < 15
    assert at.notes["moved"] == 0
    assert sorted(at.notes["points"]) == [20, 20]
    assert list(drive(algorithm, fed, at)) == []
    assert evaluate(fed, algorithm, at, classes=("low", "high"))["purity"] == 1


def test_a_prior_moves_examples_to_clusters_that_a_client_has_more_of():
    """Between two heaps, an example goes with its client."""
    low, high = torch.full((30, 1), -1.0), torch.full((30, 1), 1.0)
    spread = 0.8 * torch.empty(60, 1).normal_(generator=torch.Generator().manual_seed(0))
    x = torch.cat([low, high]) + spread
    y = torch.arange(2).repeat_interleave(30)
    found = {}
    for prior in (False, True):
        algorithm = UIFCA(k=2, density="gaussian", rounds=8, init="kfed", prior=prior)
        fed, at = last(algorithm, Affine(1), data_of(x, [30, 30], y))
        found[prior] = evaluate(fed, algorithm, at, classes=("low", "high"))["purity"]
    assert found[True] > found[False]


def test_data_without_labels_can_be_clustered():
    x, _ = two_heaps([20, 20])
    data = FederatedDataset.from_arrays(x.numpy(), None, [0] * 20 + [1] * 20, test=0.25)
    assert data.task == "density"
    run = fit(UIFCA(k=2, density="gaussian", rounds=3, init="kfed"), data)
    assert "purity" not in run.metrics
    assert len(set(run.assign_points([[-3, -3], [3, 3]]))) == 2


@pytest.mark.parametrize(
    ("settings", "wrong"), [({"k": 0}, "k must be"), ({"shrinkage": 2.0}, "shrinkage"), ({"settled": 1.0}, "settled")]
)
def test_settings_that_make_no_sense_are_refused(settings, wrong):
    with pytest.raises(InvalidInput, match=wrong):
        UIFCA(**{"k": 2, **settings})


# ---- k-FED


def test_kfed_finds_heaps_though_no_client_has_all():
    x = torch.tensor([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2], [5.0], [5.3], [9.0], [9.1], [9.2]])
    y = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2])
    algorithm = KFed(k=3, centres=2)
    fed, at = last(algorithm, Shift(1), data_of(x, [6, 5], y))
    assert evaluate(fed, algorithm, at, classes=("a", "b", "c"))["purity"] == 1
    assert sorted((-at.models["shift"]).flatten().tolist()) == pytest.approx([0.1, 5.12, 9.1], abs=0.05)


def test_kfed_requires_enough_centres():
    x, _ = two_heaps([4, 4])
    with pytest.raises(InvalidInput, match="model 'shift'"):
        last(KFed(k=2), Affine(2), data_of(x, [4, 4]))
    with pytest.raises(InvalidInput, match=r"got 4 centres of 2 examples or more .* lower k or centres .*, or least"):
        last(KFed(k=9, centres=2), Shift(2), data_of(x, [4, 4]))


def test_bytes_are_those_of_the_docs():
    n, k, c, d, s = 3, 2, 4, 5, 4
    data = gaussians(0, k=n, m=30, d=d, test=5)
    run = fit(KFed(k=k, centres=c), data, evaluate_every=0)
    assert (run.ledger.bytes_down, run.ledger.bytes_up) == (n * 2 * k * d * s, n * (c * (d + 1) + 1) * s)
    for density, size, numbers in (
        ("affine", d + d * d, (d + d * d + 1) * s),
        ("gaussian", d + d * d, s + 8 * (d + d * d)),
    ):
        run = fit(UIFCA(k=k, density=density, rounds=2, exchanges=1, local=FAST), data, evaluate_every=0)
        first, second = run.history[-2:]
        assert first["bytes_down"] == second["bytes_down"] == n * k * size * s
        assert (first["bytes_up"], second["bytes_up"]) == (n * k * numbers, n * k * (numbers + 2 * s))


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("algorithm", [KFed(k=2), UIFCA(k=2, density="gaussian", rounds=3, init="kfed")])
def test_examples_far_from_zero_keep_their_digits(algorithm, engine):
    x, y = two_heaps([20, 24, 18])
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor([20, 24, 18]))
    data = FederatedDataset.from_arrays((x + 3e4).numpy(), y.numpy(), owner.numpy(), scale="none")
    run = fit(algorithm, data, engine=engine)
    assert run.metrics["purity"] == run.metrics["test_purity"] == 1


def table(unit):
    """Two heaps that differ in a feature with units of its own; examples as users have them, in a table."""
    x, y = two_heaps([20, 24, 18], seed=3)
    x = x * torch.tensor([1.0, unit]) + torch.tensor([0.0, 10 * unit])
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor([20, 24, 18]))
    return FederatedDataset.from_arrays(x.numpy(), y.numpy(), owner.numpy(), task="density")


@pytest.mark.parametrize(
    "algorithm",
    [KFed(k=2), UIFCA(k=2, density="gaussian", rounds=3, init="kfed"), UIFCA(k=2, rounds=4, init="kfed", local=FAST)],
    ids=["k-FED", "Gaussians", "affine"],
)
def test_examples_in_raw_units_are_clustered_as_standardised_ones(algorithm):
    run = fit(algorithm, table(unit=1e5))
    assert run.standard is not None
    assert run.metrics["purity"] == 1
    assert sorted(run.points) == sorted(fit(algorithm, table(unit=1.0)).points)
    drawn = run.sample(0, 50)
    assert drawn[:, 1].mean() > 1e5  # in the units of the data
    assert (run.assign_points(drawn) == 0).mean() > 0.7  # k-FED's have variance 1


def test_the_space_of_long_tables_is_that_of_standardised_examples():
    """70 columns, one of them in units so large that it would be the only principal component."""
    key = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 2
    x = 4.0 * y[:, None] + torch.empty(80, 70).normal_(generator=key)
    x[:, 0] = 1e6 * torch.empty(80).normal_(generator=key)
    data = FederatedDataset.from_arrays(x.numpy(), y.numpy(), (torch.arange(80) // 20).numpy(), task="density")
    run = fit(UIFCA(k=2, density="gaussian", rounds=3, init="kfed", space_steps=3), data)
    assert run.metrics["purity"] == 1


def test_a_run_without_labels_says_how_many_examples_each_cluster_has(tmp_path):
    x, _ = two_heaps([1, 2, 14])
    data = FederatedDataset.from_arrays(x.numpy(), None, ["a"] + ["b"] * 2 + ["c"] * 14)
    run = fit(UIFCA(k=4, density="gaussian", rounds=3), data, out=tmp_path / "run")
    assert sum(run.points) == int(data.sizes.sum())
    assert run.clusters == sum(size > 0 for size in run.points)
    assert run.sizes == dict(enumerate(run.points))
    assert run.to_dict()["points"] == list(run.points)
    assert "purity" not in run.metrics
    assert corymb.Run.load(tmp_path / "run").points == run.points
    with pytest.raises(InvalidInput, match="assign_points"):
        run.assign(x.numpy(), [0] * 17)
    with pytest.raises(InvalidInput, match="assign_points"):
        run.predict(x.numpy(), cluster=0)
    with pytest.raises(InvalidInput, match="There is no cluster 4"):
        run.sample(4, 1)
