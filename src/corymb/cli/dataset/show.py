"""`corymb data show`: inspect data before running anything on them."""

# No postponed annotations here: cyclopts reads those of functions made with other classes.
from typing import Annotated

import torch
from cyclopts import Parameter

from corymb.cli.dataset.pictures import drawn, strips_of
from corymb.cli.options import given
from corymb.cli.run import DATA, NOTHING_ON_DATA, OfData
from corymb.data import FederatedDataset
from corymb.data.schema import schema_of
from corymb.runs.history import counted, readable
from corymb.runs.learners import FOR_CODES, default_model
from corymb.runs.settings import DataOptions
from corymb.settings import from_dict

BARS = 30
TEXTS = 3
"""Examples shown if they are text."""
MOST_LABELS = 20
"""At most this many rows of classes; if there are more, the rarest are summed in the last row."""


def show(
    data: str,
    *,
    of_data: Annotated[OfData, Parameter(name="*", group=DATA)] = NOTHING_ON_DATA,
    seed: int = 0,
) -> None:
    """Show clients, sizes, labels and, if the examples are images, some of them (of each true cluster, if known).

    Parameters
    ----------
    data
        A name, a folder or a file.
    seed
        Seed of generated data and of splits.
    """
    describe(from_dict(DataOptions, given(of_data)).load(data, seed))


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
    for name, share in most_frequent(labels_of(data)).items():
        console.print(f"{name[:16]:>16} {share:6.1%} {'█' * round(share * BARS)}", markup=False, highlight=False)
    for strip in strips_of(data):
        console.print(drawn(strip, console.width, colour=console.is_terminal and not console.no_color))
    for client, text in zip(data.names, texts_of(data), strict=False):
        console.print(f"{client}: {text}", markup=False, highlight=False)


def facts_of(data: FederatedDataset) -> dict[str, str]:
    """The properties of a data set, by name."""
    sizes = data.sizes.double()
    least, middle, most = (int(sizes.quantile(q)) for q in (0.0, 0.5, 1.0))
    names = ", ".join(data.names[:3]) + (", ..." if len(data) > 3 else "")
    facts = {
        "clients": f"{len(data)} ({names})",
        "sizes": f"{least} to {most} training examples, median {middle}; {len(data.test.y)} test examples in all",
        "features": f"{list(data.features)}{', to be standardised' if data.standardise else ''}",
        "model": FOR_CODES
        if schema_of(data).codes
        else f"{default_model(schema_of(data), len(data.train.y))} by default",
    }
    if data.feature_names:
        facts["columns"] = ", ".join(data.feature_names)
    thin = {
        "few_examples": "with few training examples",
        "one_class": "with one class",
        "no_test_example": "without test examples",
    }
    if counts := ", ".join(f"{count} {thin[name]}" for name, count in data.thin.items()):
        facts["thin clients"] = counts
    for number, note in enumerate(data.notes):
        facts["notes" if number == 0 else f"note {number + 1}"] = note
    if data.task == "density":
        truth = (
            f"{counted(len(data.classes), 'cluster')} of examples, used only to score" if data.classes else "unknown"
        )
        facts["truth"] = f"{truth}; there are no labels"
    if data.truth is not None:
        facts["truth"] = f"{counted(len(data.truth.unique()), 'cluster')} of {data.truth.bincount().tolist()} clients"
    return facts


def labels_of(data: FederatedDataset) -> dict[str, float]:
    """The share of training examples in each class or true cluster, or in each of ten bins of the target."""
    y = data.train.y
    if data.task != "regression":
        shares = y.bincount(minlength=len(data.classes)) / len(y)
        return dict(zip(data.classes, shares.tolist(), strict=False))  # there are no classes without labels
    low, high = float(y.min()), float(y.max())
    edges = torch.linspace(low, high, 11).tolist()
    counts = torch.histc(y.float(), bins=10, min=low, max=high) if high > low else torch.tensor([len(y)])
    return {f"{readable(edge)} ..": share for edge, share in zip(edges, (counts / len(y)).tolist(), strict=False)}


def most_frequent(shares: dict[str, float]) -> dict[str, float]:
    """Shares by class; if there are many classes, those of the most frequent and of all others together."""
    if len(shares) <= MOST_LABELS:
        return shares
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    kept, rest = ordered[: MOST_LABELS - 1], [share for _, share in ordered[MOST_LABELS - 1 :]]
    return {**dict(kept), f"{len(rest)} others": sum(rest)}


def texts_of(data: FederatedDataset) -> list[str]:
    """An example of each of a few clients, if examples are text and labels the next characters."""
    if not schema_of(data).codes or data.task != "classification" or int(data.train.x.max()) >= len(data.classes):
        return []
    characters = [{"newline": "↵", "space": "␣"}.get(name, name) for name in data.classes]
    rows = data.train.offsets[:-1][:TEXTS].tolist()
    return [
        f"{''.join(characters[code] for code in data.train.x[row].tolist()).replace('␣', ' ')}"
        f" → {characters[int(data.train.y[row])]}"
        for row in rows
    ]
