"""Captured steps: their own tensors, the way that is chosen, and what is never captured. There is no GPU here: a
"capture" is the work itself, and all else is as on one."""

import gc

import pytest
import torch
from torch import nn

from corymb.core.objective import Draws, Examples
from corymb.engines.vectorised import graphs
from corymb.engines.vectorised.graphs import MIN_STEPS, Player
from corymb.engines.vectorised.graphs.variants import by_streams
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.kernels.steps import gradients
from corymb.engines.vectorised.kernels.together import LONG_DESCENT
from corymb.engines.vectorised.recurrent import Cells
from corymb.engines.vectorised.traits import traits_of
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.models import Network, cnn
from corymb.objectives import Augmented, Classification, Flip, Translate
from corymb.trees import stack, take
from tests.engines.vectorised.test_tape import job


def small(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))


def on_gpu(objective) -> Kernels:
    params, on, _ = job(objective, 0)
    return Kernels(traits_of(objective, take(params, 0), take(take(on, 0), slice(0, 1))), "cuda", 1, only="foreach")


HOWS = {
    "plain": Descent(lr=0.1, steps=MIN_STEPS),
    "batches": Descent(lr=0.1, steps=MIN_STEPS, batch=2),
    "momentum": Descent(lr=0.05, steps=MIN_STEPS, batch=2, momentum=0.9, weight_decay=0.01),
    "adam": Descent(lr=0.01, steps=MIN_STEPS, optimiser="adam", clip_gradient=0.1),
    "safe": Descent(lr=0.5, steps=MIN_STEPS, safe=True, proximal=0.1),
    "epochs": Descent(lr=0.1, epochs=MIN_STEPS, batch=2, momentum=0.5),
}


@pytest.mark.parametrize("name", HOWS)
def test_captured_descents_are_those_of_the_plain_kernel(name):
    how, layer = HOWS[name], nn.Dropout if name in ("momentum", "epochs") else nn.Tanh
    objective = Classification(Network(lambda: small(layer())), 3)
    plain, kernels = on_gpu(objective), on_gpu(objective)
    object.__setattr__(plain, "device", "cpu")
    for seed in range(2):  # the first is not captured yet; the others start from other models on other examples
        params, on, key = job(objective, seed)
        want, want_loss = plain.descend(objective, params, on, key, how)
        got, loss = kernels.descend(objective, params, on, key, how)
        again, _ = kernels.descend(objective, params, on, key, how)
        assert torch.allclose(loss, want_loss, rtol=1e-6)
        for part in want:
            assert torch.allclose(got[part], want[part], rtol=1e-4, atol=1e-6)
            assert torch.equal(got[part], again[part]) or not seed  # what was given is not written into afterwards
    assert [seen.player is not None for seen in kernels.graphs.seen.values()] == [True]


@pytest.mark.parametrize("clients", [1, 2, 3, 6, 7])
def test_a_wide_model_that_all_clients_start_from_is_loaded_block_by_block(clients, monkeypatch):
    monkeypatch.setattr(graphs, "MANY_ENTRIES", 4)
    monkeypatch.setattr(graphs, "COPY_BLOCK_ROWS", 3)
    model = {
        "wide": torch.arange(6.0).reshape(2, 3),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "bias": torch.ones(3),
    }
    start = {name: value.expand(clients, *value.shape) for name, value in model.items()}
    loaded = {name: torch.full(value.shape, -1.0) for name, value in start.items()}
    none = torch.zeros(0)
    player = Player(loaded, Examples(none, none, none), (), none, torch.zeros(clients), [], graphs._Rerun(list), "")
    player.begin(start, rates := torch.rand(clients))
    assert all(torch.equal(loaded[name], start[name]) for name in start)
    assert torch.equal(player.rates, rates)


@pytest.mark.parametrize("how", [{"momentum": 0.9, "batch": 2}, {"optimiser": "adam"}, {"proximal": 0.1}])
def test_a_long_descent_is_captured_midway(how):
    how = Descent(lr=0.05, steps=LONG_DESCENT + MIN_STEPS, **how)
    objective = Classification(Network(lambda: small(nn.Tanh())), 3)
    plain, kernels = on_gpu(objective), on_gpu(objective)
    object.__setattr__(plain, "device", "cpu")
    params, on, key = job(objective, 0)
    want, want_loss = plain.descend(objective, params, on, key, how)
    got, loss = kernels.descend(objective, params, on, key, how)
    assert torch.allclose(loss, want_loss, rtol=1e-6)
    assert all(torch.allclose(got[part], want[part], rtol=1e-3, atol=1e-5) for part in want)
    assert [seen.steps for seen in kernels.graphs.seen.values()] == [MIN_STEPS]  # the others were played


