import os

import numpy as np
import pytest
import torch

from corymb.data import inverted, load, rotated
from corymb.settings import InvalidInput


def images(count, *shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.integers(0, 10, count, dtype=np.uint8)


@pytest.fixture
def four():
    return *images(24, 5, 5), *images(10, 5, 5, seed=1)


def test_each_cluster_has_every_image_once_in_its_turn(four):
    data = rotated(*four, clients=12, per_client=8, seed=0)
    assert data.features == (1, 5, 5)
    assert data.truth.tolist() == [j for j in range(4) for _ in range(3)]
    for j in range(4):
        turned = {np.rot90(image, j).tobytes() for image in four[0]}
        ours = (data.train.x[24 * j : 24 * (j + 1), 0] * 255).round().to(torch.uint8).numpy()
        assert {image.tobytes() for image in ours} == turned


def test_test_images_are_dealt_in_file_order(four):
    data = rotated(*four, clients=12, per_client=8)
    assert data.test.sizes.tolist() == [3, 3, 4] * 4
    upright = (data.test.x[:10, 0] * 255).round().to(torch.uint8).numpy()
    assert (upright == four[2]).all()
    assert data.test.y.tolist() == four[3].tolist() * 4


def test_orders_of_clusters_differ(four):
    y = rotated(*four, clients=4, per_client=24).train.y.reshape(4, 24)
    assert len({tuple(row.tolist()) for row in y}) == 4


def test_labels_stay_with_their_images(four):
    data = rotated(*four, clients=4, per_client=24)
    label = {image.tobytes(): int(y) for image, y in zip(four[0], four[1], strict=True)}
    upright = (data.train.x[:24, 0] * 255).round().to(torch.uint8).numpy()
    assert [label[image.tobytes()] for image in upright] == data.train.y[:24].tolist()


def test_two_rotations_are_upside_down():
    x, y = images(4, 3, 6, 6)
    data = rotated(x, y, x, y, clients=2, per_client=4, rotations=2)
    assert data.features == (3, 6, 6)
    assert torch.equal(data.test.x[4:], data.test.x[:4].flip(-1, -2))


def test_flat(four):
    tall, flat = (rotated(*four, clients=4, per_client=5, flat=flat) for flat in (False, True))
    assert flat.features == (25,)
    assert torch.equal(tall.train.x.flatten(1), flat.train.x)


def test_inverted_is_one_minus(four):
    data = inverted(*four, clients=2, per_client=24)
    assert torch.allclose(data.test.x[10:], 1 - data.test.x[:10], atol=1e-6)
    assert data.truth.tolist() == [0, 1]


def test_disjoint_uses_each_image_once(four):
    data = inverted(*four, clients=4, per_client=6, disjoint=True)
    seen = (data.train.x[:, 0] * 255).round().to(torch.uint8).numpy()
    seen[12:] = 255 - seen[12:]
    assert sorted(image.tobytes() for image in seen) == sorted(image.tobytes() for image in four[0])
    assert data.test.y.tolist() == four[3].tolist()
    assert data.test.sizes.tolist() == [2, 3, 2, 3]


def test_complaints(four):
    x, y, x_test, y_test = four
    for call, complaint in (
        (lambda: rotated(*four, clients=5), "multiple of the 4 clusters"),
        (lambda: rotated(*four, clients=4, per_client=25), "takes 25 images of the 24"),
        (lambda: rotated(*four, clients=4, per_client=7, disjoint=True), "takes 28 images of the 24"),
        (lambda: rotated(*four, clients=3, per_client=1, rotations=3), "1, 2 or 4 ways"),
        (lambda: rotated(x[:, :4], y, x_test, y_test, clients=4, per_client=1), "4 x 5: only square"),
        (lambda: inverted(x / 255, y, x_test, y_test, clients=2, per_client=1), "Images are float64"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            call()


@pytest.mark.paper
@pytest.mark.skipif("CORYMB_DATA" not in os.environ, reason="needs MNIST under CORYMB_DATA")
def test_rotated_mnist_as_in_the_paper():
    data = load("mnist-rotated")
    assert len(data) == 1200
    assert data.sizes.unique().tolist() == [200]
    assert data.features == (784,)
    assert data.test.sizes.reshape(4, 300).sum(1).tolist() == [10_000] * 4
    by_class = data.train.y.reshape(4, 60_000)
    assert all(torch.bincount(row)[0] == 5923 for row in by_class)
    upright = data.test.x.reshape(4, 10_000, 28, 28)
    assert all(torch.equal(torch.rot90(upright[0], j, (1, 2)), upright[j]) for j in range(4))


@pytest.mark.paper
@pytest.mark.skipif("CORYMB_DATA" not in os.environ, reason="needs MNIST under CORYMB_DATA")
@pytest.mark.parametrize("name", ["mnist-inverted", "fashion-rotated"])
def test_the_other_downloads(name):
    data = load(name, seed=1)
    assert data.features == (784,)
    assert len(data.classes) == 10
