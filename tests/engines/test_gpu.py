"""On a GPU: recurrent networks train, float32 means float32, and every algorithm gives the CPU's run."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from corymb.algorithms import FedAvg
from corymb.core.client import Client, on_client
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.data.built_in.digits import digits
from corymb.engines import Placement, VectorisedEngine, examples
from corymb.engines.isolation import copies
from corymb.engines.vectorised import graphs
from corymb.engines.vectorised.graphs import MIN_STEPS
from corymb.keys import fold, root
from corymb.local import Descent, descend, losses
from corymb.models import Network, cnn, mlp
from corymb.objectives import Augmented, Classification, Cutout, Flip, Light, Translate
from corymb.runs.fit import fit
from corymb.trees import leaves, map_tensors, stack, take
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


@pytest.mark.parametrize("layers", [1, 2])
def test_recurrent_networks_train_in_a_mixed_precision(layers):
    objective = Classification(Network(lambda: Reader(nn.LSTM, layers)), 3)
    want = trained(objective, tokens(), Placement(dtype=torch.float64))
    got = trained(objective, tokens(), Placement("cuda", mixed=True), "foreach")
    assert 0 < farthest(got, want) < 0.02


def test_float32_means_float32_in_convolutions():
    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 3))

    objective, data = Classification(Network(network), 3), classification((8, 8), shape=(16, 12, 12))
    exact = trained(objective, data, Placement(dtype=torch.float64))["fit"]
    single = trained(objective, data, Placement("cuda"))["fit"]
    coarse = trained(objective, data, Placement("cuda", tf32=True))["fit"]
    assert farthest(single, exact) < 1e-5
    assert farthest(coarse, exact) > 3 * farthest(single, exact)


def pictures_network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(4 * 36, 3))


@on_client
def train_long(client: Client, models, *, how: Descent):
    return descend(client, take(models, 0), how)


@pytest.mark.parametrize(
    "how",
    [
        Descent(lr=0.05, steps=MIN_STEPS, batch=4, momentum=0.9, weight_decay=0.01, decay=0.9),
        Descent(lr=0.01, steps=MIN_STEPS, optimiser="adam", clip_gradient=1.0),
        Descent(lr=0.1, steps=MIN_STEPS, batch=3, decay=0.5),
    ],
    ids=["momentum", "adam", "plain"],
)
def test_captured_descents_with_dropout_and_augmentation_are_the_cpus(how):
    data = classification((8, 7, 5), shape=(2, 8, 8))
    objective = Augmented(Classification(Network(pictures_network), 3), (Flip(), Translate(1), Cutout(3), Light()))
    ends = []
    for placement in (Placement(dtype=torch.float64), GPU):
        learned = objective.to(placement.device, placement.dtype)
        fed = Federation(VectorisedEngine(learned, data, placement))
        models = stack([learned.init(root(5))])
        rounds = [fed.clients.map(train_long, models, how=how.at(t)).value for t in range(3)]
        ends.append(map_tensors(lambda leaf: leaf.cpu(), rounds[-1]))
    assert farthest(ends[1], ends[0]) < 1e-8


@pytest.mark.parametrize(
    "how",
    [
        Descent(lr=0.05, steps=MIN_STEPS, batch=4, momentum=0.9, weight_decay=0.01),
        Descent(lr=0.1, steps=MIN_STEPS),
    ],
    ids=["momentum", "plain"],
)
def test_a_captured_first_step_from_one_model_gives_the_cpus_descent(how, monkeypatch):
    clock = iter(range(10**6, 0, -1))
    monkeypatch.setattr(graphs, "_seconds", lambda *_: float(next(clock)))  # it is used, however long it takes
    data, ends = classification((8, 7, 5), shape=(2, 8, 8)), []
    objective = Classification(Network(pictures_network), 3)
    for placement in (Placement(dtype=torch.float64), GPU):
        learned = objective.to(placement.device, placement.dtype)
        engine = VectorisedEngine(learned, data, placement)
        models = stack([learned.init(root(5))])
        for _ in range(4):
            found = Federation(engine).clients.map(train_long, models, how=how).value
        ends.append(map_tensors(lambda leaf: leaf.cpu(), found))
    players = [seen.player for seen in engine.kernels.graphs.seen.values() if seen.player is not None]
    assert [player.shared is not None for player in players] == [True]
    assert farthest(ends[1], ends[0]) < 1e-8


@pytest.mark.parametrize("how", [Descent(lr=0.05, steps=MIN_STEPS), Descent(lr=0.05, steps=MIN_STEPS, momentum=0.5)])
@pytest.mark.parametrize("precision", [{"dtype": torch.float64}, {}, {"tf32": True}, {"mixed": True}], ids=str)
def test_every_way_to_capture_a_step_gives_the_plain_step(precision, how, caplog):
    placement = Placement("cuda", **precision)
    learned = Classification(Network(cnn(1, 12, 3, width=64)), 3).to("cuda", placement.dtype)
    fed = Federation(VectorisedEngine(learned, classification((9, 8, 8, 7, 6), shape=(1, 12, 12)), placement))
    with caplog.at_level("INFO"):
        for _ in range(2):
            fed.clients.map(train_long, stack([learned.init(root(5))]), how=how)
    said, first = (line for line in caplog.messages if "captured" in line or "first step" in line)
    assert first.startswith("the first step from one model takes")
    assert said.startswith("steps are captured by")
    assert "vmap" in said
    assert "streams" in said


@pytest.mark.parametrize("pixels", [False, True])
def test_examples_that_do_not_fit_on_the_gpu_are_sent_chunk_by_chunk(pixels, monkeypatch, caplog):
    data = digits(clients=12)
    if pixels:
        parts = {"train": data.train, "test": data.test}
        data = replace(data, **{name: rows._replace(x=(rows.x * 16).byte()) for name, rows in parts.items()})
    objective, ends = Classification(Network(mlp(64, [8], 10)), 10).to("cuda", torch.float64), []
    for most in (0.5, 0.0):
        monkeypatch.setattr(examples, "MAX_HELD", most)
        engine = VectorisedEngine(objective, data, GPU, memory=200_000)  # several chunks
        assert engine.host.examples["train"].x.is_cuda == (most > 0)
        *_, last = drive(FedAvg(rounds=3, local=Descent(lr=0.1, steps=3, batch=5)), Federation(engine))
        ends.append(map_tensors(lambda leaf: leaf.cpu(), last.models))
    assert "they stay in the machine's memory" in caplog.text
    assert farthest(ends[1], ends[0]) < 1e-9


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_gives_the_run_of_the_cpu(name):
    if "private" in name:
        pytest.importorskip("dp_accounting", reason="the extra [privacy] is not installed")
    case = CASES[name]
    objective = case.objective().to("cuda", torch.float64)
    got = list(run(case, Federation(VectorisedEngine(objective, case.data(), GPU)), seed=1))
    for one, other in zip(got, run(case, case.federation("vectorised"), seed=1), strict=True):
        assert torch.equal(one.labels.cpu(), other.labels)
        assert farthest(map_tensors(lambda leaf: leaf.cpu(), one.models), other.models) < 1e-9


def test_a_tensor_that_a_client_function_makes_without_a_device_counts():
    """Metrics are sums with a weight of 1, which is made wherever tensors are made by default."""
    data = digits(0, clients=4)
    for engine in ("loop", "vectorised"):
        assert 0 <= fit(FedAvg(rounds=1), data, engine=engine, device="cuda").metrics["test_accuracy"] <= 1


def test_copies_share_no_memory():
    wide = torch.rand(2, 3, device="cuda")
    given = {"here": torch.rand(3), "there": (wide, wide[0].expand(4, 3), None, 7), "codes": torch.arange(4).cuda()}
    made = copies(given)
    assert made["there"][2:] == (None, 7)
    for one, other in zip(leaves(made), leaves(given), strict=True):
        assert one.device == other.device
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()
