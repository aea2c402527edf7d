import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from corymb import keys

seeds = st.integers(-(2**70), 2**70)
items = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5)
lengths = st.integers(1, 9)
DRAWS = {
    "bits": lambda key: keys.bits(key, (3, 2)),
    "uniform": lambda key: keys.uniform(key, (4,)),
    "uniform64": lambda key: keys.uniform(key, (4,), torch.float64),
    "integers": lambda key: keys.integers(key, 17, (5,)),
    "normal": lambda key: keys.normal(key, (4,), torch.float64),
    "permutation": lambda key: keys.permutation(key, 7),
    "happens": lambda key: keys.happens(key, 0.3, (3, 3)),
    "fold_each": lambda key: keys.fold_each(key, 5),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@given(seeds, lengths, st.data())
def test_a_draw_is_the_same_alone_in_a_batch_and_under_vmap(draw, seed, n, data):
    batch = keys.fold(keys.root(seed), torch.arange(n))
    together, mapped = draw(batch), vmap(draw)(batch)
    assert torch.equal(together, mapped)
    order = torch.tensor(data.draw(st.permutations(range(n))))
    assert torch.equal(draw(batch[order]), together[order])
    for i in range(n):
        assert torch.equal(draw(batch[i]), together[i])
        assert torch.equal(draw(keys.fold(keys.root(seed), i)), together[i])


@given(seeds, lengths, lengths)
def test_a_key_inside_two_vmaps_is_the_same(seed, n, m):
    grid = keys.fold(keys.fold(keys.root(seed), torch.arange(n))[:, None], torch.arange(m))
    nested = vmap(vmap(lambda key: keys.fold(key, "purpose", 3)))(grid)
    assert torch.equal(nested, keys.fold(grid, "purpose", 3))
    assert int(nested[n - 1, m - 1]) == int(keys.fold(keys.root(seed), n - 1, m - 1, "purpose", 3))


@given(seeds, lengths)
def test_a_longer_draw_begins_with_the_shorter_one(seed, n):
    key = keys.root(seed)
    assert torch.equal(keys.bits(key, (n + 3,))[:n], keys.bits(key, (n,)))
    assert torch.equal(keys.bits(key, (n, 2)).flatten(), keys.bits(key, (2 * n,)))


def test_long_streams_begin_with_the_short_ones_and_are_the_same_under_vmap():
    key, length = keys.fold(keys.root(0), torch.arange(2)), 2**15 + 2**12 + 1
    long = keys.happens(key, 0.5, (length,))
    assert torch.equal(vmap(lambda one: keys.happens(one, 0.5, (length,)))(key), long)
    assert torch.equal(keys.happens(key, 0.5, (2**15,)), long[:, : 2**15])
    assert 0.49 < float(long.double().mean()) < 0.51


@given(seeds, items, items)
def test_another_number_name_or_order_is_another_key(seed, a, b):
    key = keys.root(seed)
    if a == b:
        assert int(keys.fold(key, a)) == int(keys.fold(key, b))
    else:
        assert int(keys.fold(key, a)) != int(keys.fold(key, b))
        assert int(keys.fold(key, a, b)) != int(keys.fold(key, b, a))
    assert int(keys.fold(key, a)) != int(key)


@given(seed=st.integers(0, 2**64 - 1), number=st.integers(-(2**63), 2**63 - 1))
def test_a_number_gives_the_key_that_a_tensor_of_it_gives(seed, number):
    key = keys.root(seed)
    assert torch.equal(keys.fold(key, number), keys.fold(key, torch.tensor(number)))
    assert torch.equal(keys.fold(key, "name"), keys.fold(key, torch.tensor(keys.hash_name("name"))))


def test_a_number_and_its_digits_are_different_names():
    assert int(keys.fold(keys.root(0), 5)) != int(keys.fold(keys.root(0), "5"))


def test_nearby_seeds_clocks_and_clients_share_no_key():
    roots = keys.root(0).new_tensor([int(keys.root(seed)) for seed in range(-20, 20)])
    grid = keys.fold(keys.fold(roots[:, None], torch.arange(20))[..., None], torch.arange(20))
    assert len(grid.unique()) == grid.numel()


@given(seeds)
def test_different_purposes_are_not_correlated(seed):
    n = 4000
    clients = keys.fold(keys.root(seed), torch.arange(n))
    streams = [keys.uniform(keys.fold(clients, purpose), (), torch.float64) for purpose in ("batches", "init", "b")]
    streams += [keys.uniform(keys.fold(keys.root(seed + 1), torch.arange(n)), (), torch.float64)]
    streams += [streams[0].roll(1)]  # neighbours in one stream
    table = torch.corrcoef(torch.stack(streams))
    off = table[~torch.eye(len(table), dtype=torch.bool)].abs().max()
    assert off < 6.5 / math.sqrt(n)  # six and a half standard deviations


@given(seeds)
def test_uniforms_are_uniform(seed):
    n, cells = 4000, 20
    u = keys.uniform(keys.root(seed), (n,), torch.float64)
    assert float(u.min()) >= 0
    assert float(u.max()) < 1
    seen = torch.histc(u, bins=cells, min=0, max=1)
    chi2 = float(((seen - n / cells) ** 2 / (n / cells)).sum())
    assert chi2 < 80  # 19 degrees of freedom: exceeded once in a thousand million


@given(seeds)
def test_every_bit_is_a_coin(seed):
    n = 2000
    drawn = keys.bits(keys.root(seed), (n,))
    ones = torch.stack([(drawn >> bit & 1).sum() for bit in range(64)])
    assert (ones - n / 2).abs().max() < 7 * math.sqrt(n) / 2


class _Extremes:
    """The ends of the range of bits, in place of random ones."""

    values = torch.tensor([0, -1, 1, -(2**63), 2**63 - 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_uniforms_stay_below_one_whatever_the_bits(monkeypatch, dtype):
    monkeypatch.setattr(keys, "bits", lambda key, shape=(): _Extremes.values)
    u = keys.uniform(keys.root(0), (5,), dtype)
    assert u.dtype == dtype
    assert float(u.min()) == 0
    assert 0.99 < float(u.max()) < 1


def test_normals_are_finite_whatever_the_bits(monkeypatch):
    monkeypatch.setattr(keys, "bits", lambda key, shape=(): _Extremes.values)
    z = keys.normal(keys.root(0), (5,), torch.float64)
    assert torch.isfinite(z).all()
    assert float(z.min()) == -float(z.max())


@given(seeds)
def test_normals_have_mean_zero_and_variance_one(seed):
    z = keys.normal(keys.root(seed), (4000,), torch.float64)
    assert abs(float(z.mean())) < 6.5 / math.sqrt(4000)
    assert abs(float(z.var()) - 1) < 6.5 * math.sqrt(2 / 4000)


@given(seeds, st.integers(1, 2**62))
def test_integers_are_in_range(seed, high):
    drawn = keys.integers(keys.root(seed), high, (50,))
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < high


@given(seeds, st.integers(0, 30), lengths)
def test_a_permutation_has_every_index_once(seed, length, n):
    order = keys.permutation(keys.fold(keys.root(seed), torch.arange(n)), length)
    assert order.shape == (n, length)
    assert torch.equal(order.sort(-1).values, torch.arange(length).expand(n, length))


def test_permutations_treat_all_places_alike():
    order = keys.permutation(keys.fold(keys.root(1), torch.arange(6000)), 3)
    _, seen = order.unique(dim=0, return_counts=True)
    assert len(seen) == 6
    assert float(((seen - 1000.0) ** 2 / 1000).sum()) < 50  # 5 degrees of freedom


@given(seeds, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.lists(st.text(max_size=5)), st.data())
def test_a_ring_gives_the_keys_that_folding_gives(seed, numbers, purposes, data):
    numbers, key = torch.tensor(numbers), keys.root(seed)
    which = torch.tensor(data.draw(st.lists(st.integers(0, len(numbers) - 1), max_size=9)), dtype=torch.int64)
    found = keys.KeyRing(numbers).keys(int(key), which, purposes)
    own = keys.fold(key, numbers[which])
    wanted = torch.stack([own, *(keys.fold(own, purpose) for purpose in purposes)], 1)
    assert torch.equal(found, wanted)
