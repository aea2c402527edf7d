import numpy as np
import pytest
import torch

from corymb.data import Writers, by_writer
from corymb.settings import InvalidInput

COUNTS = [12, 1, 5, 8]
NAMES = ("w10", "w2", "w1", "w3")


@pytest.fixture
def writers():
    rng = np.random.default_rng(0)
    writer = rng.permutation(np.repeat(np.arange(4), COUNTS))
    images = rng.integers(0, 256, (len(writer), 3, 3), dtype=np.uint8)
    return Writers(images, rng.integers(0, 4, len(writer)), writer, NAMES, rng.random(len(writer)) < 0.2)


def rows(writers, name, test):
    mine = (writers.writer == NAMES.index(name)) & (writers.test == test)
    return writers.images[mine]


def test_a_client_for_each_writer_in_the_order_of_names(writers):
    data = by_writer(writers, least=5)
    assert data.names == ("w1", "w3", "w10")
    assert data.truth is None
    for client, name in enumerate(data.names):
        assert np.array_equal(data.train.of(client)[0][:, 0].numpy(), rows(writers, name, False))
        assert np.array_equal(data.test.of(client)[0][:, 0].numpy(), rows(writers, name, True))
    assert data.train.x.dtype == torch.uint8
    assert by_writer(writers, least=5, flat=True).features == (9,)


def test_so_many_by_seed(writers):
    drawn = {by_writer(writers, least=5, clients=2, seed=seed).names for seed in range(20)}
    assert drawn == {("w1", "w3"), ("w1", "w10"), ("w3", "w10")}
    assert by_writer(writers, clients=2, seed=3).names == by_writer(writers, clients=2, seed=3).names


def test_a_share_where_nothing_is_held_out(writers):
    data = by_writer(writers._replace(test=None), least=5)
    assert data.test.sizes.tolist() == [1, 1, 1]
    assert by_writer(writers, least=5, test=0.5).test.sizes.tolist() == [3, 4, 6]


def test_a_writer_with_nothing_to_train_on_is_no_client(writers):
    only_tested = writers._replace(test=writers.writer == 0)
    assert "w10" not in by_writer(only_tested).names


def test_complaints(writers):
    for change, options, complaint in (
        ({}, {"clients": 4, "least": 5}, "3 of the 4 writers have so many images"),
        ({}, {"least": 100}, "0 of the 4 writers"),
        ({}, {"clients": 0}, "clients=0: wanted a whole number"),
        ({}, {"clients": 2.5}, "clients=2.5: wanted a whole number"),
        ({"writer": writers.writer + 1}, {}, "one is outside"),
        ({"images": writers.images / 255}, {}, "Images are float64"),
        ({"labels": writers.labels[1:]}, {}, "26 examples and 25 labels: give one for each"),
        ({"writer": writers.writer[1:]}, {}, "26 examples and 25 writers"),
        ({"writer": writers.writer + 0.5}, {}, "Writers: row 0 is"),
        ({"test": writers.writer}, {}, "not true or false for each"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            by_writer(writers._replace(**change), **options)
