"""The main figures of a report as one PNG image."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from corymb.report.drawn import drawn_examples, in_plane, mosaic
from corymb.report.facts import final_losses, kept_rounds, moments, moved_examples, of_examples, positions
from corymb.report.figures.drawing import NO_CLUSTER, TIMES, cluster_name, colour, is_near, thinned
from corymb.report.figures.river import BAR, river
from corymb.report.scores import score_of, trivial_of
from corymb.report.words import seeks_clusters, title_of, titles_of, verdict
from corymb.runs.history import noted_loss
from corymb.settings import InvalidInput

if TYPE_CHECKING:
    from corymb.runs.run import Run

ACCENT, QUIET = "#0b63c5", "#5c6470"
MOST_ROWS = 16
"""A panel has room for this many rows of text of the usual size, and for a legend of as many clusters."""
NO_CLUSTERS = "no clusters are known"
NO_LOSSES = "the losses of several models at each client are not known"
MARKERS = ("o", "D", "s", "^", "X", "*", "p", "P", "h", "v")


def as_png(runs: Sequence[Run]) -> bytes:
    """Draw six panels: sizes, movement, map, losses, churn and quality, or their counterparts for example clusters."""
    plain_text = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "text.parse_math": False}
    pyplot, run = _pyplot(), runs[0]
    with pyplot.rc_context(plain_text):
        figure, panels = pyplot.subplots(2, 3, figsize=(13, 7.6), layout="constrained")
        drawn = (_sizes, _drawn_map, _drawn_pictures, _moved, _course)
        draw = drawn if of_examples(run) else (_sizes, _movement, _map, _losses, _churn)
        for panel, part in zip(panels.flat, draw, strict=False):
            part(panel, run)
        _quality(panels.flat[5], runs)
        figure.suptitle(f"{title_of(run)} on {run.config['data']}\n{verdict(runs)[0]}", x=0.01, ha="left")
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=150)
        pyplot.close(figure)
    return out.getvalue()


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise InvalidInput("A PNG report needs matplotlib: pip install 'corymb[report]'.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _empty(panel: Any, title: str, why: str) -> None:
    panel.set_title(title, loc="left")
    panel.text(0.5, 0.5, why, ha="center", va="center", color=QUIET, transform=panel.transAxes)
    panel.set_axis_off()


def _sizes(panel: Any, run: Run) -> None:
    labels, title = list(run.sizes), f"{'Examples' if of_examples(run) else 'Clients'} in each cluster"
    if run.clusters < 1 or not seeks_clusters(run):
        return _empty(panel, title, NO_CLUSTERS)
    bars = panel.barh(range(len(labels)), list(run.sizes.values()), color=[*map(colour, labels)])
    panel.bar_label(bars, labels=[f"{size:,}" for size in run.sizes.values()], padding=3, fontsize=_small(len(labels)))
    panel.set_yticks(range(len(labels)), [cluster_name(label) for label in labels], fontsize=_small(len(labels)))
    panel.invert_yaxis()
    panel.set_title(title, loc="left")
    return None


def _small(rows: int) -> float:
    """The size of the text beside so many rows of a panel, in points."""
    return min(9.0, 9 * MOST_ROWS / rows)


def _drawn_map(panel: Any, run: Run) -> None:
    groups = drawn_examples(run, 80)
    if not groups:
        return _empty(panel, "Map of clusters", "the run's model is not available")
    for label, points in in_plane(groups, scale=not run.schema.picture).items():
        marker = MARKERS[label % len(MARKERS)]
        panel.scatter(*points.T, color=colour(label), marker=marker, s=12, alpha=0.6, label=cluster_name(label))
    panel.set_xticks([])
    panel.set_yticks([])
    panel.legend(frameon=False, fontsize=7)
    panel.set_title("Examples sampled from each cluster's model", loc="left")
    return None


def _drawn_pictures(panel: Any, run: Run) -> None:
    groups = drawn_examples(run, 8) if run.schema.picture else {}
    if not groups:
        return _empty(panel, "What each cluster looks like", "the examples are not images")
    channels, height, width = run.schema.features
    panel.imshow(mosaic(groups, (channels, height, width)), interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks([(place + 0.5) * (height + 1) for place in range(len(groups))], [*map(cluster_name, groups)])
    panel.set_title("Images sampled from each cluster's model", loc="left")
    return None


def _moved(panel: Any, run: Run) -> None:
    moved = moved_examples(run)
    if len(moved) < 2:
        return _empty(panel, "Examples that changed cluster", "not recorded by the algorithm")
    panel.plot(*zip(*moved, strict=True), color=ACCENT, lw=2)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("round")
    panel.set_title("Share of examples that changed cluster", loc="left")
    return None


def _course(panel: Any, run: Run) -> None:
    losses = [(t, loss) for t, row in enumerate(kept_rounds(run), 1) if (loss := noted_loss(row)) is not None]
    if len(losses) < 2:
        return _empty(panel, "Training loss", "not recorded by the algorithm")
    panel.plot(*zip(*losses, strict=True), color=ACCENT, lw=2)
    panel.set_xlabel("round")
    panel.set_title("Training loss", loc="left")
    return None


def _movement(panel: Any, run: Run) -> None:
    path = moments(run)
    if len(path) < 2 or run.clusters < 2:
        why = "there was only one cluster or one round" if run.clusters == 1 or len(path) < 2 else NO_CLUSTERS
        return _empty(panel, "How clients moved", why)
    drawn = river(path)
    for stream in drawn.streams:
        panel.fill(stream.x, stream.y, color=colour(stream.label), alpha=0.4, lw=0)
    for bar in drawn.bars:
        panel.bar(bar.column, bar.height, 2 * BAR, bottom=bar.top, color=colour(bar.label))
    panel.invert_yaxis()
    panel.set_yticks([])
    panel.set_xticks(range(len(drawn.rounds)), [str(t) for t in drawn.rounds])
    panel.set_xlabel("round")
    panel.set_title("How clients moved", loc="left")
    return None


def _map(panel: Any, run: Run) -> None:
    losses = final_losses(run)
    if losses is None:
        return _empty(panel, "Map of clients", NO_LOSSES)
    points, labels = positions(losses), run.snapshot.labels.numpy()
    for label in run.sizes:
        mine = points[labels == label]
        panel.scatter(
            *mine.T, color=colour(label), marker=MARKERS[label % len(MARKERS)], s=22, label=cluster_name(label)
        )
    panel.set_xticks([])
    panel.set_yticks([])
    if len(run.sizes) <= MOST_ROWS:  # the colours are those of the first panel
        panel.legend(frameon=False, fontsize=8)
    panel.set_title("Map of clients by their losses", loc="left")
    return None


def _losses(panel: Any, run: Run) -> None:
    losses = final_losses(run)
    if losses is None:
        return _empty(panel, "Loss of every model at every client", NO_LOSSES)
    chosen, n = thinned(run, losses), len(run.names)
    rows, part = losses[chosen], f"{len(chosen):,} of {n:,} " if len(chosen) < n else ""
    times = np.log2(np.clip(rows / np.maximum(rows.min(1, keepdims=True), 1e-12), 1, TIMES))
    scale = {
        "vmin": 0.0,
        "vmax": float(np.log2(TIMES)),
    }  # otherwise almost equal losses would look as different as can be
    panel.imshow(times.T, aspect="auto", cmap="Blues_r", interpolation="nearest", **scale)
    k = losses.shape[1]
    panel.set_yticks(range(k), [f"model {j}" for j in range(k)], fontsize=_small(k))
    panel.set_xlabel(f"{part}clients by cluster; dark: lowest loss, light: {TIMES}× the lowest")
    panel.set_title("Loss of every model at every client", loc="left")
    return None


def _churn(panel: Any, run: Run) -> None:
    rows = kept_rounds(run)
    if len(rows) < 3 or run.clusters < 2:
        return _empty(
            panel, "Share of clients that changed cluster", "there were fewer than two clusters or three rounds"
        )
    panel.plot(range(2, len(rows) + 1), [row["churn"] for row in rows[1:]], color=ACCENT, lw=2)
    panel.set_ylim(-0.02, 1.02)
    panel.set_xlabel("round")
    panel.set_title("Share of clients that changed cluster", loc="left")
    return None


def _quality(panel: Any, runs: Sequence[Run]) -> None:
    score = score_of(runs[0])
    if score is None:
        return _empty(panel, "Quality", "there were no test examples")
    drawn: list[float] = []
    for place, (title, run) in enumerate(zip(titles_of(runs), runs, strict=True)):
        ends = [run.metrics.get(f"{what}_{score.name}", np.nan) for what in ("worst_decile", "test")]
        tint, side = ACCENT if place == 0 else NO_CLUSTER, "left" if ends[1] < ends[0] else "right"
        drawn += [end for end in ends if np.isfinite(end)]
        panel.plot(ends, [place, place], color=tint, lw=2, alpha=0.5)
        panel.scatter(ends, [place, place], facecolors=["white", tint], edgecolors=tint, zorder=3)
        panel.annotate(f"{title}  {score.text(ends[1])}", (ends[1], place), (0, 8), textcoords="offset points", ha=side)
    if (trivial := trivial_of(runs[0], score)) is not None and drawn:
        if score.percent or is_near(trivial, drawn, spans=3):
            left = trivial > sum(drawn) / len(drawn)
            panel.axvline(trivial, color=QUIET, ls=":")
            where = {"xytext": (-3 if left else 3, 3), "ha": "right" if left else "left"}
            panel.annotate(
                "trivial baseline", (trivial, len(runs) - 0.5), textcoords="offset points", color=QUIET, **where
            )
        else:
            text = f"off the scale: trivial baseline, {score.text(trivial)}"
            panel.text(0.5, 0.04, text, ha="center", color=QUIET, transform=panel.transAxes)
    panel.set_yticks([])
    panel.set_ylim(len(runs) - 0.5, -0.8)
    panel.set_xlabel(f"test {score.words}: mean (filled), worst tenth (open)")
    if score.percent:
        panel.xaxis.set_major_formatter("{x:.0%}")
    panel.set_title("Quality", loc="left")
    return None
