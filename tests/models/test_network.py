"""Any module is a model, unless it couples examples or draws from a global generator."""

import logging
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from corymb.algorithms import FedAvg
from corymb.core.client import Client, Examples, on_client
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.objective import Draws
from corymb.core.snapshot import Snapshot
from corymb.engines import LoopEngine, VectorisedEngine
from corymb.engines.isolation import torch_quiet
from corymb.evaluate import evaluate
from corymb.keys import fold, root
from corymb.local import Descent, descend, gradient, losses
from corymb.models import Network, mlp
from corymb.objectives import Classification, LinearRegression, Regression
from corymb.objectives.module import module_of
from corymb.settings import InvalidInput
from corymb.testing.learners import LEARNERS
from corymb.trees import stack, take
from tests.tiny import DOUBLE, ENGINES, classification, farthest, federation


def around(layer: nn.Module, inputs: int = 4, outputs: int = 4):
    return lambda: nn.Sequential(nn.Linear(4, inputs), layer, nn.ReLU(), nn.Linear(outputs, 3))


# ---- what is refused

COUPLED = {
    "BatchNorm1d": around(nn.BatchNorm1d(4)),
    "BatchNorm2d": lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 3)),
    "SyncBatchNorm": around(nn.SyncBatchNorm(4)),
    "LazyBatchNorm1d": around(nn.LazyBatchNorm1d()),
    "InstanceNorm1d": around(nn.InstanceNorm1d(4, track_running_stats=True)),
    "InstanceNorm2d": around(nn.InstanceNorm2d(4, track_running_stats=True)),
    "InstanceNorm3d": around(nn.InstanceNorm3d(4, track_running_stats=True)),
}


@pytest.mark.parametrize("name", COUPLED)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_layers_that_couple_examples_are_refused_by_name(name):
    with pytest.raises(InvalidInput) as error:
        Network(COUPLED[name])
    assert name in str(error.value)
    assert "GroupNorm" in str(error.value)
    assert "'1'" in str(error.value)  # where it is
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4)], ids=type)
def test_layers_that_normalise_each_example_are_welcome(layer):
    Network(around(layer))


DROPPING = {
    "Dropout": around(nn.Dropout(0.5)),
    "Dropout1d": around(nn.Dropout1d(0.5)),
    "AlphaDropout": around(nn.AlphaDropout(0.5)),
    "LSTM": lambda: nn.LSTM(4, 3, num_layers=2, dropout=0.3),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2, dropout=0.1),
}


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_refused_by_name_where_that_is_asked_for(name):
    with pytest.raises(InvalidInput) as error:
        Network(DROPPING[name], dropout="refuse")
    assert name in str(error.value)
    assert "dropout='off'" in str(error.value)
    assert "\n" not in str(error.value)
    assert Network(DROPPING[name]).drops
    assert not Network(DROPPING[name], dropout="off").drops
    Network(around(nn.Dropout(0.0)), dropout="refuse")


def test_dropout_that_is_off_drops_nothing():
    network = Network(around(nn.Dropout(0.5)), dropout="off")
    plain = Network(around(nn.Identity()))
    params, x = network.init(root(1)), torch.ones(5, 4)
    state = torch.get_rng_state()
    assert torch.equal(network(params, x), plain(params, x))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(network.to("cpu", torch.float64).init(root(1))["0.weight"], params["0.weight"].double())


class Coupled(nn.Module):
    """Batch normalisation that no layer's name gives away."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return self.out((x - x.mean(0)).tanh())


@on_client
def work(client: Client, models):
    model = take(models, 1)
    return (
        losses(client, models),
        gradient(client, model),
        descend(client, model, Descent(lr=0.1, epochs=1, batch=3)),
        descend(client, take(models, losses(client, models).argmin()), Descent(lr=0.1, steps=2)),
    )


@pytest.mark.parametrize("kernel", [None, "fused", "foreach", "serial"])
def test_models_that_couple_examples_are_detected_and_run_client_by_client(kernel, caplog):
    objective = Classification(Network(Coupled, dtype=torch.float64), 3)
    with caplog.at_level(logging.WARNING):
        many = VectorisedEngine(objective, classification(), DOUBLE, kernel=kernel)
    assert "depends on the other examples" in caplog.text
    models = stack([objective.init(fold(root(0), j)) for j in range(2)])
    got, want = (
        Federation(engine).clients.map(work, models).value
        for engine in (many, LoopEngine(objective, classification(), DOUBLE))
    )
    assert farthest(got, want) < 1e-9


class Dice(nn.Module):
    """Its output is random in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.dropout(x, 0.5))


