"""Measures in blocks of examples are those of all examples at once."""

from dataclasses import replace

import pytest
import torch

from corymb import keys
from corymb.core.client import Examples
from corymb.engines.vectorised import blocks
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.traits import traits_of
from corymb.models import Network, cnn, mlp
from corymb.objectives import Classification
from corymb.trees import concat, map_tensors

SIZES = (3, 0, 70, 41)


@pytest.fixture(params=["mlp", "cnn"])
def case(request):
    """Four clients of different sizes, one without examples, and a model for their data."""
    shape = (6,) if request.param == "mlp" else (1, 8, 8)
    network = mlp(6, [5], 3) if request.param == "mlp" else cnn(1, 8, 3, width=8)
    objective = Classification(Network(network), 3).to("cpu", torch.float64)
    rows = max(SIZES)
    x = keys.uniform(keys.root(1), (len(SIZES), rows, *shape), torch.float64)
    y = torch.arange(rows).remainder(3).expand(len(SIZES), rows).contiguous()
    weight = torch.stack([(torch.arange(rows) < m).double() for m in SIZES])
    x[weight == 0] = torch.nan  # whoever looks at padding is found out
    return objective, Examples(x, y, weight)


def models_of(objective, n):
    return concat([map_tensors(lambda leaf: leaf[None], objective.init(keys.root(i))) for i in range(n)])


def kernels_for(objective, on):
    one = Examples(*(t[2, :1] for t in on))
    return Kernels(traits_of(objective, objective.init(keys.root(0)), one), "cpu", 1)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("what", ["losses", "scores"])
def test_a_measure_in_blocks_is_that_of_all_examples(case, shared, what, monkeypatch):
    objective, on = case
    models = models_of(objective, 2)
    if not shared:
        models = map_tensors(lambda leaf: leaf.expand(len(SIZES), *leaf.shape).clone(), models)
    kernels = kernels_for(objective, on)
    whole = kernels.measure(what, objective, models, on, shared=shared)
    seen = []
    monkeypatch.setattr(blocks, "CPU_PASS_BYTES", 1)
    monkeypatch.setattr(blocks, "MIN_PASS_ROWS", 16)
    inner = objective.predict
    monkeypatch.setattr(objective, "predict", lambda params, x: (seen.append(len(x)), inner(params, x))[1])
    parts = kernels.measure(what, objective, models, on, shared=shared)
    assert max(seen) <= 16 * (len(SIZES) if shared else 1)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("what", ["predict", "losses"])
def test_predictions_in_blocks_are_those_of_all_examples(case, shared, what, monkeypatch):
    objective, on = case
    model = objective.init(keys.root(0)) if shared else models_of(objective, len(SIZES))
    kernels = kernels_for(objective, on)
    whole = kernels.of_each(what, objective, model, on, shared=shared)
    monkeypatch.setattr(blocks, "CPU_PASS_BYTES", 1)
    parts = kernels.of_each(what, objective, model, on, shared=shared)
    assert parts.shape == whole.shape
    real = on.weight > 0
    torch.testing.assert_close(parts[real], whole[real], rtol=1e-12, atol=1e-12)


def test_clients_without_weight_have_a_loss_of_zero():
    """If all examples are held out, their weight is 0; the mean is then 0, as without blocks."""
    on = Examples(torch.zeros(2, 40, 1), torch.zeros(2, 40), torch.zeros(2, 40))
    found = blocks.mean_of_blocks(lambda some, who: torch.ones(len(who), 3), on, [slice(0, 16), slice(16, 40)])
    assert found.tolist() == [[0.0] * 3] * 2


def test_coupled_examples_stay_in_one_pass(case):
    objective, on = case
    traits = kernels_for(objective, on).traits
    many = Examples(*(t.repeat_interleave(10_000, 1)[:, :600_000] if t.dim() == 2 else t for t in on))
    large = traits._replace(activation_bytes=2**20)
    assert blocks.passes(large, many, "cpu")[1] == slice(64, 128)
    assert blocks.passes(large._replace(independent=False), many, "cpu") is None
    assert blocks.passes(traits, on, "cpu") is None


@pytest.mark.parametrize("shared", [True, False])
def test_on_a_gpu_clients_of_different_sizes_are_measured_with_little_padding(case, shared, monkeypatch):
    objective, on = case
    models = models_of(objective, 2)
    if not shared:
        models = map_tensors(lambda leaf: leaf.expand(len(SIZES), *leaf.shape).clone(), models)
    kernels = kernels_for(objective, on)
    whole = kernels.measure("losses", objective, models, on, shared=shared)
    monkeypatch.setattr(blocks, "GPU_PASS_BYTES", 1)
    monkeypatch.setattr(blocks, "MIN_PASS_ROWS", 50)
    there = replace(kernels, device="cuda", only="foreach")
    torch.testing.assert_close(there.measure("losses", objective, models, on, shared=shared), whole)
    found = blocks.passes(kernels.traits, on, "cuda")
    assert found == [slice(0, 4), slice(4, 54), slice(54, 61), slice(61, 70)]
    padded = sum((some.stop - some.start) * sum(m > some.start for m in SIZES) for some in found)
    assert padded <= blocks.MAX_SIZE_RATIO * sum(SIZES) + len(SIZES)


def test_clients_of_one_size_are_measured_in_one_pass(case):
    objective, on = case
    alike = Examples(*(t[2:3].expand(4, *t.shape[1:]) for t in on))
    assert blocks.passes(kernels_for(objective, on).traits, alike, "cuda") is None
