from dataclasses import replace
from functools import cache

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from corymb.algorithms import CFL, IFCA, SRFCA, UIFCA, FedAvg, FedProx, FedSoft, FedX
from corymb.core import reductions
from corymb.core.averaging import Reduction
from corymb.core.client import Share
from corymb.core.driver import drive
from corymb.core.lengths import Near
from corymb.core.reductions import centred_clipping, geometric_median, krum, median, multi_krum, trimmed_mean
from corymb.core.sums import add_up
from corymb.keys import fold, normal, root
from corymb.robust import group_trimmed_mean
from corymb.settings import InvalidInput
from corymb.testing.cases import CASES
from corymb.testing.engines import ENGINES
from corymb.trees import leaves
from tests.tiny import farthest

AGGREGATES = ["trimmed", "median", "geometric-median", "krum", "multi-krum", "centred-clipping"]
MODELS = {"a": normal(root(1), (2, 3)).double(), "b": normal(root(2), (2,)).double()}
LABEL = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0, 1, 0])
ROWS = Share(
    {"a": normal(fold(root(3), "a"), (10, 3)).double(), "b": normal(fold(root(3), "b"), (10,)).double()},
    torch.nn.functional.one_hot(LABEL, 2).double() * torch.arange(1, 11)[:, None],
    LABEL,
    torch.arange(10.0),
)


