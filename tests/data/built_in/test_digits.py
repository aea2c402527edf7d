import numpy as np
import pytest
import torch

from corymb.data import digits, digits_iid, digits_inverted
from corymb.settings import InvalidInput


@pytest.fixture(scope="module")
def rotated():
    return digits(0)


def test_sizes(rotated):
    assert rotated.names[0] == "client-00"
    assert rotated.sizes.tolist() == [60] * 80
    assert rotated.test.sizes.tolist() == [40] * 80
    assert rotated.features == (64,)
    assert rotated.truth.tolist() == [j for j in range(4) for _ in range(20)]
    assert rotated.train.x.min() == 0
    assert rotated.train.x.max() == 1


def upright(data, part):
    """Every image as bytes, turned back, a list a cluster."""
    x = getattr(data, part).x.reshape(4, -1, 8, 8)
    return [[image.tobytes() for image in torch.rot90(x[j], -j, (1, 2)).numpy()] for j in range(4)]


def test_clusters_differ_by_the_turn_only(rotated):
    clusters = [set(images) for images in upright(rotated, "train")]
    assert len(clusters[0]) == 1078
    assert all(images == clusters[0] for images in clusters)


def test_no_test_image_is_trained_on(rotated):
    train, test = set(upright(rotated, "train")[0]), set(upright(rotated, "test")[0])
    assert len(test) == 719
    assert not train & test


def test_as_little_repetition_as_the_sizes_allow(rotated):
    for images in upright(rotated, "train"):
        counts = np.unique(images, return_counts=True)[1]
        assert np.bincount(counts).tolist() == [0, 1078 - 122, 122]
        assert all(len(set(images[i : i + 60])) == 60 for i in range(0, 1200, 60))


def test_inverted_is_one_minus():
    data = digits_inverted(0)
    halves = data.train.x.reshape(2, -1, 64)
    assert data.truth.bincount().tolist() == [20, 20]
    assert {row.tobytes() for row in halves[0].numpy()} == {row.tobytes() for row in (1 - halves[1]).numpy()}


def test_iid_has_one_cluster():
    assert digits_iid(0).truth.tolist() == [0] * 20


def test_other_sizes_and_wrong_ones():
    small = digits(0, clients=8, train=10, test=0)
    assert small.sizes.tolist() == [10] * 8
    assert len(small.test.y) == 0
    for options in ({"clients": 7}, {"clients": 0}, {"train": 0}, {"train": 1500, "test": 500}):
        with pytest.raises(InvalidInput):
            digits(0, **options)
