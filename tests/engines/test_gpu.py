"""On a GPU: recurrent networks train, float32 means float32, and every algorithm gives the CPU's run."""

import pytest
import torch
from torch import nn

from corymb.core.client import Client, on_client
from corymb.core.federation import Federation
from corymb.engines import Placement, VectorisedEngine
from corymb.keys import fold, root
from corymb.local import Descent, descend, losses
from corymb.models import Network
from corymb.objectives import Classification
from corymb.trees import map_tensors, stack, take
from tests.contracts.cases import CASES, run
from tests.tiny import classification, farthest, tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk:UserWarning"),
]
GPU = Placement("cuda", torch.float64)


class Reader(nn.Module):
    """The class of a sequence of words."""

    def __init__(self, kind: type[nn.RNNBase], layers: int = 1) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(7, 3), kind(3, 4, num_layers=layers, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0][:, -1])


@on_client
def train(client: Client, models):
    return {
        "fit": losses(client, models),
        "full": descend(client, take(models, 0), Descent(lr=0.1, steps=2)),
        "batches": descend(client, take(models, 1), Descent(lr=0.1, epochs=1, batch=4, momentum=0.5)),
    }


def trained(objective, data, placement, kernel=None):
    objective = objective.to(placement.device, placement.dtype)
    fed = Federation(VectorisedEngine(objective, data, placement, kernel=kernel))
    models = stack([objective.init(fold(root(5), j)) for j in range(2)])
    replies = fed.clients.map(train, models)
    assert replies.rejected == []
    return map_tensors(lambda leaf: leaf.cpu(), replies.value)


@pytest.mark.parametrize("kernel", [None, "serial", "foreach", "fused"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks_train(kind, layers, kernel):
    objective = Classification(Network(lambda: Reader(kind, layers)), 3)
    want = trained(objective, tokens(), Placement(dtype=torch.float64))
    assert farthest(trained(objective, tokens(), GPU, kernel), want) < 1e-9


def test_float32_means_float32_in_convolutions():
    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 3))

    objective, data = Classification(Network(network), 3), classification((8, 8), shape=(16, 12, 12))
    exact = trained(objective, data, Placement(dtype=torch.float64))["fit"]
    single = trained(objective, data, Placement("cuda"))["fit"]
    coarse = trained(objective, data, Placement("cuda", tf32=True))["fit"]
    assert farthest(single, exact) < 1e-5
    assert farthest(coarse, exact) > 3 * farthest(single, exact)


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_gives_the_run_of_the_cpu(name):
    case = CASES[name]
    objective = case.objective().to("cuda", torch.float64)
    got = list(run(case, Federation(VectorisedEngine(objective, case.data(), GPU)), seed=1))
    for one, other in zip(got, run(case, case.federation("vectorised"), seed=1), strict=True):
        assert torch.equal(one.labels.cpu(), other.labels)
        assert farthest(map_tensors(lambda leaf: leaf.cpu(), one.models), other.models) < 1e-9
