"""Standardise features in raw units without pooling the data: only sums of moments leave the clients.

Descent diverges on raw units, and if each client standardised its own data, the differences between clusters would
disappear. So before round 1 every client returns the means of its features and of their magnitudes, and then the mean
squares of their deviations from the overall mean, in units of the overall magnitude (for regression, those of its
targets too). Replies are weighted by the number of examples, and only their sums over all clients reach the server.
Means and scales are applied inside the objective, at the clients; the examples themselves are not changed.

No single client may dominate a variance. So in a third call every client returns, for each feature, whether it does:
whether more than half of the sum of squares is its own, and its deviations are more than `TIMES` those of all others.
Its answer is no, yes, or by far (`FAR` times). If no client does, the procedure ends. Otherwise such a client is named
and excluded from the mean and scale of that feature, which are computed again.

Beyond `FAR` standard deviations the values of a feature grow only logarithmically, so that an example unlike any
training example does not get an extreme prediction. If a client answered "by far", they do so beyond `BEYOND`, so that
its outliers cannot dominate the training either. A client that is merely large, such as one firm of eleven, keeps its
values, and its targets count like all others: only "by far" excludes a client's targets. A client with more than half
of all examples, most of which lie `TWICE` as far out as those of the others, counts: it is the rule, not the exception.

A few clients together may also dominate the variance of the targets, perhaps because their targets are in other units,
although none of them does so alone. So in the third call every client also returns whether its targets are unusually
far out. If at most a fraction `FEW` of clients are, the moments are computed again without them, and those whose
targets then have a root mean square of more than `FAR` standard deviations of the others are named and excluded.

If several clients have a feature (or the targets) in other units, so that at some clients it varies by less than
1 / `NARROW` of the overall deviation and at all others by much more, a warning names the fewer of them. Nothing is
changed: the right units are unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, Share, on_client
from corymb.trees import Params, align_leading

TIMES = 3.0
"""A client's deviations are out of proportion if their root mean square is this many times that of all others."""
TWICE = 2.0
"""Values this many times as far out as those of all others are a client's rule, if most of its values are."""
FAR = 20.0
"""Standard deviations beyond which values grow logarithmically, and the ratio that counts as "by far"."""
UNUSUAL = 5.0
"""A client's targets are unusual if their mean square is this many times the overall one. With less, a fraction `FEW`
of the clients could not dominate the variance."""
NARROW = 100.0
"""A feature whose deviation at a client is this many times smaller than overall is nearly constant there."""
BROAD = 10.0
"""A feature whose deviation at a client is less than this many times smaller than overall contributes to the scale."""
ENOUGH = 6
"""With fewer examples, values may be close together by chance, which shows nothing about their units."""
BLOCKS, NARROWEST = 16, 8
"""Features are processed in this many blocks of columns, none narrower than the second number (a cache line)."""


class Moments(NamedTuple):
    """One number for each feature, and one for the targets."""

    x: Tensor
    y: Tensor


class Dominance(NamedTuple):
    """A client's answer: whether it dominates the variance of each feature (x) and of the targets (y).

    0 is no, 1 yes, and 2 by far.
    """

    x: Tensor
    y: Tensor
    far: Tensor
    """Whether its targets are unusually far out."""
    spread: Tensor
    """How each feature, and at the end the targets, vary at the client compared with overall: hardly at all (1), about
    as much or more (2), something between (3), or unknown (0): never, only between 0 and 1, or few examples."""


@on_client
def send_means(client: Client, kept: Moments | None = None, unit: Moments | None = None) -> Share[tuple[()]]:
    """The means of the client's features and targets, and of their magnitudes, weighted by its number of examples.

    In repeated calls each is divided by a `unit`, so that the zeros of an excluded client do not make the replies of
    the others look too large.
    """
    weight, y = _portion(client), _wide(client.train.y)
    y = y if unit is None else y / unit.y

    def of(x: Tensor, at: slice) -> Params:
        x = x if unit is None else x / unit.x[at]
        return {"x": weight @ x, "size of x": weight @ x.abs()}

    means = {**_by_columns(client, of), "y": weight @ y, "size of y": weight @ y.abs()}
    return _shared(client, means, kept)


@on_client
def send_deviations(client: Client, centre: Moments, unit: Moments, kept: Moments | None = None) -> Share[tuple[()]]:
    """The mean squared deviations of the client's values from `centre`, in units that keep them near 1."""
    weight = _portion(client)

    def of(x: Tensor, at: slice) -> Params:
        return {"x": weight @ _squares(x, centre.x[at], unit.x[at])}

    means = {**_by_columns(client, of), "y": weight @ _squares(_wide(client.train.y), centre.y, unit.y)}
    return _shared(client, means, kept)


