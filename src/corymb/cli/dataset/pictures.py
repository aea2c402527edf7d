"""Images of a data set drawn with characters, by true cluster and class if the clusters are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.core.pixels import as_numbers
from corymb.data import FederatedDataset
from corymb.data.schema import schema_of

PICTURES = 6
"""Images side by side."""
CLUSTERS = 8
"""At most this many clusters are shown."""
GAP = 2
"""Columns between two images."""


class Strip(NamedTuple):
    """Images to be drawn side by side."""

    title: str
    pictures: Tensor
    """(count, 1 or 3 channels, height, width), from 0 to 1."""
    captions: tuple[str, ...]


def strips_of(data: FederatedDataset) -> list[Strip]:
    """A strip of images for each true cluster, or of a few clients; empty if the examples are not images."""
    shape = _shape(data)
    if shape is None:
        return []
    chosen = _by_client(data) if data.truth is None else _by_cluster(data)
    return [
        Strip(title, as_numbers(data.train.x[rows]).reshape(-1, *shape), captions) for title, rows, captions in chosen
    ]


Chosen = tuple[str, Tensor, tuple[str, ...]]


def _by_client(data: FederatedDataset) -> list[Chosen]:
    places = torch.linspace(0, len(data) - 1, min(PICTURES, len(data))).long()
    return [("", data.train.offsets[:-1][places], tuple(data.names[place] for place in places.tolist()))]


def _by_cluster(data: FederatedDataset) -> list[Chosen]:
    """For each cluster, the first example of several of its classes, evenly spaced among them."""
    assert data.truth is not None
    y, cluster = data.train.y, data.truth.repeat_interleave(data.sizes)
    number = int(data.truth.max()) + 1
    chosen = []
    for j in range(min(number, CLUSTERS)):
        mine = (cluster == j).nonzero()[:, 0]
        if not len(mine):
            continue
        if data.task != "classification":
            rows, captions = mine[:PICTURES], ("",) * len(mine[:PICTURES])
        else:
            kinds = y[mine].unique()
            shown = kinds[torch.linspace(0, len(kinds) - 1, min(PICTURES, len(kinds))).long()]
            rows = torch.stack([mine[(y[mine] == kind).nonzero()[0, 0]] for kind in shown])
            captions = tuple(data.classes[kind] for kind in shown.tolist())
        clients = int((data.truth == j).sum())
        chosen.append((f"cluster {j}, {clients} client{'s' * (clients != 1)}", rows, captions))
    if number > CLUSTERS:
        title, rows, captions = chosen[-1]
        chosen[-1] = (f"{title} (and {number - CLUSTERS} more clusters)", rows, captions)
    return chosen


def _shape(data: FederatedDataset) -> tuple[int, ...] | None:
    """The shape of the images, or None; unnamed vectors in [0, 1] whose length is a square count as images."""
    schema = schema_of(data)
    if schema.codes or data.standardise or data.feature_names:
        return None
    side = round(data.features[0] ** 0.5)
    flat = len(data.features) == 1 and side**2 == data.features[0] and side >= 4
    first = as_numbers(data.train.x[data.train.offsets[:-1]])
    within = bool(first.min() >= 0) and bool(first.max() <= 1)
    if not within or not (schema.picture or flat):
        return None
    return (1, side, side) if flat else tuple(data.features)


def drawn(strip: Strip, width: int, *, colour: bool) -> Any:
    """Draw a strip in half-blocks, each character two pixels high, with as many images as fit the width."""
    from rich.text import Text

    text = Text(f"{strip.title}\n" if strip.title else "")
    pictures = _fitting(strip.pictures, width)
    count, _, height, wide = pictures.shape
    captions = "".join(f"{caption[:wide]:<{wide + GAP}}" for caption in strip.captions[:count])
    if captions.strip():
        text.append(f"{captions.rstrip()}\n")
    for row in range(0, height, 2):
        for picture in pictures:
            upper = _pixels(picture[:, row])
            lower = _pixels(picture[:, row + 1]) if row + 1 < height else [(0.0, 0.0, 0.0)] * len(upper)
            for top, bottom in zip(upper, lower, strict=True):
                text.append(*_half_block(top, bottom, colour=colour))
            text.append(" " * GAP)
        text.append("\n")
    return text


def _fitting(pictures: Tensor, width: int) -> Tensor:
    """As many images as fit the width side by side; images wider than that are downsampled."""
    step = -(-pictures.shape[3] // max(1, width - GAP))
    smaller = pictures[:, :, ::step, ::step]
    return smaller[: max(1, width // (smaller.shape[3] + GAP))]


Pixel = Sequence[float]


def _pixels(row: Tensor) -> list[Pixel]:
    """The RGB values of a row of pixels; any number of channels but three is averaged to grey."""
    seen = row if len(row) == 3 else row.mean(0, keepdim=True).expand(3, -1)
    pixels: list[Pixel] = seen.T.tolist()
    return pixels


def _half_block(top: Pixel, bottom: Pixel, *, colour: bool) -> tuple[str, str]:
    if not colour:
        return " ▄▀█"[2 * (sum(top) > 1.5) + (sum(bottom) > 1.5)], ""
    above, below = (",".join(str(round(255 * value)) for value in pixel) for pixel in (top, bottom))
    return "▀", f"rgb({above}) on rgb({below})"
