"""A step that is replayed from a tape gives the same bits as the step itself, or it is not replayed."""

import pytest
import torch
from torch import nn

from corymb.core.objective import Draws, Examples
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.kernels.steps import Steps
from corymb.engines.vectorised.tape import Step, Tapes, record
from corymb.engines.vectorised.traits import traits_of
from corymb.keys import fold, root
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification

N, M = 3, 7


def played(tapes: Tapes) -> list[bool]:
    return [player.trusted for player in tapes.kept.values()]


class StepsAsWritten(Steps):
    """Every step as it is written."""

    uses_tapes = False


class Unplayed(Kernels):
    """The kernels with such steps."""

    @property
    def _steps(self):
        return StepsAsWritten(self.traits, self.device, self.mixed, self.tapes, self.graphs)


def kernels_for(objective, name: str, kind: type[Kernels] = Kernels) -> Kernels:
    traits = traits_of(
        objective, objective.init(root(0)), Examples(torch.zeros(1, 4), torch.zeros(1).long(), torch.ones(1))
    )
    kernels = kind(traits, "cpu", 1, only=name)
    assert kernels.pick(Descent()) == name
    return kernels


def job(objective, seed: int, clients: int = N):
    """Models of a few clients, examples with some padding, and keys."""
    draw, n = torch.Generator().manual_seed(seed), clients
    params = {name: value.expand(n, *value.shape).clone() for name, value in objective.init(root(seed)).items()}
    weight = torch.ones(n, M)
    weight[1, 4:] = 0
    on = Examples(torch.randn(n, M, 4, generator=draw), torch.randint(3, (n, M), generator=draw), weight)
    return params, on, fold(root(seed), torch.arange(n))


@pytest.mark.parametrize("name", ["fused", "foreach"])
@pytest.mark.parametrize("batch", [None, 2])
def test_descents_by_tape_are_the_same_bits(name, batch):
    objective, how = Classification(Network(mlp(4, [5], 3)), 3), Descent(lr=0.1, steps=6, batch=batch)
    kernels = kernels_for(objective, name)
    for seed in range(3):  # other models, examples and keys on the tapes of the first
        params, on, key = job(objective, seed)
        plain = kernels_for(objective, name, Unplayed)
        want, want_loss = plain.descend(objective, params, on, key, how)
        got, loss = kernels.descend(objective, params, on, key, how)
        assert torch.equal(loss, want_loss)
        assert all(torch.equal(got[name], want[name]) for name in want)
        assert not played(plain.tapes)
    assert played(kernels.tapes) == [True]


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.parametrize("name", ["fused", "foreach", "serial"])
@pytest.mark.parametrize("batch", [None, 2])
def test_dropout_is_replayed_with_the_draws_of_each_step(name, batch):
    objective, how = Classification(Network(dropping), 3), Descent(lr=0.1, steps=8, batch=batch)
    kernels, plain = kernels_for(objective, name), kernels_for(objective, name, Unplayed)
    for seed in range(3):
        given = job(objective, seed)
        want, want_loss = plain.descend(objective, *given, how)
        got, loss = kernels.descend(objective, *given, how)
        assert torch.equal(loss, want_loss)
        assert all(torch.equal(got[name], want[name]) for name in want)
    assert any(played(kernels.tapes))


class Alternating(Classification):
    """Steps that depend on their number, as those of adversarial networks do."""

    def training_losses(self, params, examples, draws):
        return self.losses(params, examples) * (2 if draws.step % 2 else 1)


@pytest.mark.parametrize("name", ["foreach", "serial"])
def test_a_step_that_reads_its_number_is_never_replayed(name):
    objective = Alternating(Network(mlp(4, [5], 3)), 3)
    kernels, plain = kernels_for(objective, name), kernels_for(objective, name, Unplayed)
    given, how = job(objective, 0), Descent(lr=0.1, steps=6)
    got, want = (some.descend(objective, *given, how)[0] for some in (kernels, plain))
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert not any(played(kernels.tapes))


