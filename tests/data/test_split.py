import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.data import FederatedDataset
from corymb.data.split import held_out

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def rows_of(sizes):
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


@given(SIZES, st.floats(0, 0.99), st.integers(0, 99))
def test_everybody_keeps_a_training_row_and_tests_its_share(sizes, share, seed):
    client = rows_of(sizes)
    mask = held_out(client, [f"c{i}" for i in range(len(sizes))], share, seed)
    for i, size in enumerate(sizes):
        assert int(mask[client == i].sum()) == min(int(size * share + 0.5), size - 1)


@given(SIZES, st.integers(0, 99), st.randoms(use_true_random=False))
def test_no_other_client_has_a_part_in_it(sizes, seed, random):
    client, names = rows_of(sizes), [f"c{i}" for i in range(len(sizes))]
    mask = held_out(client, names, 0.4, seed)
    order = list(range(len(client)))
    random.shuffle(order)
    order.sort(key=lambda row: client[row] % 2)  # clients interleaved, rows of one client shuffled
    shuffled = torch.tensor(order)
    for i, name in enumerate(names):
        alone = held_out(torch.zeros(sizes[i], dtype=torch.int64), [name], 0.4, seed)
        assert torch.equal(mask[client == i], alone)
        mixed = held_out(client[shuffled], names, 0.4, seed)
        assert torch.equal(mixed[client[shuffled] == i], alone)


def test_adding_a_client_changes_no_other_split():
    rng = np.random.default_rng(0)
    x, y, client = rng.normal(size=(60, 1)), rng.integers(0, 2, 60), np.repeat(["b", "c", "d"], 20)
    before = FederatedDataset.from_arrays(x, y, client)
    after = FederatedDataset.from_arrays(
        np.concatenate([x[:9], x]), np.concatenate([y[:9], y]), np.concatenate([["a"] * 9, client])
    )
    assert after.names == ("a", "b", "c", "d")
    assert after.subset([1, 2, 3]).test.x.tolist() == before.test.x.tolist()


def test_seed_and_name_matter():
    client = torch.zeros(50, dtype=torch.int64)
    masks = [held_out(client, [name], 0.5, seed).tolist() for name in "ab" for seed in range(5)]
    assert len({tuple(mask) for mask in masks}) == 10


def test_rows_are_held_out_evenly():
    client = rows_of([10] * 2000)
    mask = held_out(client, [str(i) for i in range(2000)], 0.2, 0)
    by_place = mask.reshape(2000, 10).float().mean(0)
    assert by_place.tolist() == pytest.approx([0.2] * 10, abs=0.04)
