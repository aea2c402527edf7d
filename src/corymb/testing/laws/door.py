"""Laws of the door: parts from an untrusted engine are checked before they count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from corymb.core.engine import Part, Rejection
from corymb.core.federation import Federation, TooFewReplies
from corymb.core.sums import Sums
from corymb.testing.assertions import expect_error
from corymb.testing.bad_clients import INF, MODELS, NAN, OBJECTIVE, answer_badly
from corymb.testing.cases import SIZES
from corymb.testing.engines import Scripted


def scripted(*parts: Part) -> Federation:
    """A federation whose engine answers every call with these parts."""
    return Federation(Scripted(OBJECTIVE, torch.tensor(SIZES), *parts))  # type: ignore[arg-type]


def rows(
    *ids: int,
    k: int = 2,
    n: int | None = None,
    dtype: torch.dtype = torch.float64,
    rejected: Sequence[Rejection] = (),
    fill: float = 1.0,
) -> Part:
    """Rows of these clients; with `n`, a different number of rows."""
    value = {"fit": torch.full((len(ids) if n is None else n, k), fill, dtype=dtype)}
    return Part(torch.tensor(ids, dtype=torch.int64), value, list(rejected))


def sums(*ids: int, k: int = 2, labels: int | None = None, total: float = 1.0, weight: float | None = None) -> Part:
    """Partial sums of these clients, each of which sent `total`."""
    n = len(ids)
    value = Sums(
        {"weight": torch.full((k, 3), total * n, dtype=torch.float64)},
        torch.full((k,), float(n) if weight is None else weight),
        torch.zeros(n if labels is None else labels, dtype=torch.int64),
        (),
    )
    return Part(torch.tensor(ids, dtype=torch.int64), value, [])


def oddly(part: Part, **changes: Any) -> Part:
    """The same partial sums with some of their fields replaced."""
    return part._replace(value=part.value._replace(**changes))


BAD_PARTS = {
    "too few rows": ("map", rows(5, 6, n=1), "number of rows"),
    "too many rows": ("map", rows(5, 6, n=3), "number of rows"),
    "a row for all": ("map", Part(torch.tensor([5, 6]), {"fit": torch.ones(())}, []), "number of rows"),
    "a client twice": ("map", rows(5, 6, 6), "came twice"),
    "a client that another part has": ("map", rows(5, 6, 0), "came twice"),
    "a client never asked": ("map", rows(5, 6, 4), "not asked for"),
    "a client that is not there": ("map", rows(5, 6, 99), "not asked for"),
    "a client before the first": ("map", rows(5, 6, -1), "not asked for"),
    "another shape": ("map", rows(5, 6, k=3), "most clients sent"),
    "another dtype": ("map", rows(5, 6, dtype=torch.float32), "most clients sent"),
    "not finite": ("map", rows(5, 6, fill=NAN), "not finite"),
    "nothing at all": ("map", Part(torch.tensor([5, 6]), None, []), "most clients sent"),
    "sums: too few labels": ("sum", sums(5, 6, labels=1), "number of rows"),
    "sums: a client twice": ("sum", sums(5, 5, 6), "came twice"),
    "sums: never asked": ("sum", sums(5, 6, 4), "not asked for"),
    "sums: another k": ("sum", sums(5, 6, k=3), "most clients sent"),
    "sums: not finite": ("sum", sums(5, 6, total=INF), "not finite"),
    "sums: weight not finite": ("sum", sums(5, 6, weight=NAN), "not finite"),
    "sums: one for all": ("sum", oddly(sums(5, 6), total={"weight": torch.ones(3).double()}), "number of sums"),
    "sums: a short row": ("sum", oddly(sums(5, 6), total={"weight": torch.ones(2, 1).double()}), "most clients sent"),
    "sums: no weights": ("sum", oddly(sums(5, 6), weight=torch.tensor(2.0)), "number of sums"),
    "sums: one label": ("sum", oddly(sums(5, 6), label=torch.tensor(0)), "label is"),
    "sums: no labels": ("sum", oddly(sums(5, 6), label=None), "most clients sent"),
    "sums: rows instead": ("sum", rows(5, 6), "wanted Sums"),
    "sums: nothing": ("sum", Part(torch.tensor([5, 6]), None, []), "wanted Sums"),
}
"""Parts of clients 5 and 6 that must be refused, with the reasons."""


def check_bad_part(name: str, *, first: bool) -> None:
    """A bad part is refused whether it comes first or last, and does not affect other clients' numbers.

    Clients 0 to 2 are in good parts; 5 and 6 were asked too, 3 and 4 were not.
    """
    verb, part, reason = BAD_PARTS[name]
    good = [rows(2, 0), rows(1)] if verb == "map" else [sums(2, 0), sums(1)]
    fed = scripted(*([part, *good] if first else [*good, part]))
    got = getattr(fed.clients[[0, 1, 2, 5, 6]], verb)(answer_badly, MODELS, NAN)
    assert got.clients.ids.tolist() == [0, 1, 2]
    assert [name for name, _ in got.rejected] == ["client-5", "client-6"]
    assert all(reason in why for _, why in got.rejected)
    if verb == "map":
        assert got.value["fit"].tolist() == [[1.0, 1.0]] * 3
    else:
        assert got.value.weight.tolist() == [3.0, 3.0]
        assert got.value.total["weight"].tolist() == [[3.0] * 3] * 2
        assert got.value.label.tolist() == [0, 0, 0]


def check_votes() -> None:
    """Clients that were not asked have no vote on the form of replies, and no client has several."""
    strangers, often = rows(*range(100, 1100), k=3), rows(*[5] * 50, k=3)
    fed = scripted(strangers, often, rows(0, 1), rows(2))
    got = fed.clients[[0, 1, 2, 5]].map(answer_badly, MODELS, NAN)
    assert got.clients.ids.tolist() == [0, 1, 2]
    assert got.value["fit"].shape == (3, 2)


def check_rejections() -> None:
    """A part may only reject clients that were asked and did not answer."""
    rejected = [(99, "?"), (-1, "?"), (3, "?"), (0, "?"), (5, "is ill")]
    fed = scripted(rows(0, 1, rejected=rejected), rows(2))
    got = fed.clients[[0, 1, 2, 5]].map(answer_badly, MODELS, NAN)
    assert got.clients.ids.tolist() == [0, 1, 2]
    assert got.rejected == [("client-5", "is ill")]


def check_order_asked() -> None:
    """Replies are returned in the order asked, whatever the order of parts."""
    parts = [Part(torch.tensor(ids), {"fit": torch.tensor(ids).double()[:, None]}, []) for ids in ([4, 0], [6], [3])]
    got = scripted(*parts).clients[[3, 0, 6, 1, 4]].map(answer_badly, MODELS, NAN)
    assert got.clients.ids.tolist() == [3, 0, 6, 4]
    assert got.value["fit"].flatten().tolist() == [3, 0, 6, 4]


def check_no_part() -> None:
    """No part at all means too few replies, and so does a part without clients."""
    for parts in ([], [Part(torch.empty(0, dtype=torch.int64), None, [])]):
        with expect_error(TooFewReplies, "0 of 7"):
            scripted(*parts).clients.map(answer_badly, MODELS, NAN)
