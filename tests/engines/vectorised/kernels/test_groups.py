"""A few clients at a time, whose models stay in the caches, have the results of all clients at once."""

import pytest
import torch
from torch import nn

from corymb.engines.vectorised.kernels import Kernels, groups
from corymb.engines.vectorised.traits import traits_of
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.trees import take
from tests.engines.vectorised.test_tape import job
from tests.tiny import farthest


def dropping():
    return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 3))


@pytest.mark.parametrize("held", [2**22, 0], ids=["located at once", "located a few clients at a time"])
@pytest.mark.parametrize("network", [mlp(4, [6], 3), dropping], ids=["mlp", "dropout"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("how", [Descent(lr=0.1, steps=4, batch=2), Descent(lr=9.0, epochs=2, batch=3, safe=True)])
def test_a_few_clients_at_a_time_descend_as_all_at_once(how, own, network, held, monkeypatch):
    monkeypatch.setattr("corymb.engines.vectorised.batches.MAX_DRAWN_ROWS", held)
    objective = Classification(Network(network, dtype=torch.float64), 3)
    params, on, key = job(objective, 0)
    on = on._replace(x=on.x.double(), weight=on.weight.double())
    kernels = Kernels(traits_of(objective, take(params, 0), take(take(on, 0), slice(0, 1))), "cpu", 1, only="fused")
    want, want_loss = kernels.descend(objective, params, on, key, how)
    monkeypatch.setattr(groups, "CACHE_BYTES", 2 * kernels.traits.parameter_bytes)
    given = {name: value.clone() for name, value in params.items()}
    parts = list[float]()
    kernels.watch.report = parts.append
    got, loss = kernels.descend(objective, given, on, key, how, own=own)
    assert farthest(got, want) < 1e-12
    assert farthest(loss, want_loss) < 1e-12
    assert parts == sorted(parts)
    same = [got[name].data_ptr() == given[name].data_ptr() for name in got]
    assert all(same) if own else farthest(given, params) == 0
