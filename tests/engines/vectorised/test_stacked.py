"""Layers under vmap over clients: the values and gradients of each client alone."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional

from corymb.engines.vectorised.stacked import Lookups, stacked_layers
from corymb.engines.vectorised.traits import Traits
from corymb.trees import take
from tests.tiny import farthest

CLIENTS, ROWS = 3, 5
CODES = torch.tensor([[0, 1, 1], [4, 0, 3], [4, 2, 0]])


def gradients(look_up, *, together: bool):
    """Each client's gradient of a score of what it looks up in its own table."""
    draw = torch.Generator().manual_seed(0)
    tables = torch.randn(CLIENTS, ROWS, 2, generator=draw, dtype=torch.float64, requires_grad=True)

    def score(table, codes):
        return look_up(codes, table).sin().sum()

    if together:
        with Lookups():
            scores = vmap(score)(tables, CODES)
    else:
        scores = torch.stack([score(table, codes) for table, codes in zip(tables, CODES, strict=True)])
    return torch.autograd.grad(scores.sum(), tables)[0]


@pytest.mark.parametrize(
    "look_up",
    [
        lambda codes, table: functional.embedding(codes, table),
        lambda codes, table: functional.embedding(codes, table, padding_idx=0),
        lambda codes, table: functional.embedding(codes, table, 4),
        lambda codes, table: functional.embedding(codes, table, padding_idx=-1),
        lambda codes, table: torch.embedding(table, codes),
        lambda codes, table: torch.embedding(table, codes, 0),
    ],
    ids=["plain", "first", "last by place", "last from the end", "of torch", "of torch with padding"],
)
def test_no_client_trains_its_padding_nor_anothers(look_up):
    want = gradients(look_up, together=False)
    assert farthest(gradients(look_up, together=True), want) < 1e-15


def test_padding_is_looked_up_as_it_is():
    tables = torch.randn(CLIENTS, ROWS, 2)
    with Lookups():
        found = vmap(lambda table, codes: functional.embedding(codes, table, padding_idx=0))(tables, CODES)
    assert torch.equal(found, torch.stack([table[codes] for table, codes in zip(tables, CODES, strict=True)]))


@pytest.mark.parametrize("weights", [False, True], ids=["fused", "with weights"])
def test_attention_is_that_of_each_client(weights):
    module = nn.MultiheadAttention(4, 2, batch_first=True).double()
    draw = torch.Generator().manual_seed(0)
    params = {
        name: torch.randn(CLIENTS, *p.shape, generator=draw, dtype=torch.float64).requires_grad_()
        for name, p in module.named_parameters()
    }
    x = torch.randn(CLIENTS, 2, 3, 4, generator=draw, dtype=torch.float64)

    def score(own, on):
        return functional_call(module, own, (on, on, on), {"need_weights": weights})[0].sin().sum()

    traits = Traits(1, 1, 1, fusable=False, convolutional=False, recurrent=False, attends=True)
    with stacked_layers(traits):
        together = vmap(score)(params, x)
    apart = torch.stack([score(take(params, i), x[i]) for i in range(CLIENTS)])
    assert farthest(together.detach(), apart.detach()) < 1e-12
    got, want = (torch.autograd.grad(scores.sum(), list(params.values())) for scores in (together, apart))
    assert farthest(dict(enumerate(got)), dict(enumerate(want))) < 1e-12


def switches() -> list[bool]:
    cuda = torch.backends.cuda
    return [cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()]


def test_runs_that_overlap_leave_the_switches_of_attention_as_they_were():
    before, attends = switches(), Traits(0, 0, 0, False, False, False, attends=True)
    first, second = stacked_layers(attends), stacked_layers(attends)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert switches() == [False, True, False]
    second.__exit__(None, None, None)
    assert switches() == before
