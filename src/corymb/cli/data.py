"""`corymb data show`: look at data before running anything on them."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from cyclopts import Parameter
from torch import Tensor

from corymb.core.pixels import as_numbers
from corymb.data import FederatedDataset
from corymb.data.schema import schema_of
from corymb.runs.history import counted, readable
from corymb.runs.learners import default_model
from corymb.runs.settings import DataOptions

PICTURES = 6
BARS = 30
MOST_LABELS = 20
"""Classes shown one by one; of more, the commonest."""
GAP = 2
"""Columns between two pictures."""


def show(
    data: str,
    *,
    data_options: Annotated[DataOptions, Parameter(name="*", group="Data of your own")] = DataOptions(),  # noqa: B008
    seed: int = 0,
) -> None:
    """Show clients, sizes, labels and, if the examples are pictures, some of them.

    Parameters
    ----------
    data
        A name, a folder or a file.
    seed
        Seed for data that are generated or split.
    """
    describe(data_options.load(data, seed))


def describe(data: FederatedDataset) -> None:
    """Print a description of a data set to stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(data, markup=False, highlight=False)
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts_of(data).items():
        facts.add_row(name, value)
    console.print(facts)
    for name, share in commonest(labels_of(data)).items():
        console.print(f"{name[:16]:>16} {share:6.1%} {'█' * round(share * BARS)}", markup=False, highlight=False)
    pictures = pictures_of(data)
    if pictures is not None:
        console.print(drawn(fitting(pictures, console.width), colour=console.is_terminal and not console.no_color))


def facts_of(data: FederatedDataset) -> dict[str, str]:
    """The properties of a data set, by name."""
    sizes = data.sizes.double()
    least, middle, most = (int(sizes.quantile(q)) for q in (0.0, 0.5, 1.0))
    names = ", ".join(data.names[:3]) + (", ..." if len(data) > 3 else "")
    facts = {
        "clients": f"{len(data)} ({names})",
        "sizes": f"{least} to {most} training examples, median {middle}; {len(data.test.y)} test examples in all",
        "features": f"{list(data.features)}{', to be standardised' if data.standardise else ''}",
        "model": "give one"
        if schema_of(data).codes
        else f"{default_model(schema_of(data), len(data.train.y))}, if you give none",
    }
    if data.feature_names:
        facts["columns"] = ", ".join(data.feature_names)
    thin = {"few_examples": "with few training examples", "one_class": "with one class", "no_test_example": "untested"}
    if counts := ", ".join(f"{count} {thin[name]}" for name, count in data.thin.items()):
        facts["thin clients"] = counts
    for number, note in enumerate(data.notes):
        facts["notes" if number == 0 else f"note {number + 1}"] = note
    if data.truth is not None:
        facts["truth"] = f"{counted(len(data.truth.unique()), 'cluster')} of {data.truth.bincount().tolist()} clients"
    return facts


def labels_of(data: FederatedDataset) -> dict[str, float]:
    """The share of training examples in each class, or in each of ten bins of the target."""
    y = data.train.y
    if data.task == "classification":
        shares = y.bincount(minlength=len(data.classes)) / len(y)
        return dict(zip(data.classes, shares.tolist(), strict=True))
    low, high = float(y.min()), float(y.max())
    edges = torch.linspace(low, high, 11).tolist()
    counts = torch.histc(y.float(), bins=10, min=low, max=high) if high > low else torch.tensor([len(y)])
    return {f"{readable(edge)} ..": share for edge, share in zip(edges, (counts / len(y)).tolist(), strict=False)}


def commonest(shares: dict[str, float]) -> dict[str, float]:
    """Shares by class; where there are many classes, of the commonest and of the others together."""
    if len(shares) <= MOST_LABELS:
        return shares
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    kept, rest = ordered[: MOST_LABELS - 1], [share for _, share in ordered[MOST_LABELS - 1 :]]
    return {**dict(kept), f"{len(rest)} others": sum(rest)}


def fitting(pictures: Tensor, width: int) -> Tensor:
    """As many pictures as fit into a width side by side; one that is too wide by itself is made smaller."""
    step = -(-pictures.shape[2] // max(1, width - GAP))
    smaller = pictures[:, ::step, ::step]
    return smaller[: max(1, width // (smaller.shape[2] + GAP))]


def pictures_of(data: FederatedDataset) -> Tensor | None:
    """The first picture of a few clients, as grey levels in [0, 1]; None if the examples are not pictures."""
    x = as_numbers(data.train.x[data.train.offsets[:-1]])
    side = round(data.features[0] ** 0.5)
    flat = len(data.features) == 1 and side**2 == data.features[0] and side >= 4 and not data.feature_names
    within = bool(x.min() >= 0) and bool(x.max() <= 1)
    if not within or data.standardise or not (schema_of(data).picture or flat):
        return None
    places = torch.linspace(0, len(data) - 1, min(PICTURES, len(data))).long()
    chosen = x[places]
    return chosen.reshape(-1, side, side) if flat else chosen.mean(1)


def drawn(pictures: Tensor, *, colour: bool) -> Any:
    """Pictures side by side, drawn in half-blocks: each character is two pixels high."""
    from rich.text import Text

    text = Text()
    count, height, _ = pictures.shape
    for row in range(0, height, 2):
        for number in range(count):
            upper = pictures[number, row].tolist()
            lower = pictures[number, row + 1].tolist() if row + 1 < height else [0.0] * len(upper)
            for top, bottom in zip(upper, lower, strict=True):
                text.append(*_half_block(top, bottom, colour=colour))
            text.append(" " * GAP)
        text.append("\n")
    return text


def _half_block(top: float, bottom: float, *, colour: bool) -> tuple[str, str]:
    if not colour:
        return " ▄▀█"[2 * (top > 0.5) + (bottom > 0.5)], ""
    above, below = (round(255 * value) for value in (top, bottom))
    return "▀", f"rgb({above},{above},{above}) on rgb({below},{below},{below})"
