"""Examples sampled from the clusters' generative models, so that a report never shows a client's own example."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from corymb.report.facts import Numbers, of_examples

if TYPE_CHECKING:
    from corymb.runs.run import Run

MOST_CLUSTERS = 12
"""At most this many clusters are sampled, the largest first."""
MOST_DIRECTIONS = 20
"""Principal components kept before the plane of a map is fitted."""
RIDGE = 0.01
"""Ridge added to the within-cluster covariance, as a fraction of its mean variance: it may be singular."""


def drawn_clusters(run: Run) -> list[int]:
    """The clusters to sample from, in order: the largest non-empty ones; none without the run's model."""
    if not of_examples(run) or run.objective is None:
        return []
    largest = sorted((label for label, size in run.sizes.items() if size), key=lambda label: -run.sizes[label])
    return sorted(largest[:MOST_CLUSTERS])


def drawn_examples(run: Run, n: int) -> dict[int, Numbers]:
    """n samples of each cluster (n d), in the units of the data; empty if any sample is not finite."""
    found = {label: np.asarray(run.sample(label, n), dtype=np.float64).reshape(n, -1) for label in drawn_clusters(run)}
    return found if all(np.isfinite(rows).all() for rows in found.values()) else {}


def in_plane(groups: dict[int, Numbers], *, scale: bool) -> dict[int, Numbers]:
    """Project groups of vectors onto the plane (m 2) that separates them best, by Fisher's linear discriminants.

    With `scale`, each feature is first divided by its standard deviation over all groups. Two features are returned
    unchanged. A single feature gets the group's index as its second coordinate.
    """
    everything = np.concatenate(list(groups.values()))
    if everything.shape[1] == 2:
        return groups
    if everything.shape[1] == 1:
        levels = {label: -place for place, label in enumerate(groups)}
        return {label: np.column_stack([rows, np.full(len(rows), levels[label])]) for label, rows in groups.items()}
    spread = everything.std(0)
    centred = (everything - everything.mean(0)) / (np.where(spread > 0, spread, 1) if scale else 1)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    reduced = centred @ axes[:MOST_DIRECTIONS].T
    ends = np.cumsum([len(rows) for rows in groups.values()])[:-1]
    parts = np.split(reduced, ends)
    means = np.stack([part.mean(0) for part in parts])
    within = np.mean([np.cov(part.T) for part in parts], 0)
    within += RIDGE * np.trace(within) / len(within) * np.eye(len(within))
    whiten = np.linalg.inv(np.linalg.cholesky(within)).T
    _, _, directions = np.linalg.svd((means - means.mean(0)) @ whiten)  # Fisher's discriminants
    plane = directions[:2] * np.sign(directions[np.arange(2), np.abs(directions[:2]).argmax(1)])[:, None]
    flat = reduced @ whiten @ plane.T
    return dict(zip(groups, np.split(flat, ends), strict=True))


def mosaic(groups: dict[int, Numbers], shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Tile images with values in [0, 1] into one RGB image (height width 3), a row of tiles for each group."""
    channels, height, width = shape
    gap = 1
    columns = len(next(iter(groups.values())))
    whole = np.full((len(groups) * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for row, pictures in enumerate(groups.values()):
        for column, picture in enumerate(pictures.reshape(-1, channels, height, width)):
            shown = picture[:3] if channels >= 3 else np.repeat(picture[:1], 3, axis=0)
            top, left = row * (height + gap), column * (width + gap)
            pixels = (255 * shown.clip(0, 1)).round().astype(np.uint8)
            whole[top : top + height, left : left + width] = pixels.transpose(1, 2, 0)
    return whole


def as_png_bytes(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an RGB image (height width 3) as PNG with the standard library alone."""
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
