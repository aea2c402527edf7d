import dataclasses
import os

import numpy as np
import pytest
import torch

from corymb.data import inverted, label_sets, load, rotated
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
        ours = data.train.x[24 * j : 24 * (j + 1), 0].numpy()
        assert {image.tobytes() for image in ours} == turned


def test_test_images_are_dealt_in_file_order(four):
    data = rotated(*four, clients=12, per_client=8)
    assert data.test.sizes.tolist() == [3, 3, 4] * 4
    upright = data.test.x[:10, 0].numpy()
    assert (upright == four[2]).all()
    assert data.test.y.tolist() == four[3].tolist() * 4


def test_orders_of_clusters_differ(four):
    y = rotated(*four, clients=4, per_client=24).train.y.reshape(4, 24)
    assert len({tuple(row.tolist()) for row in y}) == 4


def test_labels_stay_with_their_images(four):
    data = rotated(*four, clients=4, per_client=24)
    label = {image.tobytes(): int(y) for image, y in zip(four[0], four[1], strict=True)}
    upright = data.train.x[:24, 0].numpy()
    assert [label[image.tobytes()] for image in upright] == data.train.y[:24].tolist()


def test_two_rotations_are_upside_down():
    x, y = images(4, 3, 6, 6)
    data = rotated(x, y, x, y, clients=2, per_client=4, rotations=2)
    assert data.features == (3, 6, 6)
    assert torch.equal(data.test.x[4:], data.test.x[:4].flip(-1, -2))


def test_pictures_stay_bytes_and_count_as_the_numbers_they_stand_for(four):
    data = rotated(*four, clients=4, per_client=5)
    divided = dataclasses.replace(
        data, **{part: rows._replace(x=rows.x / 255) for part, rows in (("train", data.train), ("test", data.test))}
    )
    assert data.train.x.dtype == torch.uint8
    assert divided.train.x.dtype == torch.float32
    assert data.fingerprint() == divided.fingerprint()
    assert not data.schema["codes"]


def test_flat(four):
    tall, flat = (rotated(*four, clients=4, per_client=5, flat=flat) for flat in (False, True))
    assert flat.features == (25,)
    assert torch.equal(tall.train.x.flatten(1), flat.train.x)


def test_inverted_is_one_minus(four):
    data = inverted(*four, clients=2, per_client=24)
    assert torch.equal(data.test.x[10:], 255 - data.test.x[:10])
    assert data.truth.tolist() == [0, 1]


def test_disjoint_uses_each_image_once(four):
    data = inverted(*four, clients=4, per_client=6, disjoint=True)
    seen = data.train.x[:, 0].numpy()
    seen[12:] = 255 - seen[12:]
    assert sorted(image.tobytes() for image in seen) == sorted(image.tobytes() for image in four[0])
    assert data.test.y.tolist() == four[3].tolist()
    assert data.test.sizes.tolist() == [2, 3, 2, 3]


def test_label_sets(four):
    sets = ((0, 1, 2, 3), (3, 4, 5, 6, 7, 8, 9))
    data = label_sets(*four, sets=sets, clients=4, seed=0)
    x, y, _, y_test = four
    least = min(int(np.isin(y, chosen).sum()) for chosen in sets)
    assert data.truth.tolist() == [0, 0, 1, 1]
    assert data.sizes.tolist() == [least // 2] * 4
    for client, (labels, held) in enumerate((data.train.of(i)[1], data.test.of(i)[1]) for i in range(4)):
        assert {*labels.tolist(), *held.tolist()} <= set(sets[client // 2])
    known = {image.tobytes(): int(label) for image, label in zip(x, y, strict=True)}
    assert [known[image.tobytes()] for image in data.train.x.numpy()] == data.train.y.tolist()
    assert int(data.test.sizes[:2].sum()) == int(np.isin(y_test, sets[0]).sum())


def test_classes_without_examples_are_reported(four):
    (note,) = label_sets(*four, sets=(range(100), range(10)), clients=2, per_client=1).notes
    assert "classes without a training image: " in note
    assert note.endswith(", 98, 99")
    present = np.unique(four[1]).tolist()
    assert label_sets(*four, sets=(present, present), clients=2, per_client=1).notes == ()


def test_complaints(four):
    x, y, x_test, y_test = four
    for call, complaint in (
        (lambda: rotated(*four, clients=5), "multiple of the 4 clusters"),
        (lambda: rotated(*four, clients=4, per_client=25), "takes 25 images of the 24"),
        (lambda: rotated(*four, clients=4, per_client=7, disjoint=True), "takes 28 images of the 24"),
        (lambda: rotated(*four, clients=3, per_client=1, rotations=3), "wanted 1, 2 or 4"),
        (lambda: rotated(x[:, :4], y, x_test, y_test, clients=4, per_client=1), "4 x 5: only square"),
        (lambda: rotated(*four, clients=0), "clients=0: wanted a whole number, 1 or more"),
        (lambda: rotated(*four, clients=2.5), "clients=2.5: wanted a whole number"),
        (lambda: rotated(*four, clients=4, per_client=0), "per_client=0: wanted a whole number, 1 or more"),
        (lambda: label_sets(*four, sets=((0,), ())), "some classes for every cluster"),
        (lambda: label_sets(*four, sets=[0, 1]), r"sets=\[0, 1\]: wanted a list of classes, as numbers"),
        (lambda: label_sets(*four, sets=["01", "23"]), "wanted a list of classes, as numbers"),
        (lambda: label_sets(*four, sets=((0, 1), (2,)), clients=10**6), "per_client=1: that takes 500000 images"),
        (lambda: label_sets(*four, clients=2, per_client=24), "images of the .* in the smallest set"),
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
