import pytest
import torch

from corymb.core.pixels import as_numbers


def test_every_byte_gives_the_number_of_dividing_first():
    pixels = torch.arange(256, dtype=torch.uint8)
    before = pixels.float() / 255
    assert torch.equal(as_numbers(pixels), before)
    assert torch.equal(as_numbers(pixels, torch.float64), before.double())
    assert as_numbers(pixels).aminmax() == (0, 1)


def test_other_dtypes_are_unchanged():
    for other in (torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int64)):
        assert as_numbers(other, torch.float32) is other


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_gives_the_same_bits():
    pixels = torch.arange(256, dtype=torch.uint8)
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(as_numbers(pixels.cuda(), dtype).cpu(), as_numbers(pixels, dtype))