@pytest.mark.parametrize("engine", [LoopEngine, VectorisedEngine])
@pytest.mark.parametrize("dropout", ["on", "off", "refuse"])
def test_a_model_that_throws_dice_is_refused(dropout, engine):
    objective = Classification(Network(Dice, dropout=dropout, dtype=torch.float64), 3)
    with pytest.raises(InvalidInput, match=r"^The model applies dropout in evaluation, too: write dropout"):
        Federation(engine(objective, classification(), DOUBLE)).clients.map(
            just_losses, stack([objective.init(root(0))])
        )


# ---- keyed dropout: that every engine gives the same bits is a law of `corymb.testing`, under the learner "dropout"


class Written(nn.Module):
    """What is done to the features in training, written out in forward."""

    def __init__(self, drop) -> None:
        super().__init__()
        self.drop, self.out = drop, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(x, self.training))


def dropped(layer: nn.Module, x: Tensor, draws: Draws) -> Tensor:
    """What a layer makes of x in a step of training."""
    network = Network(lambda: nn.Sequential(layer, nn.Flatten(), nn.Linear(x[0].numel(), x[0].numel(), bias=False)))
    return network.training({"2.weight": torch.eye(x[0].numel())}, x, draws).reshape(x.shape)


@pytest.mark.parametrize("p", [0.2, 0.5, 1.0])
def test_dropout_drops_its_share_and_scales_the_rest(p):
    out = dropped(nn.Dropout(p), torch.ones(400, 10), Draws(root(0)))
    assert set(out.unique().tolist()) <= {0.0, torch.tensor(1 / (1 - p) if p < 1 else 0.0).item()}
    assert abs(float((out == 0).float().mean()) - p) < 4 * (p * (1 - p) / 4000) ** 0.5 + 1e-9
    assert float((out == 0).float().mean(0).std()) < 0.05


@pytest.mark.parametrize(("kind", "axes"), [(nn.Dropout1d, 1), (nn.Dropout2d, 2), (nn.Dropout3d, 3)])
def test_channels_are_dropped_as_a_whole(kind, axes):
    out = dropped(kind(0.5), torch.ones(50, 4, *[2] * axes), Draws(root(0))).flatten(2)
    assert bool(((out == 0).all(-1) | (out == 2).all(-1)).all())
    assert 0.3 < float((out == 0).float().mean()) < 0.7


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_alpha_dropout_keeps_mean_and_variance(kind):
    generator = torch.Generator().manual_seed(0)
    out = dropped(kind(0.3), torch.randn(4000, 8, generator=generator), Draws(root(0)))
    assert abs(float(out.mean())) < 0.03
    assert abs(float(out.std()) - 1) < 0.03


def test_an_examples_dropout_depends_on_its_client_step_layer_and_place_alone():
    x, key = torch.ones(6, 30), root(1)
    both = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    all_of_them = dropped(nn.Dropout(0.5), x, Draws(key))
    some = torch.tensor([4, 1])
    assert torch.equal(dropped(nn.Dropout(0.5), x[some], Draws(key, rows=some)), all_of_them[some])
    for other in (Draws(root(2)), Draws(key, step=1), Draws(key, rows=torch.arange(6) + 1)):
        assert not torch.equal(dropped(nn.Dropout(0.5), x, other), all_of_them)
    assert not torch.equal(dropped(both, x, Draws(key)), 2 * all_of_them)  # the second layer has draws of its own