def test_functions_that_read_values_or_keep_state_are_never_played():
    def looks(inputs):
        return (inputs[0] * float(inputs[0].sum()),)

    x = torch.arange(3.0)
    assert record(looks, [x])[1] is None
    state = [0.0]

    def counts(inputs):
        state[0] += 1
        return (inputs[0] * state[0],)

    tapes = Tapes()
    found = [float(tapes.run(("counts",), counts, [x], Step(0))[0][1]) for _ in range(4)]
    assert found == [1, 2, 3, 4]
    assert played(tapes) == [False]

    kept = [x * 2]

    def remembers(inputs):  # memory of an input that it does not get by its arguments
        return (inputs[0] + kept[0].view(3, 1)[:, 0], kept[0].view(-1) + 1)

    assert record(remembers, [kept[0]])[1] is not None  # the same tensor is the input itself
    shared = kept[0].detach()
    assert record(lambda inputs: (inputs[0] + shared,), [kept[0]])[1] is None


def test_a_tape_writes_into_the_same_inputs_and_frees_the_rest():
    def step(inputs):
        w, x = inputs
        loss = (x * w).sum(1)
        w.view(-1).add_(x.mean(0), alpha=-0.5)
        return (loss,)

    w, x = torch.ones(3), torch.arange(6.0).reshape(2, 3)
    _, tape = record(step, [w, x])
    assert tape is not None
    assert tape.written == (0,)
    assert len(tape.without_outputs().lines) < len(tape.lines)
    for one in (tape, tape.without_outputs()):
        w, x = torch.full((3,), 2.0), torch.ones(2, 3)
        said = one.play([w, x])
        assert w.tolist() == [1.5, 1.5, 1.5]
        assert [s.tolist() for s in said] == ([[6.0, 6.0]] if one is tape else [])


def test_missing_results_are_recorded_and_a_tape_that_fails_is_not_played():
    def step(inputs):  # no gradient of the examples is asked for: the backward's first result is None
        x, weight = inputs
        with torch.enable_grad():
            leaf = weight.detach().requires_grad_()
            loss = torch.conv2d(x, leaf).square().sum()
            (slope,) = torch.autograd.grad(loss, [leaf])
        return loss.detach(), slope

    inputs = [torch.randn(2, 1, 4, 4), torch.randn(3, 1, 2, 2)]
    found, tape = record(step, inputs)
    assert any(None in line.results for line in tape.lines)
    assert all(torch.equal(a, b) for a, b in zip(found, tape.play(inputs), strict=True))

    def grows(inputs):  # a constant that the second call replaces: its tape fails to play
        kept[0] = kept[0].new_ones(len(kept[0]) + 1)
        return (inputs[0].sum() + kept[0].sum(),)

    kept, tapes, x = [torch.ones(1)], Tapes(), torch.ones(2)
    assert [float(tapes.run(("grows",), grows, [x], Step(0))[0]) for _ in range(5)] == [4, 5, 6, 7, 8]
    assert played(tapes) == [False]


def test_a_step_number_records_its_use():
    step = Step(3)
    assert Draws(root(0), step).of((root(1),)).step is step
    assert not step.used
    Draws(root(0), step).keys(2)
    assert step.used


def test_a_tape_without_outputs_skips_the_loss():
    """A backward pass starts from ones of the loss's shape, and does not need its values."""

    def step(inputs):
        weight, x = inputs
        with torch.enable_grad():
            leaf = weight.detach().requires_grad_()
            loss = (leaf * x).sum()
            loss.backward()
        weight.sub_(leaf.grad)
        return (loss.detach(),)

    _, tape = record(step, [torch.ones(3), torch.arange(3.0)])
    lean = tape.without_outputs()
    assert torch.ops.aten.sum.default in {line.function for line in tape.lines}
    assert torch.ops.aten.sum.default not in {line.function for line in lean.lines}
    weight = torch.ones(3)
    lean.play([weight, torch.arange(3.0)])
    assert torch.equal(weight, torch.tensor([1.0, 0.0, -1.0]))


class LastState(nn.Module):
    """A recurrent layer; on a CPU it must not be asked where its weights are."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.cells, self.out = kind(2, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.cells(x.reshape(len(x), 2, 2))[0][:, -1])


@pytest.mark.parametrize(("kind", "replayed"), [(nn.LSTM, True), (nn.GRU, False)])
def test_recurrent_layers_of_a_single_client_are_replayed_unless_torch_takes_them_apart(kind, replayed):
    objective = Classification(Network(lambda: LastState(kind)), 3)
    kernels = kernels_for(objective, "serial")
    kernels.descend(objective, *job(objective, 0), Descent(lr=0.1, steps=6, batch=2))
    assert any(played(kernels.tapes)) is replayed
