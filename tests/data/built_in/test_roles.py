import pytest
import torch

from corymb.data import Roles, by_role
from corymb.data.built_in.roles import LENGTH, VOCABULARY
from corymb.settings import InvalidInput


def text(length, start=0):
    letters = "the quick brown fox jumps, over the lazy dog. "
    return "".join(letters[(start + i) % len(letters)] for i in range(length))


ROLES = Roles({"play/B": text(1000), "play/A": text(500, 7), "play/C": text(90, 3), "play/D": text(600, 5)})


def decoded(codes):
    return "".join(VOCABULARY[code] for code in codes.tolist())


def test_windows_and_what_follows_them():
    data = by_role(ROLES, clients=None, least=500)
    assert data.names == ("play/A", "play/B", "play/D")
    assert data.features == (LENGTH,)
    assert data.schema["codes"]
    assert len(data.classes) == len(VOCABULARY) == 80
    x, y = data.train.of(1)
    whole = ROLES.texts["play/B"]
    assert len(x) == 800 - LENGTH
    for i in (0, 1, 500, len(x) - 1):
        assert decoded(x[i]) == whole[i : i + LENGTH]
        assert data.classes[y[i]] in (whole[i + LENGTH], "space")


def test_the_split_is_in_time_and_nothing_reaches_over_it():
    data = by_role(ROLES, clients=None, least=1000)
    held, _ = data.test.of(0)
    assert len(held) == 200 - LENGTH
    assert decoded(held[0]) == ROLES.texts["play/B"][800 : 800 + LENGTH]
    assert by_role(ROLES, clients=None, least=1000, test=0.5).sizes.tolist() == [500 - LENGTH]
    every = by_role(ROLES, clients=None, least=1000, stride=7)
    assert torch.equal(every.train.x, data.train.x[::7])


def test_a_split_that_comes_with_the_texts_is_taken():
    roles = Roles({"a": text(300)}, {"a": text(150, 300)})
    data = by_role(roles, clients=1, least=1)
    assert (data.sizes.tolist(), data.test.sizes.tolist()) == ([220], [70])
    assert decoded(data.test.x[0]) == roles.test["a"][:LENGTH]
    assert by_role(roles, clients=1, least=1, test=0.1).sizes.tolist() == [450 - 45 - LENGTH]


def test_so_many_by_seed():
    drawn = {by_role(ROLES, clients=2, least=500, seed=seed).names for seed in range(20)}
    assert len(drawn) == 3


def test_unknown_characters_are_read_as_spaces_and_reported():
    data = by_role(Roles({"a": "€" + text(300)}), clients=1, least=1)
    assert data.classes[data.train.x[0, 0]] == "space"
    assert data.notes == ("1 characters that are not in the vocabulary are read as spaces",)


def test_complaints():
    for options, complaint in (
        ({"clients": 4, "least": 500}, "3 of the 4 roles"),
        ({"clients": 4, "least": 1}, "3 of the 4 roles .* more than 80 of them to train on"),
        ({"test": 1.0}, "test=1.0: wanted a share"),
        ({"stride": 0}, "stride=0: wanted a whole number"),
        ({"stride": 1.5}, "stride=1.5: wanted a whole number"),
        ({"clients": 2.5}, "clients=2.5: wanted a whole number"),
        ({"least": 500, "clients": 1, "vocabulary": "abc"}, "has no space"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            by_role(ROLES, **options)