def test_dropout_is_for_steps_of_training_and_reads_no_global_generator():
    network = Network(around(nn.Dropout(0.5)))
    plain = Network(around(nn.Identity()))
    params, x = network.init(root(1)), torch.ones(5, 4)
    state = torch.get_rng_state()
    assert torch.equal(network(params, x), plain(params, x))
    trained = network.training(params, x, Draws(root(0)))
    assert torch.equal(trained, network.training(params, x, Draws(root(0))))
    assert not torch.equal(trained, plain(params, x))
    assert torch.equal(torch.get_rng_state(), state)
    assert network.describe().endswith(", dropout on")
    assert Network(around(nn.Dropout(0.5)), dropout="off").describe().endswith("}")


REFUSED = {
    "noise": (lambda x, training: x + torch.randn_like(x) * training, r"global generator \(randn_like\)"),
    "examples on the second axis": (
        lambda x, training: functional.dropout(x.T, 0.5, training).T,
        r"dropout has an input of shape \[4, 5\] for 5 examples: wanted examples on the first axis; .*dropout='off'",
    ),
}


@pytest.mark.parametrize(("drop", "line"), REFUSED.values(), ids=REFUSED)
def test_layers_that_cannot_be_keyed_are_refused_in_one_line(drop, line):
    network = Network(lambda: Written(drop))
    params = network.init(root(0))
    with pytest.raises(InvalidInput, match=line) as error:
        network.training(params, torch.ones(5, 4), Draws(root(0)))
    assert "\n" not in str(error.value)


def test_attention_that_drops_weights_in_evaluation_too_is_refused():
    network = Network(lambda: Written(lambda x, _: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)))
    with pytest.raises(
        InvalidInput, match=r"in evaluation, too: give scaled_dot_product_attention dropout_p=0.0 unless"
    ):
        network(network.init(root(0)), torch.ones(5, 4))


class ByName(nn.Module):
    """A model that returns several values by name, as those of transformers do."""

    def __init__(self, name: str = "logits") -> None:
        super().__init__()
        self.layer, self.name = nn.Linear(4, 3), name

    def forward(self, x):
        return SimpleNamespace(**{self.name: self.layer(x)}, hidden_states=None)


def test_the_logits_of_an_output_with_names_are_the_prediction():
    params, x = Network(ByName).init(root(0)), torch.randn(5, 4)
    want = functional.linear(x, params["layer.weight"], params["layer.bias"])
    assert torch.equal(Network(ByName)(params, x), want)
    objective = Classification(Network(ByName), 3)
    assert torch.equal(module_of(objective, params, None, targets=False)(x), want)
    with pytest.raises(InvalidInput, match="The model's output is a SimpleNamespace, wanted one tensor"):
        Network(lambda: ByName("scores"))(params, x)


def test_dropout_in_forward_is_refused_where_that_is_asked_for():
    network = Network(lambda: Written(lambda x, training: functional.dropout(x, 0.5, training)), dropout="refuse")
    with pytest.raises(InvalidInput, match=r"applies dropout in training: .*dropout='off'"):
        network.training(network.init(root(0)), torch.ones(5, 4), Draws(root(0)))


def test_a_frozen_normalisation_stays_as_it_is_under_dropout():
    def model():
        return nn.Sequential(*backbone(), nn.Dropout(0.5))

    network = Network(model)
    kept = [value.clone() for value in network.module.buffers()]
    network.training(network.init(root(0)), torch.randn(7, 4), Draws(root(0)))
    assert all(torch.equal(a, b) for a, b in zip(kept, network.module.buffers(), strict=True))


@on_client
def just_losses(client: Client, models):
    return losses(client, models)


