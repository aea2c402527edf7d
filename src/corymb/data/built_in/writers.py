"""Images of many writers, with a client for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from corymb.core.engine import in_order
from corymb.data.built_in.labelled import as_images, as_labels, require_one_each, whole
from corymb.data.built_in.views import check_whole
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array, as_array
from corymb.data.ragged import Ragged, by_client
from corymb.data.split import held_out
from corymb.settings import require


class Writers(NamedTuple):
    """Images with their classes and writers."""

    images: Array
    """uint8 [N, H, W], [N, C, H, W] or [N, H, W, C]."""
    labels: Array
    """Integers from 0, or names."""
    writer: Array
    """Each image's writer, as an index of `names`."""
    names: tuple[str, ...]
    test: Array | None = None
    """Which images are test images; None if `by_writer` chooses them."""
    notes: tuple[str, ...] = ()


def by_writer(
    writers: Writers,
    *,
    clients: int | None = None,
    least: int = 1,
    test: float | None = None,
    seed: int = 0,
    flat: bool = False,
    classes: Sequence[str] = (),
    name: str = "writers",
) -> FederatedDataset:
    """Make a client of each writer; there are no true clusters.

    Arguments:
        writers: Images with their labels and writers, such as FEMNIST's.
        clients: The number of writers, drawn by `seed`; by default all with enough images.
        least: The fewest images of a writer.
        test: The share of each writer's images to hold out for testing; by default as marked in `writers`, or a tenth.
        flat: Flatten images to vectors.
    """
    check_whole("clients", 1 if clients is None else clients)
    x, y, writer, names, mask, named = _read(writers, classes)
    if test is not None or mask is None:
        share = 0.1 if test is None else test
        mask = held_out(torch.from_numpy(writer), names, share, seed).numpy()
    count, kept = (np.bincount(writer[rows], minlength=len(names)) for rows in (slice(None), ~mask))
    enough = np.flatnonzero((count >= least) & (kept > 0))
    wanted = len(enough) if clients is None else clients
    require(
        0 < wanted <= len(enough),
        f"clients={clients}, least={least}: {len(enough)} of the {len(names)} writers have so many images; ask "
        "for fewer clients or fewer images.",
    )
    drawn = np.random.default_rng(seed).permutation(enough)[:wanted]
    chosen_names = [names[place] for place in drawn]
    order = in_order(chosen_names).numpy()
    place = np.full(len(names), -1)
    place[drawn[order]] = np.arange(wanted)

    def part(rows: Array) -> Ragged:
        chosen = np.flatnonzero(rows & (place[writer] >= 0))
        images = torch.from_numpy(np.ascontiguousarray(x[chosen]))
        images = images.flatten(1) if flat else images
        return by_client(images, torch.from_numpy(y[chosen]), torch.from_numpy(place[writer[chosen]]), wanted)

    return FederatedDataset(
        name=name,
        names=tuple(chosen_names[i] for i in order),
        train=part(~mask),
        test=part(mask),
        task="classification",
        classes=named,
        notes=writers.notes,
    )


def _read(
    writers: Writers, classes: Sequence[str]
) -> tuple[Array, Array, Array, tuple[str, ...], Array | None, tuple[str, ...]]:
    """Validated images, labels, writers, writers' names, test mask and classes."""
    x, writer, names = as_images(writers.images), whole("Writers", writers.writer), writers.names
    named, (y,) = as_labels(classes, writers.labels)
    require_one_each(len(x), labels=y, writers=writer)
    inside = len(writer) > 0 and int(writer.max()) < len(names)
    require(inside, f"Writers are positions in the {len(names)} names: one is outside, or there are no images.")
    test = None if writers.test is None else as_array(writers.test)
    right = test is None or (test.dtype == np.bool_ and test.shape == y.shape)
    require(right, f"`test` of the {len(x)} images is not true or false for each: give one for each, or None.")
    return x, y, writer, names, test, named
