"""Distances in one pass over the rows equal the norm of the difference; without the kernel there is a fallback."""

import pytest
import torch

from corymb.core.client import Share
from corymb.core.lengths import Near, one_pass, row_lengths

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def stacks(kind, device, n=7, k=3, width=70_001):
    draw = torch.Generator().manual_seed(0)
    rows, starts = (torch.randn(m, width, generator=draw, dtype=torch.float64).to(device, kind) for m in (n, k))
    return rows, starts, torch.randint(k, (n,), generator=draw).to(device)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(("kind", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("width", [1, 4096, 70_001])
def test_one_pass_is_a_difference_and_its_norm(monkeypatch, kind, near, width):
    monkeypatch.setattr(one_pass, "MIN_ENTRIES", 0)
    rows, starts, only = stacks(kind, "cuda", width=width)
    want = (rows.double() - starts[only].double()).square().sum(1)
    torch.testing.assert_close(one_pass.in_one_pass(rows, starts, only), want, rtol=near, atol=0)
    want = (rows.double() - starts[:1].double()).square().sum(1)
    torch.testing.assert_close(one_pass.in_one_pass(rows, starts[:1], None), want, rtol=near, atol=0)


@pytest.mark.gpu
@on_gpu
def test_non_finite_rows_have_no_finite_length_in_one_pass(monkeypatch):
    monkeypatch.setattr(one_pass, "MIN_ENTRIES", 0)
    rows, starts, only = stacks(torch.float32, "cuda")
    rows[2, 69_999], rows[4, 0] = torch.nan, torch.inf
    found = one_pass.in_one_pass(rows, starts, only)
    assert found.isfinite().tolist() == [True, True, False, True, False, True, True]


@pytest.mark.gpu
@on_gpu
def test_lengths_of_wide_replies_are_those_of_the_cpu(monkeypatch):
    monkeypatch.setattr(one_pass, "MIN_ENTRIES", 0)
    monkeypatch.setattr("corymb.core.lengths.GPU_BLOCK_ENTRIES", 1000)  # whichever way is open
    rows, starts, only = stacks(torch.float32, "cpu")
    weight = torch.nn.functional.one_hot(only, 3).float()

    def lengths(device):
        share = Share({"w": rows.to(device)}, weight.to(device), label=None, note=())
        return row_lengths(share, Near({"w": starts.to(device)}), len(rows)).length

    want = lengths("cpu")
    torch.testing.assert_close(lengths("cuda"), want, rtol=1e-5, atol=0)
    monkeypatch.setattr("corymb.core.lengths.in_one_pass", lambda *_: None)
    torch.testing.assert_close(lengths("cuda"), want, rtol=1e-5, atol=0)


def test_small_tensors_and_those_on_a_cpu_take_several_passes():
    assert one_pass.in_one_pass(*stacks(torch.float32, "cpu")) is None


def test_without_triton_there_is_no_kernel(caplog):
    with caplog.at_level("INFO"):
        assert one_pass._kernel(torch.float32, torch.device("cpu")) is None  # no Triton, or none for a CPU
    assert "several passes" in caplog.text