WRONG_OUTPUT = {
    "too few logits": (lambda: Classification(Network(mlp(4, [], 2)), 3), "[2, 2]"),
    "one number": (lambda: Classification(Network(lambda: nn.Sequential(mlp(4, [], 3)(), nn.Flatten(0))), 3), "[6]"),
    "one logit too many for regression": (lambda: Regression(Network(mlp(4, [], 2))), "[2, 2]"),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", WRONG_OUTPUT)
def test_an_output_of_the_wrong_shape_is_refused_in_one_line(name, engine):
    make, shape = WRONG_OUTPUT[name]
    objective = make().to("cpu", torch.float64)
    data = classification((2, 2))
    with pytest.raises(InvalidInput) as error:
        federation(engine, objective, data).clients.map(just_losses, stack([objective.init(root(0))]))
    assert f"for 2 examples has shape {shape}, wanted" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("objective", "data"),
    [
        (Classification(Network(mlp(4, [], 2), dtype=torch.float64), 2), classification((40,), seed=1)),
        (Classification(Network(mlp(9, [], 3), dtype=torch.float64), 3), classification((4, 4))),
        (LinearRegression(9, dtype=torch.float64), classification((4, 4))),
    ],
    ids=["labels out of range", "other features", "other features of a line"],
)
def test_data_that_a_model_cannot_take_are_refused_in_one_line(objective, data):
    data = data._replace(train=data.train._replace(y=data.train.y.flip(0)))
    with pytest.raises(InvalidInput, match="cannot take this data") as error:
        VectorisedEngine(objective, data, DOUBLE)
    assert "\n" not in str(error.value)


class Bare(nn.Module):
    """A parameter, and no method to initialise it again."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (nn.ReLU(), "has no parameters"),
        (lambda: 3, "returned int"),
        (Bare(), r"no reset_parameters\(\)"),
        (nn.Sequential(nn.Linear(4, 4), Bare()), "Layer Bare"),
    ],
)
def test_an_invalid_model_is_refused_in_one_line(model, line):
    with pytest.raises(InvalidInput, match=line) as error:
        Network(model)
    assert "\n" not in str(error.value)


# ---- how parameters are made


class Odd(nn.Module):
    """Parameters in all the ways that people make them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(3, 4))
        self.b = nn.Parameter(torch.rand(3))
        self.c = nn.Parameter(torch.empty(3, 3).normal_(0, 0.1))
        self.d = nn.Parameter(torch.empty(4).uniform_(-1, 1))
        self.e = nn.Parameter(torch.normal(0.0, torch.ones(5)))
        self.f = nn.Parameter(nn.init.trunc_normal_(torch.empty(6)))
        self.g = nn.Parameter(nn.init.orthogonal_(torch.empty(3, 3)))
        self.h = nn.Parameter(nn.init.sparse_(torch.empty(5, 4), 0.5))
        self.i = nn.Parameter(nn.init.kaiming_normal_(torch.empty(3, 4)))
        self.j = nn.Parameter(torch.randint(9, (4,)).float())
        self.k = nn.Parameter(torch.randperm(7).float())
        self.l = nn.Parameter(torch.bernoulli(torch.full((20,), 0.5)))
        self.m = nn.Parameter(torch.empty(4).exponential_())
        self.n = nn.Parameter(torch.empty(4).log_normal_())
        self.o = nn.Parameter(torch.empty(4).cauchy_())
        self.p = nn.Parameter(torch.randn_like(torch.empty(4)))
        self.q = nn.Parameter(torch.rand_like(torch.empty(4)))
        self.r = nn.Parameter(torch.multinomial(torch.ones(9), 5).float())


MADE = {
    "linear": lambda: nn.Linear(4, 3),
    "convolution": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ConvTranspose1d(2, 3, 2)),
    "embedding": lambda: nn.Embedding(5, 3),
    "recurrent": lambda: nn.Sequential(nn.LSTM(3, 4), nn.GRU(4, 2)),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
    "bilinear": lambda: nn.Bilinear(2, 3, 4),
    "odd": Odd,
}


@pytest.mark.parametrize("name", MADE)
def test_parameters_depend_on_the_key_alone(name):
    network = Network(MADE[name])
    state = torch.get_rng_state()
    first = network.init(root(1))
    assert torch.equal(torch.get_rng_state(), state)  # neither read nor seeded
    torch.rand(3)
    again, other = network.init(root(1)), network.init(root(2))
    assert first.keys() == again.keys()
    for param, value in first.items():
        assert torch.equal(value, again[param]), param
        constant = len(value.unique()) == 1
        assert constant or not torch.equal(value, other[param]), param
    assert not all(len(value.unique()) == 1 for value in first.values())