def test_a_step_size_that_changes_every_round_needs_no_other_capture():
    objective = Classification(Network(lambda: small(nn.Tanh())), 3)
    kernels, how = on_gpu(objective), Descent(lr=0.1, steps=MIN_STEPS, decay=0.5)
    params, on, key = job(objective, 0)
    ends = [kernels.descend(objective, params, on, key, how.at(t))[0] for t in range(4)]
    assert [seen.player is not None for seen in kernels.graphs.seen.values()] == [True]
    far = [sum(float((end[n] - params[n]).norm()) for n in end) for end in ends]
    assert far == sorted(far, reverse=True)
    assert far[3] < far[0] / 4


def test_the_first_of_too_many_graphs_stay_until_they_are_stale(monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 2)
    monkeypatch.setattr(graphs, "STALE_TURNS", 6)
    objective, how = Classification(Network(lambda: small(nn.Tanh())), 3), Descent(lr=0.1, steps=MIN_STEPS)
    kernels, (params, on, key) = on_gpu(objective), job(objective, 0)

    def descend(rows: int) -> None:
        kernels.descend(objective, params, Examples(*(t[:, :rows] for t in on)), key, how)

    def kept() -> list[int]:
        return [player.batch.y.shape[1] for seen in kernels.graphs.seen.values() if (player := seen.player)]

    for _ in range(4):  # three take turns: two of them are captured, once
        for rows in (2, 3, 4):
            descend(rows)
    players = [seen.player for seen in kernels.graphs.seen.values()]
    assert kept() == [2, 3]
    for _ in range(4):
        descend(3)
        descend(4)
    assert kept() == [3, 4]  # nobody has asked for the first one for long
    assert any(seen.player is players[1] for seen in kernels.graphs.seen.values())


def test_nothing_is_collected_during_a_capture():
    """Destroying a graph of an earlier engine would make the capture fail."""
    collections = []

    def note(phase, _):
        collections.append(phase)

    gc.callbacks.append(note)
    try:
        with graphs._uncollected():
            begun = len(collections)
            kept = [[] for _ in range(10 * gc.get_threshold()[0])]  # enough for several collections
            assert len(collections) == begun
        kept += [[] for _ in range(10 * gc.get_threshold()[0])]
        assert len(collections) > begun
    finally:
        gc.callbacks.remove(note)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(2, 5, num_layers=2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.lstm(x.reshape(len(x), 2, 2))[0][:, -1])


def test_the_cells_of_an_lstm_give_its_numbers_and_can_be_stacked():
    module, x = Reader().double(), torch.randn(7, 4, dtype=torch.float64)
    with Cells():
        apart = module(x)
    assert torch.allclose(apart, module(x), rtol=1e-12, atol=1e-12)
    objective = Classification(Network(Reader), 3)
    params, on, key = job(objective, 1)
    kernels = on_gpu(objective)
    assert kernels.traits.recurrent
    got, loss = kernels.descend(objective, params, on, key, Descent(lr=0.1, steps=2))
    serial = Kernels(kernels.traits, "cpu", 1)
    want, want_loss = serial.descend(objective, params, on, key, Descent(lr=0.1, steps=2))
    assert serial.pick(None) == "serial"
    assert torch.allclose(loss, want_loss, rtol=1e-5)
    assert all(torch.allclose(got[name], want[name], rtol=1e-4, atol=1e-6) for name in want)


class Twice(Augmented):
    """An objective with training losses of its own."""

    def training_losses(self, params, examples, draws):
        return 2 * super().training_losses(params, examples, draws)


@pytest.mark.parametrize("kind", [Augmented, Twice])
def test_images_of_all_clients_are_augmented_at_once_before_the_streams(kind, monkeypatch):
    objective = kind(Classification(Network(cnn(1, 8, 3, width=4)), 3), (Flip(), Translate(1)))
    draw = torch.Generator().manual_seed(0)
    on = Examples(torch.rand((3, 5, 1, 8, 8), generator=draw), torch.arange(15).reshape(3, 5) % 3, torch.ones(3, 5))
    params = stack([objective.init(root(j)) for j in range(3)])
    rows = torch.arange(5).expand(3, 5)
    draws = Draws(fold(root(7), torch.arange(3)), 4, rows)
    want, loss = gradients(objective, params, on, draws)
    calls, change = [], Augmented.changed
    monkeypatch.setattr(Augmented, "changed", lambda *given: (calls.append(1), change(*given))[1])
    traits = traits_of(objective, take(params, 0), take(take(on, 0), slice(0, 1)))
    calls.clear()
    step = by_streams(objective, torch.device("cpu"), traits, steps=False)
    got_loss, *got = step(params, on, draws, torch.ones(3))
    assert torch.allclose(got_loss, loss)
    assert all(torch.allclose(one, want[name], atol=1e-6) for name, one in zip(params, got, strict=True))
    assert len(calls) == (1 if kind is Augmented else 3)
