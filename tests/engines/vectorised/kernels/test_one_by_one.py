"""Clients one by one: which of them can replay the same tapes."""

import itertools

import pytest
import torch

from corymb.core.objective import Examples
from corymb.engines.vectorised.kernels.one_by_one import _SingleClients
from corymb.local import Descent


@pytest.mark.parametrize("how", [{"steps": 1}, {"steps": 2}, {"steps": 3}, {"steps": 4}, {"epochs": 2}, {}])
@pytest.mark.parametrize("batch", [None, 1, 2, 3, 20])
def test_clients_with_the_same_signature_see_batches_of_the_same_sizes(how, batch):
    m = 12
    weight = (torch.arange(m) < torch.arange(m + 1)[:, None]).float()
    on = Examples(torch.zeros(m + 1, m, 2), torch.zeros(m + 1, m), weight)
    descent = Descent(lr=0.1, batch=batch, **how)
    clients = _SingleClients(on, torch.arange(m + 1), descent)
    sizes = {i: {len(some.weight) for some, _ in clients.get(i, lambda: None).steps(descent)} for i in range(m + 1)}
    for i, j in itertools.combinations(range(m + 1), 2):
        assert clients.signature(i) != clients.signature(j) or sizes[i] == sizes[j]
