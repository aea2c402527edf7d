import numpy as np
import pytest
import torch

from corymb.data import FederatedDataset
from corymb.data.prepare.pictures import as_in_run
from corymb.settings import InvalidInput


def pictures(*values):
    """Clients a, b, ... with two pictures each, all of whose pixels are one value, but for a black corner."""
    x = np.repeat(np.array(values, dtype=np.float64), 2)[:, None, None] * np.ones((1, 2, 2))
    x[:, 0, 0] = 0
    return FederatedDataset.from_arrays(x, [0, 1] * len(values), np.repeat(list("abcdefgh"[: len(values)]), 2), test=0)


@pytest.mark.parametrize(
    ("values", "top", "brightest"),
    [((255, 100, 51), 255, 1.0), ((0.5, 1, 0.2), 1, 1.0), ((200, 1, 0), 1, None), ((-3, 2, 700), 1, 700.0)],
)
def test_most_clients_decide_the_range(values, top, brightest):
    if brightest is None:  # most clients stay within 0 to 1: the other is the odd one
        with pytest.raises(InvalidInput, match=r"Client 'a' has pixels from 0 to 200, while most clients .* 0 to 1"):
            pictures(*values)
        return
    data = pictures(*values)
    assert data.preparation.top == top
    assert float(data.train.x.max()) == brightest
    assert data.features == (1, 2, 2)


@pytest.mark.parametrize(("odd", "got"), [(256, "0 to 256"), (-1, "-1 to 0"), (0.5, "0 to 0.5")])
def test_the_odd_client_is_refused_by_name(odd, got):
    with pytest.raises(InvalidInput, match=f"Client 'c' has pixels from {got}, while most clients .* 0 to 255"):
        pictures(255, 200, odd, 100)


def test_dark_pictures_are_no_reason_to_refuse():
    data = pictures(255, 1, 0, 100)
    assert data.train.of(1)[0].max() == torch.tensor(1 / 255)


def test_new_pictures_go_the_same_way():
    assert as_in_run(np.full((1, 1, 1, 1), 51.0), 255).item() == pytest.approx(0.2)
    assert as_in_run(np.full((1, 1, 1, 1), 0.2), 255).item() == pytest.approx(0.2)
    assert as_in_run(np.full((1, 1, 1, 1), 1, dtype=np.uint8), 255).item() == pytest.approx(1 / 255)
    with pytest.raises(InvalidInput, match="Pixels range from 256 to 256, but the run's from 0 to 255"):
        as_in_run(np.full((1, 1, 1, 1), 256), 255)
    assert as_in_run(np.ones((1, 1, 1, 1), dtype=np.uint8), 1).item() == 1
    with pytest.raises(InvalidInput, match="Pixels are bytes beyond 1, and the run's were not"):
        as_in_run(np.full((1, 1, 1, 1), 2, dtype=np.uint8), 1)


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((18, 18, 2), (2, 18, 18)),
        ((2, 18, 18), (2, 18, 18)),
        ((18, 20, 5), (5, 18, 20)),
        ((5, 18, 20), (5, 18, 20)),
        ((7, 7, 64), (64, 7, 7)),
        ((64, 7, 7), (64, 7, 7)),
        ((4, 4, 3), (3, 4, 4)),
        ((3, 4, 4), (3, 4, 4)),
        ((3, 3, 3), (3, 3, 3)),
        ((9, 8, 1), (1, 9, 8)),
    ],
)
def test_which_axis_the_channels_are(shape, wanted):
    x = np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)
    data = FederatedDataset.from_arrays(x, [0, 1], ["a", "a"], test=0)
    assert data.features == wanted
    assert np.array_equal(data.train.x.numpy(), x if wanted == shape else x.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("shape", [(8, 8, 8), (18, 2, 18), (9, 7, 9)])
def test_a_shape_that_does_not_say_is_refused_and_can_be_given_otherwise(shape):
    x = np.random.default_rng(0).random((2, *shape))
    with pytest.raises(InvalidInput, match=r"channel axis is ambiguous: arrange .* scale='none'"):
        FederatedDataset.from_arrays(x, [0, 1], ["a", "a"], test=0)
    assert FederatedDataset.from_arrays(x, [0, 1], ["a", "a"], test=0, scale="none").features == shape


def test_pixels_of_another_range_are_reported():
    assert pictures(-3, 2, 700).notes == (
        "pixels range from -3 to 700 and are not scaled: divide them by 700 first; for data that are not images use "
        "scale='none' or 'standard' (--scale)",
    )
    assert pictures(3, 2, 700, 700, 700).notes == (
        "pixels range from 0 to 700 and are not scaled: divide them by 700 first",
    )
    assert pictures(-1, 2, -2).notes == ()
