"""Images of many writers, a client for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from corymb.core.engine import in_order
from corymb.data.built_in.views import check_whole
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array
from corymb.data.ragged import Ragged, by_client
from corymb.data.split import held_out
from corymb.settings import require


class Writers(NamedTuple):
    """Images with their classes, and who made each."""

    images: Array
    """uint8 [N, H, W] or [N, C, H, W]."""
    labels: Array
    writer: Array
    """Each image's writer, as a position in `names`."""
    names: tuple[str, ...]
    test: Array | None = None
    """Which images are held out to test on; None if that is left to `by_writer`."""
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
    """A client for each writer. Who writes like whom is not known: there are no true clusters.

    Arguments:
        writers: Images, labels and who wrote each, such as FEMNIST's.
        clients: How many writers, drawn by `seed`; if not given, all who have enough images.
        least: Images that a writer must have.
        test: The share of each writer's images to test on; if not given, those that `writers` says, or a tenth.
        flat: Make vectors of images.
    """
    check_whole("clients", 1 if clients is None else clients)
    x, y, writer = writers.images, writers.labels, np.asarray(writers.writer).astype(np.int64)
    _check(writers)
    mask = writers.test
    if test is not None or mask is None:
        share = 0.1 if test is None else test
        mask = held_out(torch.from_numpy(writer), writers.names, share, seed).numpy()
    count, kept = (np.bincount(writer[rows], minlength=len(writers.names)) for rows in (slice(None), ~mask))
    enough = np.flatnonzero((count >= least) & (kept > 0))
    wanted = len(enough) if clients is None else clients
    require(
        0 < wanted <= len(enough),
        f"clients={clients}, least={least}: {len(enough)} of the {len(writers.names)} writers have so many images; ask "
        "for fewer clients or fewer images.",
    )
    drawn = np.random.default_rng(seed).permutation(enough)[:wanted]
    names = [writers.names[writer] for writer in drawn]
    order = in_order(names).numpy()
    place = np.full(len(writers.names), -1)
    place[drawn[order]] = np.arange(wanted)

    def part(rows: Array) -> Ragged:
        chosen = np.flatnonzero(rows & (place[writer] >= 0))
        images = torch.from_numpy(np.ascontiguousarray(x[chosen]))
        images = images.flatten(1) if flat else images.reshape(len(chosen), *_picture(x))
        labels = torch.from_numpy(y[chosen].astype(np.int64))
        return by_client(images, labels, torch.from_numpy(place[writer[chosen]]), wanted)

    return FederatedDataset(
        name=name,
        names=tuple(names[i] for i in order),
        train=part(~mask),
        test=part(mask),
        task="classification",
        classes=tuple(classes) or tuple(str(label) for label in range(int(y.max()) + 1)),
        notes=writers.notes,
    )


def _picture(x: Array) -> tuple[int, ...]:
    return (1, *x.shape[1:]) if x.ndim == 3 else tuple(x.shape[1:])


def _check(writers: Writers) -> None:
    x, y, writer, names, test, _ = writers
    right = x.dtype == np.uint8 and x.ndim in (3, 4) and y.shape == writer.shape == x.shape[:1]
    require(
        right and (test is None or (test.dtype == np.bool_ and test.shape == y.shape)),
        f"Images are {x.dtype} {list(x.shape)} with labels {list(y.shape)} and writers {list(writer.shape)}: wanted "
        "uint8 [N, H, W] or [N, C, H, W], and one label and one writer for each.",
    )
    inside = len(writer) > 0 and int(writer.min()) >= 0 and int(writer.max()) < len(names)
    require(inside, f"Writers are positions in the {len(names)} names: one is outside, or there are no images.")
