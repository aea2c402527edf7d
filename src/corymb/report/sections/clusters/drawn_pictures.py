"""What each cluster looks like: images sampled from its model, or typical values of its features."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from corymb.report.content import Dot, Figure, Section, Table
from corymb.report.drawn import as_png_bytes, drawn_examples, mosaic
from corymb.report.figures.drawing import cluster_name, colour
from corymb.runs.history import readable

if TYPE_CHECKING:
    from corymb.runs.run import Run

PICTURES = 8
"""Images sampled from each cluster."""
EXAMPLES = 400
"""Examples sampled from each cluster for the medians."""
FEATURES = 6
"""At most this many features in the table: those in which the clusters differ most."""


def drawn_pictures(runs: Sequence[Run]) -> Figure | Table | None:
    """A row of images, or of typical feature values, for each cluster."""
    run = runs[0]
    groups = drawn_examples(run, PICTURES if run.schema.picture else EXAMPLES)
    if not groups:
        return None
    return _pictures(run, groups) if run.schema.picture else _values(run, groups)


def _pictures(run: Run, groups: dict[int, np.ndarray]) -> Figure:
    channels, height, width = run.schema.features
    pixels = mosaic(groups, (channels, height, width))
    source = "data:image/png;base64," + base64.b64encode(as_png_bytes(pixels)).decode()
    tall, wide = pixels.shape[:2]
    layout = {
        "height": 70 + 44 * len(groups),
        "images": [
            {"source": source, "xref": "x", "yref": "y", "x": 0, "y": 0, "sizex": wide, "sizey": tall,
             "sizing": "stretch", "layer": "below"}
        ],
        "xaxis": {"visible": False, "range": [0, wide], "constrain": "domain"},
        "yaxis": {"range": [tall, 0], "scaleanchor": "x", "constrain": "domain", "showgrid": False, "ticks": "",
                  "tickvals": [(place + 0.5) * (height + 1) - 0.5 for place in range(len(groups))],
                  "ticktext": [cluster_name(label) for label in groups]},
        "margin": {"l": 84, "r": 14, "b": 14},
    }  # fmt: skip
    corners = {"type": "scatter", "mode": "markers", "x": [0, wide], "y": [0, tall], "hoverinfo": "skip",
               "marker": {"opacity": 0, "color": [colour(label) for label in list(groups)[:2]]}}  # fmt: skip
    caption = f"{PICTURES} images sampled from each cluster's model. No client's image is shown."
    return Figure("drawn", "What each cluster looks like", caption, [corners], layout)


def _values(run: Run, groups: dict[int, np.ndarray]) -> Table:
    typical = np.stack([np.median(rows, 0) for rows in groups.values()])  # c d
    within = np.mean([rows.std(0) for rows in groups.values()], 0)
    separation = typical.std(0) / np.where(within > 0, within, 1)
    chosen = sorted(np.argsort(-separation, kind="stable")[:FEATURES].tolist())
    names = run.schema.feature_names
    named = len(names) == typical.shape[1] and "cluster" not in names  # the first column's name
    titles = [names[place] if named else f"feature {place}" for place in chosen]
    rows: list[dict[str, str | Dot]] = [
        {
            "cluster": Dot(label),
            **{title: readable(float(row[place]), 3) for title, place in zip(titles, chosen, strict=True)},
        }
        for label, row in zip(groups, typical, strict=True)
    ]
    subset = f", {len(chosen)} of {typical.shape[1]} features" if len(chosen) < typical.shape[1] else ""
    return Table("drawn", f"Typical feature values of each cluster (medians){subset}", rows, wide=len(chosen) > 4)


SECTION = Section(order=27, show=drawn_pictures)
