"""Packed sequences padded again to the longest of a batch: clients run together if more padding changes nothing."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from corymb.algorithms import FedAvg
from corymb.core.client import on_client
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.engines.vectorised.packed import padding_is_free
from corymb.keys import root
from corymb.local import Descent, losses
from corymb.models import Network
from corymb.objectives import Classification
from corymb.trees import stack
from tests.tiny import DOUBLE, farthest, tokens

CLASSES, WORDS = 3, 9


def last(states, lengths):
    return states.gather(1, (lengths - 1).to(states.device)[:, None, None].expand(-1, -1, states.shape[2])).squeeze(1)


def attended(states, lengths):
    past = torch.arange(states.shape[1]) >= lengths[:, None]
    shares = states.sum(2).masked_fill(past, -torch.inf).softmax(1)
    return torch.einsum("bt,bth->bh", shares, states)


def largest_of_masked(states, lengths):
    past = torch.arange(states.shape[1]) >= lengths[:, None]
    return states.masked_fill(past[..., None], -torch.inf).amax(1)


FREE = {
    "sum": lambda states, lengths: states.sum(1),
    "mean of each": lambda states, lengths: states.sum(1) / lengths[:, None],
    "last": last,
    "attended": attended,
    "largest, masked": largest_of_masked,
}
BOUND = {
    "mean of the longest": lambda states, lengths: states.mean(1),
    "largest": lambda states, lengths: states.amax(1),
    "smallest": lambda states, lengths: states.amin(1),
    "attended, not masked": lambda states, lengths: attended(states, torch.full_like(lengths, states.shape[1])),
    "last of the longest": lambda states, lengths: states[:, -1],
    "how long": lambda states, lengths: states.sum(1) + states.shape[1],
}


class Pooled(nn.Module):
    """A recurrent layer whose states are pooled over time; codes below 3 are padding."""

    def __init__(self, pool, kind=nn.GRU, *, batch_first=True):
        super().__init__()
        self.embed, self.cells = nn.Embedding(WORDS, 4), kind(4, 5, batch_first=batch_first)
        self.out, self.pool = nn.Linear(5, CLASSES), pool
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        series, first = self.embed(x), self.cells.batch_first
        lengths = (x > 2).sum(1).clamp_min(1).cpu()
        series = series if first else series.transpose(0, 1)
        packed = pack_padded_sequence(series, lengths, batch_first=first, enforce_sorted=False)
        states, lengths = pad_packed_sequence(self.cells(packed)[0], batch_first=first)
        return self.out(self.pool(states if first else states.transpose(0, 1), lengths))


def codes():
    return torch.randint(WORDS, (4, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("pool", FREE)
def test_more_padding_is_free(pool, batch_first):
    model = Pooled(FREE[pool], batch_first=batch_first).double()
    assert padding_is_free(lambda: model(codes()).sum(1).detach())


@pytest.mark.parametrize("pool", BOUND)
def test_more_padding_would_change_the_losses(pool):
    model = Pooled(BOUND[pool]).double()
    assert padding_is_free(lambda: model(codes()).sum(1).detach()) is False


def test_a_largest_output_is_found_though_all_outputs_are_positive():
    model = Pooled(BOUND["largest"], nn.RNN).double()
    for name, p in model.cells.named_parameters():
        p.data.fill_(3.0 if "bias" in name else 0.0)
    assert padding_is_free(lambda: model(codes()).sum(1).detach()) is False


def test_a_model_that_pads_nothing_again_needs_no_more():
    assert padding_is_free(lambda: torch.ones(3)) is None


def test_a_model_that_fails_with_more_padding_gets_none():
    model = Pooled(lambda states, lengths: states[:, : int(lengths.max())].reshape(len(states), -1, 5).sum(1))
    assert padding_is_free(lambda: model(codes()).sum(1).detach())
    fixed = Pooled(lambda states, lengths: states.unflatten(1, (int(lengths.max()), -1)).sum((1, 2)))
    assert padding_is_free(lambda: fixed(codes()).sum(1).detach()) is None


@pytest.mark.parametrize(("pool", "kernel"), [("last", "foreach"), ("mean of each", "foreach"), ("largest", "serial")])
def test_models_are_those_of_a_loop(pool, kernel):
    data = tokens((6, 3, 9, 5), words=WORDS, length=7, classes=CLASSES)
    ways = FREE | BOUND

    def run(engine_of):
        objective = Classification(Network(lambda: Pooled(ways[pool]), dtype=torch.float64), CLASSES)
        engine = engine_of(objective, data, DOUBLE)
        local = Descent(lr=0.3, epochs=1, batch=2, momentum=0.5, weight_decay=0.1)
        *_, at = drive(FedAvg(rounds=3, local=local), Federation(engine))
        return engine, at.models

    engine, models = run(VectorisedEngine)
    assert engine.kernels.pick(Descent(epochs=1, batch=2), 2) == kernel
    assert farthest(models, run(LoopEngine)[1]) < 1e-9


class Trimmed(nn.Module):
    """Reads texts up to the longest of a batch, without packing them."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(WORDS, 4), nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.out(self.embed(x[:, : int((x > 2).sum(1).max())]).mean(1))


@pytest.mark.parametrize("make", [lambda: Pooled(BOUND["mean of the longest"]), Trimmed], ids=["packed", "trimmed"])
def test_losses_are_those_of_each_client_though_the_first_series_are_equally_long(make):
    """The check before a run sees only the first series of two clients; those of the others are shorter."""
    data = tokens((9, 3, 5, 5), words=WORDS, length=7, classes=CLASSES)
    x, starts = data.train.x, data.train.offsets[:-1]
    x[:, 4:] = 0
    x[starts[:2]] = 5
    objective = Classification(Network(make, dtype=torch.float64), CLASSES)
    models = stack([objective.init(root(seed)) for seed in range(2)])
    got, want = (
        Federation(engine(objective, data, DOUBLE)).clients.map(losses_of_all, models).value
        for engine in (VectorisedEngine, LoopEngine)
    )
    assert farthest(got, want) < 1e-9


@on_client
def losses_of_all(client, models):
    return losses(client, models)
