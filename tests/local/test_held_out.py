"""The held-out part of a client's training examples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.core.objective import Examples
from corymb.local.held_out import hold_out


def _examples(number: int, padding: int = 0) -> Examples:
    weight = torch.cat([torch.ones(number), torch.zeros(padding)])
    return Examples(torch.arange(number + padding).float().unsqueeze(1), torch.zeros(number + padding), weight)


@given(number=st.integers(0, 60), padding=st.integers(0, 20), share=st.floats(0.05, 0.9))
def test_parts_are_disjoint_and_complete(number: int, padding: int, share: float) -> None:
    whole = _examples(number, padding)
    kept, held = hold_out(whole, share)
    assert torch.equal(kept.weight + held.weight, whole.weight)
    assert not (kept.weight * held.weight).any()
    expected = 0 if number < 2 else min(max(int(torch.tensor(number) * share), 1), number - 1)
    assert int(held.weight.sum()) == expected


@given(number=st.integers(1, 40), padding=st.integers(1, 20))
def test_padding_changes_nothing(number: int, padding: int) -> None:
    alone, padded = hold_out(_examples(number)), hold_out(_examples(number, padding))
    assert torch.equal(alone.held.weight, padded.held.weight[:number])


def test_a_stack_of_clients_is_split_client_by_client() -> None:
    rows = [_examples(7, 5), _examples(12, 0)]
    stack = Examples(*(torch.stack(parts) for parts in zip(*rows, strict=True)))
    together = torch.vmap(lambda x, y, w: hold_out(Examples(x, y, w)).held.weight)(*stack)
    assert torch.equal(together, torch.stack([hold_out(one).held.weight for one in rows]))
    assert torch.equal(together, hold_out(stack).held.weight)


@pytest.mark.parametrize("period", [2, 3, 4, 5, 10])
def test_no_residue_class_of_rows_is_left_out(period: int) -> None:
    """Files are often in an order: every class must be judged, and every class trained on."""
    held = hold_out(_examples(40 * period)).held.weight.bool()
    shares = torch.stack([held[start::period].float().mean() for start in range(period)])
    assert ((shares > 0.05) & (shares < 0.5)).all()


def test_another_turn_is_another_split() -> None:
    whole = _examples(40)
    assert not torch.equal(hold_out(whole).held.weight, hold_out(whole, turn=1).held.weight)