@pytest.mark.parametrize("name", ["linear", "convolution", "embedding", "recurrent", "bilinear"])
def test_a_module_is_recreated_as_by_a_function_and_not_modified(name):
    module = MADE[name]()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    network = Network(module)
    params = network.init(root(1))
    assert farthest(params, network.init(root(1))) == 0
    assert farthest(dict(module.state_dict()), before) == 0
    assert module.training


def test_tied_parameters_appear_once():
    params = LEARNERS["shared weight"].objective().init(root(0))
    assert set(params) == {"first.weight", "first.bias", "second.bias", "out.weight", "out.bias"}


def test_parameters_come_in_the_dtype_asked_for_from_the_same_draws():
    single = Network(mlp(4, [5], 3)).init(root(0))
    double = Network(mlp(4, [5], 3), dtype=torch.float64).init(root(0))
    for name, value in single.items():
        assert double[name].dtype == torch.float64
        assert torch.equal(double[name], value.double())


# ---- objectives


@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "lstm"])
def test_an_examples_loss_does_not_depend_on_the_others(name):
    objective, data = LEARNERS[name].objective(), LEARNERS[name].data()
    params = objective.init(root(0))
    all_of_them = Examples(data.train.x, data.train.y, torch.ones(len(data.train.y)).double())
    for per_example in (objective.losses, objective.scores):
        together = per_example(params, all_of_them)
        alone = torch.cat([per_example(params, Examples(*(t[i : i + 1] for t in all_of_them))) for i in range(9)])
        assert together.shape == all_of_them.weight.shape
        assert farthest(together[:9], alone) < 1e-12
        mapped = vmap(lambda one, fn=per_example: fn(one, all_of_them))(stack([params, params]))
        assert farthest(mapped, torch.stack([together, together])) < 1e-12


def test_half_the_squared_error_is_half_of_it():
    whole, half = (LinearRegression(3, half=half) for half in (False, True))
    params, on = whole.init(root(0)), Examples(torch.ones(2, 3), torch.tensor([1.0, 5.0]), torch.ones(2))
    assert torch.equal(half.losses(params, on) * 2, whole.losses(params, on))
    assert torch.equal(half.scores(params, on), whole.scores(params, on))


