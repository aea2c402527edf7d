import torch

from corymb.core.pixels import as_numbers


def test_every_byte_is_the_number_that_dividing_first_gives():
    pixels = torch.arange(256, dtype=torch.uint8)
    before = pixels.float() / 255
    assert torch.equal(as_numbers(pixels), before)
    assert torch.equal(as_numbers(pixels, torch.float64), before.double())
    assert as_numbers(pixels).aminmax() == (0, 1)


def test_what_is_no_pixel_stays_as_it_is():
    for other in (torch.ones(3), torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int64)):
        assert as_numbers(other, torch.float32) is other
