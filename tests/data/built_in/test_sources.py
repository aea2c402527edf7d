import hashlib
import os

import numpy as np
import pytest

from corymb.data import CIFAR10, FASHION_MNIST, FEMNIST, MNIST, NAMES, SHAKESPEARE, load
from tests.data.readers.test_idx import idx

ALL = [MNIST, FASHION_MNIST, CIFAR10, FEMNIST, SHAKESPEARE]
packed = pytest.mark.skipif("CORYMB_DATA" not in os.environ, reason="needs the packed data under CORYMB_DATA")


@pytest.mark.parametrize("known", ALL, ids=lambda one: one.name)
def test_public_homes(known):
    home = known.home
    assert all(mirror.startswith("http") and mirror.endswith("/") for mirror in home.mirrors)
    assert len(home.mirrors) >= 1 <= len(home.files)
    assert home.licence
    assert len(set(known.classes)) == len(known.classes) >= 10
    lengths = {"md5": 32, "sha256": 64}
    assert all(len(file.digest) in (0, lengths[file.algorithm]) for file in home.files)
    assert all(file.digest for file in home.files) or known is FEMNIST  # whose first download is pinned


def test_every_source_has_a_named_data_set():
    assert {named.source.name for named in NAMES.values() if named.source} == {known.name for known in ALL}


@pytest.mark.paper
@packed
@pytest.mark.parametrize("known", [MNIST, FASHION_MNIST], ids=lambda one: one.name)
def test_packed_arrays_are_the_published_ones(known):
    for array, file in zip(known.load(), known.home.files, strict=True):
        assert hashlib.sha256(idx(array)).hexdigest() == file.digest


@pytest.mark.paper
@packed
def test_cifar_is_whole():
    images = CIFAR10.load()
    digests = [hashlib.md5(x.tobytes(), usedforsecurity=False).hexdigest() for x in (images.x_train, images.x_test)]
    assert digests == ["11af95666bd6fd7846144e768325bf13", "f1aa22116df97725db0e47461c45a82b"]
    assert np.bincount(images.y_train).tolist() == [5000] * 10
    assert np.bincount(images.y_test).tolist() == [1000] * 10


@pytest.mark.paper
@packed
def test_named_data_sets_of_the_papers():
    cifar = load("cifar-rotated")
    assert (len(cifar), cifar.sizes.unique().tolist(), len(cifar.test.y)) == (200, [500], 20_000)
    labels = load("cifar-labels")
    assert (len(labels), labels.sizes.unique().tolist(), len(labels.test.y)) == (16, [4375], 14_000)
    writers = load("femnist")
    assert (len(writers), len(FEMNIST.load().names), len(writers.test.y)) == (201, 212, 3294)
    roles = load("shakespeare")
    assert (len(roles), len(roles.classes), roles.features) == (50, 80, (80,))
    assert int(roles.test.sizes.min()) > 0