@on_client
def report_dominance(
    client: Client,
    centre: Moments,
    unit: Moments,
    total: Moments,
    weight: Moments,
    kept: Moments | None,
    counted: Tensor | None = None,
) -> Dominance:
    """Whether the client dominates the variance of a feature (or of the targets), out of proportion.

    `total` is the sum of squares over all `counted` clients and `weight` their number of examples: a client whose sums
    were rejected for their size is not among them. `kept` tells for which features the client is included. Binary
    features (0 and 1) are never out of proportion.
    """
    among, examples = 1 if counted is None else counted, weight.x.expand_as(total.x)

    def of(x: Tensor, at: slice) -> Params:
        squares = _squares(x, centre.x[at], unit.x[at])
        over = _excess(client, x, squares, total.x[at], examples[at], among)
        spread = _spread(client, x, unit.x[at], total.x[at] / examples[at].clamp_min(1))
        return {"over": over, "spread": spread}

    found, y = _by_columns(client, of), _wide(client.train.y)
    squares = _squares(y, centre.y, unit.y)
    over = _excess(client, y, squares, total.y, weight.y, among)
    usual = total.y / weight.y.clamp_min(1)
    far = _portion(client) @ squares > UNUSUAL * usual
    of_targets = _spread(client, y[:, None], unit.y, usual)
    if kept is None:
        return Dominance(found["over"], over, far, torch.cat([found["spread"], of_targets]))
    spread = torch.cat([found["spread"] * kept.x, of_targets * kept.y])
    return Dominance(found["over"] * kept.x, over * kept.y, far & kept.y, spread)


def _excess(
    client: Client, values: Tensor, squares: Tensor, total: Tensor, weight: Tensor, among: Tensor | int
) -> Tensor:
    """Whether the client dominates each column's sum of squares, out of proportion: 0 no, 1 yes, 2 by far."""
    examples = client.train.weight
    size, mine = examples.sum().to(total), examples.to(squares) @ squares
    rest, others = (total - among * mine).clamp_min(0), weight - among * size
    # mine / size > TIMES² rest / others, without dividing by 0
    apart, far_apart = (mine * others > times**2 * rest * size for times in (TIMES, FAR))
    graded = _graded(client, values)
    # Most of all values cannot be the exception; a few of them, at a client with most examples, can.
    beyond = examples.to(squares) @ (squares * others > TWICE**2 * rest).to(squares)
    usual = (2 * among * size > weight) & (2 * beyond > size)
    over = (mine > rest) & apart & graded & (others > 0) & ~usual
    return over.to(torch.uint8) + (over & far_apart)


def _graded(client: Client, values: Tensor) -> Tensor:
    """Which columns hold other numbers than 0 and 1; those two have no units."""
    real = align_leading(client.train.weight, values) > 0
    return ((values != 0) & (values != 1) & real).any(0)


def _spread(client: Client, x: Tensor, unit: Tensor, usual: Tensor) -> Tensor:
    """How each column varies at the client, compared with the overall mean square: see `Dominance`."""
    portion, graded, x = _portion(client), _graded(client, x), x / unit
    mean = portion @ x
    own = portion @ (x - mean).square()
    rounding = (64 * torch.finfo(x.dtype).eps * mean).square()  # a constant feature does not reveal its units
    narrow, broad = own < usual / NARROW**2, own > usual / BROAD**2
    known = graded & (own > rounding) & ((client.train.weight > 0).sum() >= ENOUGH)
    return known * (3 - 2 * narrow.to(torch.uint8) - broad.to(torch.uint8))


@on_client
def report_outlying_targets(client: Client, centre: Moments, unit: Moments, usual: Tensor) -> Tensor:
    """Whether the client's targets are far out of proportion to targets whose mean square is `usual`."""
    squares = _squares(_wide(client.train.y), centre.y, unit.y)
    return (_portion(client) @ squares > FAR**2 * usual) & (usual > 0)


def _by_columns(client: Client, of: Callable[[Tensor, slice], Params]) -> Params:
    """Apply `of` to blocks of the client's feature columns, and concatenate the results.

    All columns at once, in double precision with temporaries, would take ten times the memory of the data.
    """
    x = client.train.x.flatten(1)
    width = max(NARROWEST, -(-x.shape[1] // BLOCKS))
    blocks = [slice(first, first + width) for first in range(0, x.shape[1], width)]
    found = [of(_wide(x[:, block]), block) for block in blocks]
    return {name: torch.cat([one[name] for one in found], -1) for name in found[0]}


def _wide(values: Tensor) -> Tensor:
    """Convert to double precision, which deviations of large values need (except on MPS, which has none)."""
    return values.to(values.dtype if values.device.type == "mps" else torch.float64)


def _portion(client: Client) -> Tensor:
    """The weight of each of the client's examples, normalised to sum to 1."""
    weight = client.train.weight
    return _wide(weight) / weight.sum().clamp_min(1)


def _squares(values: Tensor, centre: Tensor, unit: Tensor) -> Tensor:
    return ((values - centre) / unit).square()


def _shared(client: Client, means: Params, kept: Moments | None) -> Share[tuple[()]]:
    weight = client.train.weight
    if kept is not None:
        means = {name: mean * getattr(kept, name[-1]) for name, mean in means.items()}
        means |= {"kept x": kept.x.to(means["x"]), "kept y": kept.y.to(means["y"])}
    return Share(means, weight=weight.sum().reshape(1))