def test_scores_of_a_classifier_are_right_or_wrong():
    objective = Classification(Network(lambda: nn.Linear(2, 2)), 2)
    params = {"weight": torch.eye(2), "bias": torch.zeros(2)}
    on = Examples(torch.tensor([[2.0, 1.0], [1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 0, 0]), torch.ones(3))
    assert objective.scores(params, on).tolist() == [1, 0, 1]
    want = -torch.log_softmax(on.x, 1)[:, 0]
    assert torch.allclose(objective.losses(params, on), want)


def test_recurrent_layers_stay_in_training_mode_with_their_dropout_off():
    """cuDNN has no backward for them in evaluation mode; two passes must agree all the same."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.out(self.lstm(x)[0][:, -1])

    network = Network(Reader, dropout="off")
    params, x = network.init(root(0)), torch.ones(2, 5, 3)
    assert network.module.lstm.training
    assert not network.module.training
    assert torch.equal(network(params, x), network(params, x))


# ---- frozen parameters


def backbone(seed: int = 0) -> nn.Module:
    """Layers as if trained before: a frozen one with a batch normalisation, then a head."""
    generator = torch.Generator().manual_seed(seed)
    body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh())
    with torch.no_grad():
        for value in (*body.parameters(), body[1].running_mean):
            value.copy_(torch.randn(value.shape, generator=generator))
    return nn.Sequential(body.requires_grad_(False), nn.Linear(5, 3))


def in_part() -> nn.Module:
    """Layers of which one is frozen in the middle, one in its weight and one in its bias."""
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3))
    for frozen in (module[2].weight, module[2].bias, module[4].weight, module[5].bias):
        frozen.requires_grad_(False)
    return module


GIVEN = backbone()
FROZEN = {
    "a module": GIVEN,
    "a function": backbone,
    "a function that gives the same module": lambda: GIVEN,
    "a module in part": in_part(),
    "a function in part": in_part,
}
"""Of a function, what is frozen comes from its first module."""


@pytest.mark.parametrize("model", FROZEN.values(), ids=FROZEN)
def test_frozen_parameters_are_no_parameters_and_come_from_the_module(model):
    network, x = Network(model), torch.ones(2, 4)
    params = network.init(root(0))
    frozen = {name: p for name, p in network.module.named_parameters() if name not in params}
    assert set(params) == {name for name, p in network.module.named_parameters() if p.requires_grad}
    assert frozen
    if isinstance(model, nn.Module):
        assert all(torch.equal(p, dict(model.named_parameters())[name]) for name, p in frozen.items())
    without = {**params, **{name: torch.zeros_like(p) for name, p in frozen.items()}}
    assert not torch.equal(network(params, x), network(without, x))
    double = network.to("cpu", torch.float64)
    assert double.describe() == network.describe()
    out = double({name: p.double() for name, p in params.items()}, x.double())
    assert torch.allclose(out.float(), network(params, x), atol=1e-5)


@pytest.mark.parametrize("model", [backbone, GIVEN, in_part], ids=["a function", "a module", "in part"])
def test_clusters_start_apart_in_what_is_trained(model):
    one, other = (Network(model).init(root(seed)) for seed in (0, 1))
    assert not any(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kernel", ["loop", None, "fused", "foreach", "serial"])
@pytest.mark.parametrize("model", FROZEN.values(), ids=FROZEN)
def test_every_kernel_trains_the_rest_and_leaves_what_is_frozen(model, kernel):
    objective = Classification(Network(model, dtype=torch.float64), 3)
    data, make = classification(), VectorisedEngine if kernel != "loop" else LoopEngine
    engine = make(objective, data, DOUBLE, **({} if kernel == "loop" else {"kernel": kernel}))
    frozen = {name: p.clone() for name, p in objective.network.module.named_parameters()}
    models = stack([objective.init(fold(root(0), j)) for j in range(2)])
    got = Federation(engine).clients.map(work, models)
    want = Federation(LoopEngine(objective, data, DOUBLE)).clients.map(work, models)
    assert farthest(got.value, want.value) < 1e-9
    assert set(got.value[1]) == set(models)
    moved = [(got.value[2][name] - take(models, 1)[name]).abs().max() for name in models]
    assert min(moved) > 0
    for name, p in objective.network.module.named_parameters():
        assert torch.equal(p, frozen[name])


def test_a_frozen_layer_does_not_stand_in_the_way_of_the_fused_kernel(caplog):
    objective = Classification(Network(backbone, dtype=torch.float64), 3)
    engine = VectorisedEngine(objective, classification(), DOUBLE)
    assert engine.describe()["kernel"] == "fused"
    assert caplog.text == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_only_trained_parameters_are_sent(engine):
    objective = Classification(Network(backbone, dtype=torch.float64), 3)
    fed = federation(engine, objective, classification())
    algorithm = FedAvg(rounds=20, local=Descent(lr=0.5, steps=5))
    *_, end = drive(algorithm, fed)
    head = (5 * 3 + 3) * 8
    clients, rounds = len(fed.names), algorithm.rounds
    assert head <= fed.ledger.bytes_down / clients / rounds < head + 100  # and its settings
    assert head <= fed.ledger.bytes_up / clients / rounds < head + 100
    assert set(end.models) == {"1.weight", "1.bias"}
    losses = [evaluate(fed, algorithm, at)["train_loss"] for at in (Snapshot.fresh(fed, 1), end)]
    assert losses[1] < 0.9 * losses[0]


def test_another_backbone_is_another_model():
    one, same, other = (Network(lambda seed=seed: backbone(seed)).describe() for seed in (0, 0, 1))
    assert one == same != other
    assert "frozen" in one
    assert "frozen" not in Network(mlp(4, [5], 3)).describe()


def test_batch_normalisation_is_welcome_where_it_is_frozen():
    Network(backbone)
    with pytest.raises(InvalidInput, match="or freeze it"):
        Network(lambda: backbone().requires_grad_(True))


def test_a_model_with_nothing_to_train_is_refused():
    for model in (nn.Linear(2, 2).requires_grad_(False), lambda: nn.Linear(2, 2).requires_grad_(False)):
        with pytest.raises(InvalidInput, match=r"^The model Linear has only frozen parameters: there is nothing"):
            Network(model)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pretrained_start_is_every_clusters_start(engine):
    """A function that gives the same module, all of it to be trained: the module itself stays as it is."""
    pretrained = nn.Linear(4, 3)
    before = {name: p.clone() for name, p in pretrained.named_parameters()}
    fed = federation(engine, Classification(Network(lambda: pretrained, dtype=torch.float64), 3), classification())
    fresh = Snapshot.fresh(fed, 2)
    for name, value in before.items():
        assert torch.allclose(fresh.models[name].float(), torch.stack([value, value]).float())
    *_, end = drive(FedAvg(rounds=2), fed)
    assert farthest(take(end.models, 0), take(fresh.models, 0)) > 1e-3
    assert all(torch.equal(p.float(), before[name].float()) for name, p in pretrained.named_parameters())


# ---- layers that need care


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_an_embedding_that_changes_when_it_is_read_is_refused(kind):
    with pytest.raises(InvalidInput, match=r"Layer '0' \(Embedding(Bag)?\) has max_norm=1, so every forward pass"):
        Network(lambda: nn.Sequential(kind(5, 3, max_norm=1.0), nn.Linear(3, 2)))


def test_complex_parameters_are_refused_and_not_made_real():
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.ones(3, dtype=torch.cfloat))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.turn).abs()

    with pytest.raises(InvalidInput, match="The model's turn are complex: give their real and imaginary parts"):
        Network(Complex)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look, self.out = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) * torch.ones(3, 1, dtype=x.dtype)
        return self.out(self.look(x, x, x, need_weights=False)[0].mean(1))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize("model", [Attention, encoder])
def test_attention_runs_for_all_clients_at_once(model, caplog):
    objective = Classification(Network(model, dtype=torch.float64), 3)
    with torch_quiet():
        engines = [engine(objective, classification([5, 9, 7]), DOUBLE) for engine in (LoopEngine, VectorisedEngine)]
    loop, vectorised = map(Federation, engines)
    assert vectorised._engine.kernels.pick(Descent(steps=1)) == "foreach"
    with torch_quiet():
        runs = [list(drive(FedAvg(rounds=2), fed)) for fed in (loop, vectorised)]
    assert farthest(runs[0][-1].models, runs[1][-1].models) < 1e-9
    assert caplog.records == []


def test_a_call_leaves_the_modules_own_parameters_where_they_were():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            if not x.isfinite().all():
                raise ValueError("no number")
            return self.two(self.one(x))

    network, x = Network(Tied), torch.ones(2, 3)
    before = {name: p for name, p in network.module.named_parameters()}
    params = {name: torch.full_like(p, 2.0) for name, p in before.items()}
    assert set(params) == {"one.weight", "one.bias", "two.bias"}
    assert network(params, x).tolist() == [[50.0] * 3] * 2  # 3 · 2 + 2 = 8, then 3 · 2 · 8 + 2
    with pytest.raises(ValueError, match="no number"):
        network(params, x / 0)
    assert all(p is before[name] for name, p in network.module.named_parameters())
    assert network.module.two.weight is network.module.one.weight


def test_recurrent_weights_that_lie_together_are_not_moved_in_every_call(monkeypatch):
    moved = []
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda layer: moved.append(layer))
    network = Network(partial(nn.GRU, 2, 3))
    params = network.init(root(0))
    x = torch.zeros(4, 1, 2)
    moved.clear()
    want = network._call(network.module, params, x)[0]
    assert moved == []  # only cuDNN needs it
    monkeypatch.setattr(Tensor, "is_cuda", True)
    network._call(network.module, {name: p.clone() for name, p in params.items()}, x)
    assert len(moved) == 1  # by name, each weight has its own memory
    memory = torch.cat([p.flatten() for p in params.values()])
    together = dict(zip(params, memory.split([p.numel() for p in params.values()]), strict=True))
    got = network._call(network.module, {n: p.view_as(params[n]) for n, p in together.items()}, x)[0]
    assert len(moved) == 1
    assert torch.equal(got, want)


def one_round(engine, objective):
    """The snapshot after a round of FedAvg."""
    *_, end = drive(FedAvg(rounds=1), federation(engine, objective, classification()))
    return end


class Recomputing(nn.Module):
    """Gradient checkpointing, in training or wherever a gradient is asked for."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.out, self.way, self.drop = nn.Linear(4, 6), nn.Linear(6, 3), way, nn.Dropout(0.1)

    def forward(self, x):
        h = self.first(x)
        if self.way == "always" or (self.training if self.way == "training" else h.requires_grad):
            return checkpoint(lambda z: self.out(self.drop(z).tanh()), h, use_reentrant=False)
        return self.out(self.drop(h).tanh())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("way", ["always", "training", "gradient"])
def test_a_model_that_computes_layers_again_for_its_gradient_is_refused(way, engine):
    """By then its parameters are its own again, so that the gradient would be wrong."""
    objective = Classification(Network(lambda: Recomputing(way), dtype=torch.float64), 3)
    with pytest.raises(InvalidInput, match=r"^The model saves memory by .* switch gradient checkpointing off\.$"):
        one_round(engine, objective)


class Stateful(nn.Module):
    """Computes with something besides its parameters and its input."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind, self.calls = nn.Linear(4, 3), kind, 0
        if kind == "spectral":
            self.layer = parametrizations.spectral_norm(self.layer)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.calls += 1
        if self.kind == "counts":
            return self.layer(x) * (1 + self.calls % 2)
        if self.kind == "averages":
            self.mean.lerp_(x.detach().mean(0), 0.1)
        if self.kind in ("python", "numpy") and self.training:
            draw = random.random() if self.kind == "python" else np.random.rand()  # noqa: NPY002
            return self.layer(x) * (1 + draw)
        if self.kind == "unread":
            self.mean += 1
            return self.layer(x)
        return self.layer(x - self.mean)


STATEFUL = {
    "counts": r"The model has a state outside its parameters \(a counter, or .*\), which changes in every call",
    "averages": "The model changes its mean in every call, and its output with it",
    "spectral": "The model changes its layer.parametrizations.weight.0._[uv] in every call, and its output with it",
    "python": "The model has a state outside its parameters",
    "numpy": "The model has a state outside its parameters",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", STATEFUL)
def test_a_model_whose_output_depends_on_more_than_its_arguments_is_refused(kind, engine):
    objective = Classification(Network(lambda: Stateful(kind), dtype=torch.float64), 3)
    with pytest.raises(InvalidInput, match=f"^{STATEFUL[kind]}"):
        one_round(engine, objective)


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_a_model_that_writes_into_its_input_is_not_taken_for_one_with_a_state(drop):
    network = Network(lambda: nn.Sequential(nn.SiLU(inplace=True), nn.Linear(4, 3), nn.Dropout(drop)))
    params, x = network.init(root(0)), torch.randn(5, 4)
    assert network(params, x.clone()).shape == (5, 3)
    assert network.training(params, x.clone(), Draws(root(0))).shape == (5, 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_buffer_that_nothing_reads_may_change(engine):
    objective = Classification(Network(lambda: Stateful("unread"), dtype=torch.float64), 3)
    assert one_round(engine, objective).models["layer.weight"].isfinite().all()
