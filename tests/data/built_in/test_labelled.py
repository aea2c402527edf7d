"""Images and labels in all supported forms: every partitioner accepts the same ones."""

import numpy as np
import pytest
import torch

from corymb.data import Writers, by_writer, concept_shift, dirichlet, inverted, label_sets, quantity_skew, rotated
from corymb.settings import InvalidInput

ROWS = 24
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (ROWS, 3, 6, 6), dtype=np.uint8)
LABELS = np.arange(ROWS) % 4


def by_two_writers(x, y, x_test, y_test, classes=()):
    return by_writer(Writers(x, y, np.arange(len(x)) % 2, ("a", "b")), classes=classes)


def dealt_by(partition, **options):
    def deal(*images, classes=()):
        return partition(*images, **options, classes=classes)

    return deal


WAYS = {
    "rotated": dealt_by(rotated, clients=4, per_client=6),
    "inverted": dealt_by(inverted, clients=4, per_client=6),
    "label_sets": dealt_by(label_sets, sets=[[0, 1], [2, 3]], clients=4),
    "concept_shift": dealt_by(concept_shift, clusters=2, clients=4, per_client=6),
    "dirichlet": dealt_by(dirichlet, clients=4),
    "quantity_skew": dealt_by(quantity_skew, clients=4),
    "by_writer": by_two_writers,
}
every_way = pytest.mark.parametrize("deal", WAYS.values(), ids=WAYS)


def made(deal, x=IMAGES, y=LABELS, classes=()):
    return deal(x, y, x, y, classes=classes)


@every_way
def test_channels_may_come_last(deal):
    first, last = made(deal), made(deal, np.moveaxis(IMAGES, 1, 3))
    assert last.features == (3, 6, 6)
    assert last.fingerprint() == first.fingerprint()


@every_way
def test_torch_tensors_and_lists_are_taken(deal):
    wanted = made(deal).fingerprint()
    assert made(deal, torch.from_numpy(IMAGES), torch.from_numpy(LABELS)).fingerprint() == wanted
    assert made(deal, y=LABELS.tolist()).fingerprint() == wanted
    assert made(deal, y=LABELS.astype(float)).fingerprint() == wanted


@pytest.mark.parametrize("name", ["rotated", "inverted", "label_sets", "concept_shift", "by_writer"])
def test_whole_numbers_of_other_types_are_pixels_too(name):
    wanted = made(WAYS[name]).fingerprint()
    assert made(WAYS[name], IMAGES.astype(np.int32)).fingerprint() == wanted
    assert made(WAYS[name], IMAGES.tolist()).fingerprint() == wanted
    for x in (IMAGES.astype(int) - 1, IMAGES.astype(int) * 2, IMAGES / 255, torch.zeros(ROWS, 6, 6), IMAGES[0, 0]):
        with pytest.raises(InvalidInput, match="wanted uint8, 0 to 255, as"):
            made(WAYS[name], x)


@every_way
def test_names_are_labels_if_the_classes_are_known(deal):
    classes = ("ant", "bee", "cat", "dog")
    texts = [classes[label] for label in LABELS]
    assert made(deal, y=texts).classes == classes
    assert made(deal, y=texts).fingerprint() == made(deal, classes=classes).fingerprint()
    assert made(deal, y=np.array(texts, dtype=object), classes=classes[::-1]).classes == classes[::-1]
    with pytest.raises(InvalidInput, match="A label is 'cat', which is not one of the 2 classes: ant, bee"):
        made(deal, y=texts, classes=classes[:2])


@every_way
@pytest.mark.parametrize(
    ("y", "complaint"),
    [
        (LABELS + 0.5, "Labels: row 0 is 0.5: wanted one whole number from 0 on for each"),
        (LABELS - 1, "Labels: row 0 is -1"),
        (np.where(LABELS == 2, np.nan, LABELS), "Labels: row 2 is nan"),
        (LABELS[1:], "There are 24 examples and 23 labels: give one for each"),
        (LABELS[:, None], r"Labels have the shape \[24, 1\]"),
        ([None] * ROWS, "wanted one whole number or one name for each"),
        ([[0], [1, 2]] * 12, "Labels do not form an array"),
    ],
)
def test_other_labels_are_refused(deal, y, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        made(deal, y=y)


def test_a_label_beyond_the_classes():
    with pytest.raises(InvalidInput, match="A label is 3: wanted 0 to 1, a position among the 2 classes"):
        made(WAYS["inverted"], classes=("no", "yes"))


def test_test_images_of_another_shape():
    with pytest.raises(InvalidInput, match=r"Test examples have the shape \[3, 4, 4\], training examples \[3, 6, 6\]"):
        WAYS["inverted"](IMAGES, LABELS, IMAGES[:, :, :4, :4], LABELS)
