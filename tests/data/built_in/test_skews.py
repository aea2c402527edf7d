import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corymb.data import concept_shift, dirichlet, quantity_skew
from corymb.settings import InvalidInput


def numbered(count, kinds, seed):
    """Images that all differ in their pixels, and their labels."""
    x = np.zeros((count, 2, 2), dtype=np.uint8)
    x[:, 0, 0], x[:, 0, 1] = np.arange(count) % 256, np.arange(count) // 256
    return x, np.random.default_rng(seed).integers(0, kinds, count)


def number_of(x):
    return (x[:, 0, 0, 0].long() + 256 * x[:, 0, 0, 1].long()).tolist()


@st.composite
def deals(draw):
    count, kinds = draw(st.integers(1, 60)), draw(st.integers(1, 5))
    clients = draw(st.integers(1, count))
    least = draw(st.integers(1, count // clients))
    alpha = draw(st.sampled_from([0.001, 0.05, 0.5, 1.0, 100.0]))
    return count, kinds, clients, least, alpha, draw(st.integers(0, 9)), draw(st.integers(0, 30))


@settings(max_examples=30, deadline=None)
@given(deals(), st.sampled_from([dirichlet, quantity_skew]))
def test_every_example_has_one_owner_and_everybody_enough(deal, partition):
    count, kinds, clients, least, alpha, seed, tested = deal
    x, y = numbered(count, kinds, seed)
    x_test, y_test = numbered(tested, kinds, seed + 1)
    options = {"clients": clients, "least": least, "alpha": alpha, "seed": seed}
    data = partition(x, y, x_test, y_test, **options)
    for rows, labels in ((data.train, y), (data.test, y_test)):
        numbers = number_of(rows.x)
        assert sorted(numbers) == list(range(len(labels)))
        assert labels[numbers].tolist() == rows.y.tolist()
    assert int(data.sizes.min()) >= least
    assert len(data) == clients
    assert data.truth is None
    assert data.fingerprint() == partition(x, y, x_test, y_test, **options).fingerprint()


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(0, 9), st.data())
def test_two_clusters_differ_in_every_class(kinds, seed, data):
    clusters = data.draw(st.integers(1, kinds))
    x, y = numbered(40, kinds, seed)
    y[:kinds] = np.arange(kinds)
    made = concept_shift(x, y, x, y, clusters=clusters, clients=clusters, per_client=40, seed=seed)
    assert made.truth.tolist() == list(range(clusters))
    names = []
    for client in range(clusters):
        seen, called = made.train.of(client)
        name = dict(zip(y[number_of(seen)].tolist(), called.tolist(), strict=True))
        assert sorted(name) == sorted(name.values()) == list(range(kinds))
        names.append([name[label] for label in range(kinds)])
        tested, called = made.test.of(client)
        assert [names[-1][label] for label in y[number_of(tested)]] == called.tolist()
    assert names[0] == list(range(kinds))
    for label in range(kinds):
        assert len({name[label] for name in names}) == clusters


def test_small_alpha_means_few_classes_and_uneven_sizes():
    x, y = numbered(1000, 10, 0)

    def kinds(alpha):
        data = dirichlet(x, y, x, y, clients=10, alpha=alpha, seed=1)
        return np.mean([len(data.train.of(client)[1].unique()) for client in range(10)])

    assert kinds(0.05) < 5 < 9.9 <= kinds(100)
    spread = [float(quantity_skew(x, y, x, y, clients=10, alpha=alpha).sizes.double().std()) for alpha in (0.1, 100)]
    assert spread[0] > 100 > 20 > spread[1]


def test_test_examples_follow_the_shares_of_training():
    x, y = numbered(2000, 4, 0)
    data = dirichlet(x, y, x, y, clients=5, alpha=0.3)
    train, test = (
        torch.stack([part.of(i)[1].bincount(minlength=4) for i in range(5)]) for part in (data.train, data.test)
    )
    assert int((train - test).abs().max()) <= 1  # at most what was moved to whoever had none


def test_tables_too():
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    assert dirichlet(x, y, x, y, clients=3).train.x.dtype == torch.float32
    assert quantity_skew(x, y, x, y, clients=3).features == (3,)
    pictures = np.zeros((20, 5, 5, 3), dtype=np.uint8)
    assert dirichlet(pictures, y, pictures, y, clients=3).features == (3, 5, 5)
    assert dirichlet(pictures, y, pictures, y, clients=3, flat=True).features == (75,)


def test_many_clients_are_dealt_to_in_no_time_and_each_has_enough():
    x, y = np.zeros((60_000, 1), np.uint8), np.arange(60_000) % 7
    began = time.process_time()
    data = dirichlet(x, y, x[:0], y[:0], clients=20_000, alpha=0.001, least=3)
    assert set(data.sizes.tolist()) == {3}
    assert time.process_time() - began < 5  # 20 s where every client is looked for among all rows


def pictures(count):
    return np.zeros((count, 2, 2), np.uint8), np.zeros(count, np.int64)


def test_complaints():
    x, y = numbered(10, 3, 0)
    for call, complaint in (
        (lambda: dirichlet(x, y, x, y, clients=6, least=2), "takes 12 training examples of the 10"),
        (lambda: quantity_skew(x, y, x, y, clients=0), "clients=0"),
        (lambda: quantity_skew(x, y, x, y, clients=2, least=0), "least=0"),
        (lambda: dirichlet(x, y, x, y, clients=2, alpha=0), "alpha=0: wanted a number, 0.001 to 1e.09"),
        (lambda: quantity_skew(x, y, x, y, clients=2, alpha=float("inf")), "alpha=inf: wanted a number, 0.001 to"),
        (lambda: quantity_skew(x, y, x, y, clients=2.5), "clients=2.5: wanted a whole number"),
        (lambda: dirichlet(x, y, x, y, clients=2, alpha="0.5"), "alpha='0.5': wanted a number"),
        (lambda: dirichlet(x, y[1:], x, y, clients=2), "10 examples and 9 labels"),
        (lambda: dirichlet(x, y / 2, x, y, clients=2), "one whole number from 0 on for each"),
        (lambda: dirichlet(x, y - 1, x, y, clients=2), "is -1: wanted one whole number from 0 on"),
        (lambda: dirichlet(x[:0], y[:0], x, y, clients=2), "no training examples"),
        (lambda: concept_shift(x, y, x, y, clusters="2"), "clusters=2: wanted a whole number"),
        (lambda: concept_shift(x, y, x, y, clusters=4, clients=4, per_client=2), "there are 3 classes"),
        (lambda: concept_shift(*pictures(0), *pictures(3), clusters=2), "There are no training images"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            call()
