"""Large products by oneDNN: the numbers of torch's own, and only where they pay."""

import pytest
import torch
from torch.func import vmap
from torch.nn.functional import linear

from corymb.engines.vectorised import products
from corymb.engines.vectorised.products import Products, stacked_gradient, stacked_linear, step_stacked

needs_onednn = pytest.mark.skipif(not products._works(), reason="this torch has no oneDNN")


@pytest.fixture
def called(monkeypatch):
    """Make oneDNN the faster library; the shapes of what it is given."""
    shapes, whole = [], products._by_onednn
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_by_onednn", lambda x, *more: shapes.append(tuple(x.shape)) or whole(x, *more))
    monkeypatch.setattr(products, "MIN_FLOPS", 2 * 8 * 5 * 6)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield shapes
    torch.set_num_threads(before)


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@needs_onednn
@pytest.mark.parametrize("biased", [True, False])
def test_layers_of_a_stack(called, biased):
    x, weight, bias = drawn(3, 8, 5), drawn(3, 6, 5), drawn(3, 6) if biased else None
    want = torch.stack([linear(x[i], weight[i], None if bias is None else bias[i]) for i in range(3)])
    torch.testing.assert_close(stacked_linear(x, weight, bias), want)
    assert called == [(8, 5)] * 3
    torch.testing.assert_close(stacked_linear(x[:, :7], weight, bias), want[:, :7])
    torch.testing.assert_close(stacked_linear(x.double(), weight.double(), None), x.double() @ weight.double().mT)
    assert len(called) == 3  # fewer rows do not pay, and oneDNN has no double precision


@needs_onednn
def test_steps_of_a_stack(called):
    weight, grad, x = drawn(3, 6, 5), drawn(3, 8, 6), drawn(3, 8, 5)
    want = weight - 0.1 * grad.mT @ x
    step_stacked(weight, grad, x, 0.1)
    torch.testing.assert_close(weight, want)
    assert called == [(6, 8)] * 3


@needs_onednn
@pytest.mark.parametrize(("threads", "layers", "steps"), [(2, 3, 0), (3, 0, 0)])
def test_several_threads_share_the_clients_of_a_stack(called, threads, layers, steps):
    torch.set_num_threads(threads)
    x, weight, grad = drawn(3, 8, 5), drawn(3, 6, 5), drawn(3, 8, 6)
    torch.testing.assert_close(stacked_linear(x, weight, None), x @ weight.mT)
    assert len(called) == layers
    want = weight - 0.1 * grad.mT @ x
    step_stacked(weight, grad, x, 0.1)
    torch.testing.assert_close(weight, want)
    assert len(called) == layers + steps


@needs_onednn
def test_gradients_of_a_stack(called):
    grad, x = drawn(3, 8, 6), drawn(3, 8, 5)
    got = stacked_gradient(grad, x)
    torch.testing.assert_close(got, grad.mT @ x)
    assert got.is_contiguous()
    assert called == [(6, 8)] * 3
    torch.testing.assert_close(stacked_gradient(grad[:, :7], x[:, :7]), grad[:, :7].mT @ x[:, :7])
    assert len(called) == 3


@needs_onednn
def test_forward_passes_without_gradients(called):
    x, weight, bias = drawn(4, 8, 5), drawn(6, 5), drawn(6)
    want = x @ weight.T + bias
    with Products():
        torch.testing.assert_close(linear(x, weight, bias), want)
        torch.testing.assert_close(linear(x, weight, bias=bias), want)
    assert called == [(4, 8, 5)] * 2
    with Products():
        learned = weight.clone().requires_grad_()
        linear(x, learned, bias).sum().backward()
        torch.testing.assert_close(vmap(lambda one: linear(one, weight, bias))(x), want)
        torch.testing.assert_close(linear(x[0, :7], weight, bias), want[0, :7])
    torch.testing.assert_close(learned.grad, x.sum((0, 1)).expand(6, 5))
    assert len(called) == 2


def test_the_processor_decides(monkeypatch):
    monkeypatch.setattr(products, "_vendor", lambda: "GenuineIntel")
    assert not products.onednn_is_faster.__wrapped__()


def test_a_torch_without_this_operation_is_noticed(monkeypatch):
    def missing(*_):
        raise AttributeError

    monkeypatch.setattr(products, "_by_onednn", missing)
    assert not products._works()
