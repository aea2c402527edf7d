"""Functions among a module's attributes and hooks compute with the module they belong to, in a copy too."""

from functools import partial

import pytest
import torch
from torch import nn

import corymb
from corymb.local import Descent
from corymb.models import Network
from corymb.models.copying import copied, share_tensors
from corymb.objectives import Classification
from tests.tiny import farthest


class Encoding(nn.Module):
    """Reads its first layer in a way of its own."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(4, 8), nn.Linear(8, 3), nn.Dropout(drop)

    def encoded(self, x):
        return self.a(x)

    def forward(self, x):
        return self.b(self.drop(torch.relu(self.encoded(x))))


class ByLambda(Encoding):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__(drop)
        self.encoded = lambda x: self.a(x)


class ByLambdaInList(Encoding):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__(drop)
        inner = lambda x: self.a(x)  # noqa: E731
        self.parts = {"encoders": [lambda x, *, with_: with_(x), lambda x, f=inner: f(x)]}

    def encoded(self, x):
        return self.parts["encoders"][1](x)


class ByHook(Encoding):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__(drop)
        self.kept = {}
        self.a.register_forward_hook(lambda layer, given, out: self.kept.update(out=out))

    def encoded(self, x):
        self.a(x)
        return self.kept.pop("out")


class ByClosure(Encoding):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__(drop)

        def twice(x, times=2):
            return once(x) if times == 1 else twice(x, times - 1)

        def once(x):
            return self.a(x) if callable(twice) else x

        self.encoded = twice


class Keeping(Encoding):
    """Keeps a result of its last call, and one of the call before it."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__(drop)
        self.last, self.all = None, []
        nn.utils.weight_norm(self.b)

    def encoded(self, x):
        self.last = self.a(x)
        self.all.append(self.last)
        return self.last


KINDS = [ByLambda, ByLambdaInList, ByHook, ByClosure]


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
@pytest.mark.parametrize("drop", [0.0, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_models_with_functions_that_refer_to_them_train_all_layers(kind, drop, engine):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    data = corymb.FederatedDataset.from_arrays(x, torch.arange(40) % 3, torch.arange(40) // 10, test=0)
    algorithm, options = corymb.FedAvg(rounds=2, local=Descent(lr=0.3, steps=3, batch=5)), {"engine": engine}
    want = corymb.fit(algorithm, data, lambda: Encoding(drop), **options)
    for model in (lambda: kind(drop), kind(drop)):
        run = corymb.fit(algorithm, data, model, **options)
        assert farthest(run.models, want.models) < 1e-6
        exported = run.module(0)
        assert torch.allclose(exported(x), want.module(0)(x), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_computes_with_its_own_parameters_and_leaves_the_original(kind):
    original = kind()
    twin, x = copied(original), torch.randn(5, 4)
    before = original(x)
    assert torch.equal(twin(x), before)
    with torch.no_grad():
        twin.a.weight.zero_()
    assert torch.equal(original(x), before)
    assert not torch.equal(twin(x), before)
    sharing = copied(original, sharing=original.parameters())
    assert share_tensors(sharing, original)
    assert not share_tensors(twin, original)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
def test_results_that_a_module_keeps_are_copied_without_their_history():
    original, x = Keeping(), torch.randn(5, 4)
    want = original(x)
    twin = copied(original)
    assert torch.equal(twin(x), want)
    assert not share_tensors(original, twin)
    network = Network(lambda: original)
    assert torch.allclose(network(network.init(torch.tensor(0)), x), want)


def test_functions_that_refer_to_nothing_of_the_module_stay_the_same():
    model = Encoding()
    model.act, model.none, model.more = torch.nn.functional.relu, lambda: KINDS, partial(max, 1)
    model.again = [model.act]
    model.again.append(model.again)  # a list within itself
    twin = copied(model)
    assert (twin.act, twin.none) == (model.act, model.none)
    assert twin.again[0] is model.act


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x):
        return self.layer(x * self.scale)


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_function_that_returns_the_same_module_again_serves_several_networks(engine):
    """The check before a run uses another in float64; a module converted in place would serve neither."""
    module = Scaled()
    x = torch.randn(40, 4)
    data = corymb.FederatedDataset.from_arrays(x, torch.arange(40) % 3, torch.arange(40) // 10, test=0)
    run = corymb.fit(corymb.FedAvg(rounds=1), data, lambda: module, engine=engine)
    assert run.models["layer.weight"].isfinite().all()
    assert module.training
    objectives = [Classification(Network(lambda: module), 3) for _ in range(2)]
    assert not share_tensors(*(objective.network.module for objective in objectives))
    assert not share_tensors(objectives[0].network.module, objectives[0].to("cpu", torch.float64).network.module)
