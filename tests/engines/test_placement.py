"""The precision asked for is set while clients compute, and restored afterwards."""

import pytest
import torch

from corymb.engines import Placement


def flags() -> tuple[bool, bool, bool]:
    return (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch._C._get_mkldnn_enabled(),
    )


@pytest.mark.parametrize(("tf32", "wanted"), [(False, False), (True, True)])
def test_float32_means_float32_in_products_and_convolutions(tf32, wanted):
    """torch allows TF32 in convolutions unless it is told otherwise."""
    assert torch.backends.cudnn.allow_tf32
    before = flags()
    with Placement(tf32=tf32).computing():
        assert flags()[:2] == (wanted, wanted)
    assert flags() == before


@pytest.mark.parametrize("placement", [Placement(), Placement(mixed=True), Placement(tf32=True)])
def test_settings_are_restored_after_an_error(placement):
    before = flags()
    with pytest.raises(ZeroDivisionError), placement.computing():
        raise ZeroDivisionError
    assert flags() == before
    assert not torch.is_autocast_enabled("cpu")
