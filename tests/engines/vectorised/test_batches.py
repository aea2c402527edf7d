"""Stacks are cut to the clients that have not finished, and orders are drawn for those that begin a pass."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.core.objective import Examples
from corymb.engines.vectorised.batches import DrawnSteps, stack_sizes, steps_of
from corymb.keys import fold, root
from corymb.local import Descent

sizes = st.lists(st.integers(0, 12), min_size=1, max_size=9)
hows = st.builds(lambda epochs, batch: Descent(epochs=epochs, batch=batch), st.integers(1, 3), st.integers(1, 5))


def stack(sizes: list[int]) -> Examples:
    """Examples of clients of these sizes; each has a number of its own."""
    longest = max(1, *sizes)
    weight = (torch.arange(longest) < torch.tensor(sizes)[:, None]).float()
    x = torch.arange(float(weight.numel())).reshape(weight.shape)
    return Examples(x.unsqueeze(-1), x.long(), weight)


def seen(steps, clients: int) -> list[list[list[int]]]:
    """The examples that count in each step, client by client; steps without any are left out."""
    found: list[list[list[int]]] = [[] for _ in range(clients)]
    for on, active, draws in steps:
        assert len(on.weight) == len(draws.key) == len(draws.rows)
        first = clients - len(on.weight)
        for i, (y, weight) in enumerate(zip(on.y, on.weight, strict=True), first):
            some = y[weight > 0].tolist()
            assert not some or active is None or bool(active[i - first])
            found[i] += [some] if some else []
    return found


@given(sizes, hows, st.booleans(), st.integers(0, 9))
def test_a_stack_that_shrinks_has_the_batches_of_one_that_does_not(sizes, how, ascending, seed):
    on, n = stack(sorted(sizes) if ascending else sizes), len(sizes)
    key = fold(root(seed), torch.arange(n))
    whole = seen(steps_of(on, key, how), n)
    assert seen(steps_of(on, key, how, shrinks=True), n) == whole
    assert seen(DrawnSteps(on, key, how).of(slice(0, n), stack_sizes(how, on.weight)), n) == whole


def test_most_of_what_a_stack_computes_is_used():
    how, weight = Descent(epochs=2, batch=10), stack([5] * 199 + [5000]).weight
    sizes = stack_sizes(how, weight)
    steps = 199 * 2 + 2 * 500
    assert len(sizes) == 1000
    assert steps <= sum(sizes) <= 1.5 * steps


def test_different_stacks_are_cut_to_the_same_sizes():
    """Every other size would be another shape, and its steps would be recorded anew."""
    how = Descent(epochs=1, batch=1)
    cut = {size for n in range(2, 65) for size in stack_sizes(how, stack(list(range(1, n + 1))).weight)[2:] if size < n}
    assert cut <= {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48}


@pytest.mark.parametrize("how", [Descent(epochs=3), Descent(steps=4, batch=2)])
def test_a_stack_whose_clients_take_equally_many_steps_stays_whole(how):
    assert stack_sizes(how, stack([1, 7]).weight) == []
