"""All figures of a report, in the order in which they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corymb.report.figures.clusters import client_map, distances, heat_map, movement, silhouettes, sizes
from corymb.report.figures.course import course, quality, scores_by_cluster, stability, sureness, traffic, training
from corymb.report.figures.drawing import Figure
from corymb.runs.run import Run


def figures(runs: Sequence[Run]) -> list[Figure]:
    """All figures that can be drawn of a run (the first), beside others."""
    run = runs[0]
    makers: tuple[Callable[[], Figure | None], ...] = (
        lambda: sizes(run),
        lambda: quality(runs),
        lambda: movement(run),
        lambda: client_map(run),
        lambda: heat_map(run),
        lambda: distances(run),
        lambda: silhouettes(run),
        lambda: scores_by_cluster(run),
        lambda: course(run),
        lambda: training(run),
        lambda: stability(run),
        lambda: sureness(run),
        lambda: traffic(run),
    )
    made = (make() for make in makers)
    return [figure for figure in made if figure is not None]