def by_hand(aggregate, updates):
    f = len(updates) // 4
    usual = float(updates.norm(dim=1).sort().values[(len(updates) - 1) // 2])
    return {
        "trimmed": lambda: trimmed_mean(updates, f),
        "median": lambda: median(updates),
        "geometric-median": lambda: geometric_median(updates, smoothing=1e-6 * usual, steps=32),
        "krum": lambda: krum(updates, f),
        "multi-krum": lambda: multi_krum(updates, f),
        "centred-clipping": lambda: centred_clipping(updates, radius=usual, steps=3),
    }[aggregate]()


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_updates_are_reduced_inside_each_cluster(aggregate):
    mean = Reduction(aggregate).sums(ROWS, Near(MODELS)).mean(MODELS)
    for j in range(2):
        mine = j == LABEL
        rows = torch.cat([ROWS.value["a"][mine], ROWS.value["b"][mine, None]], dim=1)
        start = torch.cat([MODELS["a"][j], MODELS["b"][j, None]])
        want = start + by_hand(aggregate, rows - start)
        assert torch.allclose(torch.cat([mean["a"][j], mean["b"][j, None]]), want, atol=1e-12)


class Copies(TorchDispatchMode):
    """Counts the tensors of at least so many bytes that operations make."""

    def __init__(self, least):
        super().__init__()
        self.least, self.made = least, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        known = {leaf.untyped_storage().data_ptr() for leaf in leaves(args) + leaves(kwargs or {})}
        out = func(*args, **(kwargs or {}))
        new = [leaf for leaf in leaves(out) if leaf.untyped_storage().data_ptr() not in known]
        self.made += sum(leaf.untyped_storage().nbytes() >= self.least for leaf in new)
        return out


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_a_reduction_copies_the_rows_once(monkeypatch, aggregate, clip):
    monkeypatch.setattr(reductions, "BLOCK", 4096)
    start = {name: torch.zeros(1, 1000) for name in "abcd"}
    rows = Share({name: normal(fold(root(4), name), (64, 1000)) for name in start}, torch.ones(64, 1))
    with Copies(64 * 4000 * 4 * 3 // 4) as copies:
        Reduction(aggregate, clip).sums(rows, Near(start)).mean(start)
    assert copies.made <= 1 + (aggregate == "multi-krum")  # the updates, and those that Multi-Krum keeps


def test_krum_finds_the_nearest_among_rows_that_have_much_in_common():
    rows = 1e4 + normal(root(5), (12, 50), torch.float32)
    assert torch.equal(krum(rows, 3), krum(rows.double(), 3).float())


def test_a_clip_longer_than_all_updates_gives_the_plain_sum():
    got, want = Reduction(clip=1e9).sums(ROWS, Near(MODELS)), add_up(ROWS)
    assert farthest((got.total, got.weight), (want.total, want.weight)) < 1e-12


def test_longer_updates_are_shortened_to_the_clip():
    one = Share({"a": torch.tensor([[3.0, 0, 0]]), "b": torch.tensor([4.0])}, torch.ones(1, 1), None, ())
    start = {"a": torch.zeros(1, 3), "b": torch.zeros(1)}
    mean = Reduction(clip=0.5).sums(one, Near(start)).mean(start)
    assert torch.allclose(mean["a"], torch.tensor([[0.3, 0, 0]]))
    assert torch.allclose(mean["b"], torch.tensor([0.4]))


def test_a_cluster_without_replies_keeps_its_model():
    rows = ROWS._replace(weight=torch.nn.functional.one_hot(torch.zeros(10).long(), 2).double())
    mean = Reduction("median").sums(rows, Near(MODELS)).mean(MODELS)
    assert torch.equal(mean["a"][1], MODELS["a"][1])


# ---- every algorithm that averages

AVERAGING = ["FedAvg", "FedProx", "IFCA", "IFCA, gradients", "FedX", "CFL", "FedSoft", "IFCA, shared layer"]


ROWS_OF_THEIR_OWN = ["SR-FCA", "UIFCA", "local k-means"]
"""Algorithms whose replies come as rows, or as a value for every cluster."""


def last_of(case, engine="vectorised"):
    return list(drive(case.algorithm, case.federation(engine), seed=3))[-1]


def with_settings(case, **settings):
    return case._replace(algorithm=replace(case.algorithm, **settings))


plain_run = cache(last_of)


def longer(*where, plain):
    """A case for `make long`, unless it is a plain one."""
    return pytest.param(*where, marks=[] if plain else [pytest.mark.long])


CLIPPED = [*AVERAGING, *ROWS_OF_THEIR_OWN]


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        longer(name, engine, plain=engine == "vectorised" or name == CLIPPED[0])
        for name in CLIPPED
        for engine in ENGINES
    ],
)
def test_a_clip_longer_than_all_updates_changes_no_run(name, engine):
    case = CASES[name]
    got, want = last_of(with_settings(case, clip=1e9), engine), plain_run(case)
    assert farthest(got.models, want.models) < 1e-9
    assert torch.equal(got.labels, want.labels)


@pytest.mark.parametrize(
    ("name", "aggregate"),
    [
        longer(name, aggregate, plain=aggregate == "multi-krum" or name == CLIPPED[0])
        for name in AVERAGING
        for aggregate in AGGREGATES
    ],
)
def test_every_reduction_goes_with_every_algorithm_that_averages(name, aggregate):
    case = CASES[name]
    at = [last_of(with_settings(case, aggregate=aggregate), engine) for engine in ("vectorised", "loop")]
    assert farthest(at[0].models, at[1].models) < 1e-9
    plain = plain_run(case)
    assert at[0].k != plain.k or farthest(at[0].models, plain.models) > 1e-6  # CFL may split otherwise


@pytest.mark.parametrize("name", ROWS_OF_THEIR_OWN)
@pytest.mark.parametrize("aggregate", ["median", "geometric-median", "multi-krum"])
def test_reductions_of_rows_are_the_same_on_every_engine_and_another_run_than_the_mean(name, aggregate):
    case = CASES[name]
    robust = with_settings(case, aggregate=aggregate, **({"trim": 0.3} if name == "SR-FCA" else {}))
    at = [last_of(robust, engine) for engine in ("vectorised", "loop")]
    assert farthest(at[0].models, at[1].models) < 1e-9
    assert farthest(at[0].models, plain_run(with_settings(robust, aggregate="mean")).models) > 1e-6


def test_the_trimmed_mean_of_sr_fca_is_the_papers_with_a_clip_or_without():
    rows = {"a": torch.randn(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}
    labels, starts = torch.arange(9) % 2, {"a": torch.zeros(3, 3, dtype=torch.float64)}
    got = Reduction("trimmed", clip=1e9, tolerated=0.3).within(rows, labels, starts)
    assert farthest(got, group_trimmed_mean(rows, labels, starts, trim=0.3)) < 1e-12
    assert torch.equal(got["a"][2], starts["a"][2])


def test_moments_have_no_reduction():
    with pytest.raises(InvalidInput, match="moments, not models"):
        UIFCA(k=2, density="gaussian", aggregate="median")


@pytest.mark.parametrize("kind", [FedAvg, FedProx, CFL, FedX, SRFCA])
def test_a_clip_must_be_positive(kind):
    with pytest.raises(InvalidInput, match="clip must be positive"):
        kind(clip=0.0)


def test_soft_clusters_are_averaged_by_the_mean():
    with pytest.raises(InvalidInput, match="soft"):
        IFCA(k=2, soft=1.0, aggregate="median")
    with pytest.raises(InvalidInput, match="soft"):
        FedX(k=2, assignment="soft", aggregate="median")
    assert FedSoft(k=2, aggregate="median").aggregate == "median"


def colluding(honest, f):
    """What f clients may send together: the same lie, or several."""
    mean, spread = honest.mean(0), honest.std(0)
    lies = {
        "far": mean + 1e12,
        "beyond": torch.full_like(mean, 1e300),
        "reversed": -10 * mean,
        "zeros": 0 * mean,
        "a little": mean - 1.5 * spread,
    }
    yield from (lie.expand(f, -1) for lie in lies.values())
    yield torch.stack([mean + (-1) ** i * 10 ** (6 + 3 * i) for i in range(f)])


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize(("n", "f"), [(8, 2), (12, 2), (12, 3)])
def test_colluding_clients_move_no_reduction_far_from_the_honest_updates(aggregate, n, f):
    for d in (1, 50):
        honest = 1 + 0.3 * torch.randn(n - f, d, generator=torch.Generator().manual_seed(d), dtype=torch.float64)
        widest = (honest - honest.mean(0)).norm(dim=1).max()
        start = {"w": torch.zeros(1, d, dtype=torch.float64)}
        for lies in colluding(honest, f):
            rows = Share({"w": torch.cat([lies, honest])}, torch.ones(n, 1, dtype=torch.float64))
            found = Reduction(aggregate).sums(rows, Near(start)).mean(empty=start)["w"][0]
            assert float((found - honest.mean(0)).norm()) < 2.1 * float(widest)
