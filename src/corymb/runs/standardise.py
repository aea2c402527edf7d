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

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Client, Share, on_client
from corymb.core.engine import each
from corymb.core.federation import Federation
from corymb.core.objective import Coordinates, Draws, Examples, Objective
from corymb.core.sums import Sums
from corymb.keys import Key
from corymb.local.reference import training_losses
from corymb.objectives.linear_form import LinearForm, linear_form, logit_form
from corymb.objectives.measures import measures_of
from corymb.objectives.module import limited, unlimited
from corymb.trees import Params, map_tensors

TIMES = 3.0
"""A client's deviations are out of proportion if their root mean square is this many times that of all others."""
TWICE = 2.0
"""Values this many times as far out as those of all others are a client's rule, if most of its values are."""
FAR = 20.0
"""Standard deviations beyond which values grow logarithmically, and the ratio that counts as "by far"."""
BEYOND = 3.0
"""The same limit for a feature in which a client is out of proportion by far."""
FEW = 0.15
"""At most this fraction of the clients can be excluded together: more of them would not be exceptions."""
UNUSUAL = 5.0
"""A client's targets are unusual if their mean square is this many times the overall one. With less, a fraction `FEW`
of the clients could not dominate the variance."""
NARROW = 100.0
"""A feature whose deviation at a client is this many times smaller than overall is nearly constant there."""
BROAD = 10.0
"""A feature whose deviation at a client is less than this many times smaller than overall contributes to the scale."""
ENOUGH = 6
"""With fewer examples, values may be close together by chance, which shows nothing about their units."""
REPEATS = 4
"""How often moments are computed again without the clients that dominated a variance."""
BLOCKS, NARROWEST = 16, 8
"""Features are processed in this many blocks of columns, none narrower than the second number (a cache line)."""
UNLIMITED = torch.tensor(torch.inf)
AS_THEY_ARE = torch.empty(0)


class Standard(NamedTuple):
    """Means and scales of the features, and of the targets of a regression (0 and 1 for classes)."""

    mean: Tensor
    scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    limit: Tensor = UNLIMITED
    """Standard deviations beyond which features grow logarithmically; infinite for no limit."""
    target_limit: Tensor = UNLIMITED
    """The same for targets, in training only: scores use the original targets."""
    root: Tensor = AS_THEY_ARE
    """The matrix (d d) that decorrelates standardised features, for whitened descent; empty if it is not used."""

    def restored(self, z: Tensor) -> Tensor:
        """Standardised features in the units of the data; those beyond the limit are no longer limited."""
        return unlimited(z, self.limit) * self.scale + self.mean

    def uncentred(self) -> Standard:
        """The standardisation without centring targets, which keep their sign; limits stay as far from their mean."""
        moved = self.target_limit + (self.target_mean / self.target_scale).abs()
        return self._replace(target_mean=torch.zeros_like(self.target_mean), target_limit=moved)


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


TARGET = "the target"
Excluded = dict[str, list[int]]
"""Feature indices by client name; the index after the last feature stands for the targets."""


class RobustStandard(NamedTuple):
    """Means and scales, and the clients to report."""

    standard: Standard
    excluded: Excluded
    """Clients that would dominate a variance and are excluded from it."""
    broad: Excluded
    """Clients whose features vary out of all proportion to those of most clients, but are included."""
    narrow: Excluded
    """Clients whose features hardly vary compared with those of most clients."""
    targets: tuple[float, float]
    """The mean of all targets and their standard deviation, whether they are standardised or not."""


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
    real = client.train.weight.reshape(-1, *[1] * (values.dim() - 1)) > 0
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


def standard_of(fed: Federation, features: tuple[int, ...], *, targets: bool) -> Standard:
    """Means and standard deviations over the training examples of all clients; with `targets`, of the targets too."""
    return robust_standard(fed, features, targets=targets).standard


def robust_standard(fed: Federation, features: tuple[int, ...], *, targets: bool) -> RobustStandard:
    """Compute the standardisation and the clients out of proportion; the rounds taken are added to the ledger."""
    kept = before = None
    broad, narrow = Excluded(), Excluded()
    extreme = Moments(torch.zeros(math.prod(features), dtype=torch.bool), torch.tensor(False))
    for repeat in range(1 + REPEATS):
        centre, unit, squares, weight, counted = _moments(fed, kept, before)
        before = unit
        fed.ledger.rounds += 2  # means, then deviations
        if repeat == REPEATS:
            break
        total = Moments(squares.x * weight.x, squares.y * weight.y)
        replies = fed.clients.map(report_dominance, centre, unit, total, weight, _to_each(kept), counted)
        fed.ledger.rounds += 1
        answers = Moments(replies.value.x.cpu(), replies.value.y.cpu() * targets)  # classes have no scale
        over = Moments(answers.x > 0, answers.y > 1)
        if not any(bool(part.any()) for part in over):
            broad, narrow = _other_units(replies.clients.names, replies.value.spread.cpu(), targets=targets)
            far = replies.clients.put(torch.zeros(len(fed.names), dtype=torch.bool), replies.value.far.cpu())
            if targets and (adjusted := _without_few(fed, far, kept or _everybody(fed, over), before)) is not None:
                kept, centre, unit, squares = adjusted
                extreme = Moments(extreme.x, torch.tensor(True))
            break
        extreme = Moments(extreme.x | (answers.x > 1).any(0), extreme.y | (answers.y > 1).any())
        kept = kept or _everybody(fed, over)
        kept = replies.clients.put(
            kept, Moments(*(a & ~b for a, b in zip(replies.clients.pick(kept), over, strict=True)))
        )
    scale, target_scale = (_deviation(*pair).cpu() for pair in zip(squares, unit, strict=True))
    target_mean = centre.y.cpu()
    found = float(target_mean), float(target_scale)
    if not targets:
        target_mean, target_scale = torch.zeros(()), torch.ones(())
    limit = torch.where(extreme.x, BEYOND, FAR).to(scale)
    target_limit = torch.where(extreme.y, BEYOND, UNLIMITED)
    rows = Standard(
        centre.x.cpu().reshape(features),
        scale.reshape(features),
        target_mean,
        target_scale,
        limit.reshape(features),
        target_limit,
    )
    excluded = _excluded(fed, kept, targets=targets)
    broad = {
        name: left for name, its in broad.items() if (left := [at for at in its if at not in excluded.get(name, ())])
    }
    return RobustStandard(Standard(*(row.float() for row in rows)), excluded, broad, narrow, found)


def changed_scales(fed: Federation, standard: Standard, *, targets: bool) -> list[int]:
    """The features of new data, and last the target, whose values are out of all proportion to a standardisation.

    They vary `NARROW` times as much as the data that it is from, or as little, or their mean is `FAR` deviations away.
    """
    centre, unit, squares, *_ = _moments(fed, None, None)
    fed.ledger.rounds += 2  # means, then deviations
    scale = torch.cat([_deviation(*pair).cpu().reshape(-1) for pair in zip(squares, unit, strict=True)])
    varied = torch.cat([square.cpu().reshape(-1) > 0 for square in squares])
    mean = torch.cat([part.cpu().reshape(-1) for part in centre])
    was = torch.cat([standard.scale.reshape(-1), standard.target_scale.reshape(1)]).to(scale)
    was_mean = torch.cat([standard.mean.reshape(-1), standard.target_mean.reshape(1)]).to(mean)
    other = varied & ((scale > NARROW * was) | (scale < was / NARROW)) | ((mean - was_mean).abs() > FAR * was)
    other[-1] &= targets
    return other.nonzero()[:, 0].tolist()


def describe_changed(changed: list[int], size: int, feature_names: Sequence[str] = ()) -> list[str]:
    """A line about features of new data that are unlike those of the data before; empty if there are none.

    >>> describe_changed([0], 1, ("power",))
    ["values of 'power' in the new data are out of all proportion to those before, perhaps in other units: they are \
standardised as before, because the models know no other units"]
    """
    return [
        f"values of {what} in the new data are out of all proportion to those before, perhaps in other units: they are "
        "standardised as before, because the models know no other units"
        for _, _, what, _ in _alike({"": changed} if changed else {}, size, feature_names)
    ]


def _other_units(names: Sequence[str], spread: Tensor, *, targets: bool) -> tuple[Excluded, Excluded]:
    """Clients whose features vary as much as overall while they hardly vary at as many others or more; and the reverse.

    No client may lie between: a feature with a few large values, such as a crime rate, has the same units everywhere.
    """
    narrow, broad = spread == 1, spread == 2
    apart = narrow.any(0) & broad.any(0) & ~(spread == 3).any(0)
    apart[-1] &= targets
    fewer = narrow.sum(0) < broad.sum(0)
    found = broad & apart & ~fewer, narrow & apart & fewer
    few, many = (
        {names[row]: by[row].nonzero()[:, 0].tolist() for row in by.any(1).nonzero()[:, 0].tolist()} for by in found
    )
    return few, many


def _everybody(fed: Federation, like: Moments) -> Moments:
    return Moments(*(torch.ones(len(fed.names), *part.shape[1:], dtype=torch.bool) for part in like))


def _without_few(
    fed: Federation, far: Tensor, kept: Moments, before: Moments
) -> tuple[Moments, Moments, Moments, Moments] | None:
    """The included clients, means, magnitudes and mean squares without a few clients whose targets are far out.

    None if there are no such clients. A suspect that turns out not to be as far out is included again, which widens the
    overall spread. So this is repeated until the same clients are found twice.
    """
    for _ in range(REPEATS):
        if not far.any() or far.sum() > FEW * len(far):
            return None
        rest = Moments(kept.x, kept.y & ~far)
        centre, unit, squares, *_ = _moments(fed, rest, before)
        replies = fed.clients.map(report_outlying_targets, centre, unit, squares.y)
        fed.ledger.rounds += 3  # means, deviations, clients that are far out
        found = replies.clients.put(torch.zeros_like(far), replies.value.cpu()) & kept.y
        if (found == far).all():
            return rest, centre, unit, squares
        far = found
    return None


def _moments(
    fed: Federation, kept: Moments | None, before: Moments | None
) -> tuple[Moments, Moments, Moments, Moments, Tensor | None]:
    """Means, magnitudes, mean squares in their units, numbers of examples, and which clients replied, if not all."""
    mine = _to_each(kept)
    first = fed.clients.sum(send_means, mine, before)
    sums, means = first.value, _first(first.value)
    x_unit, y_unit = before or (1, 1)
    centre = Moments(means["x"] * x_unit, means["y"] * y_unit)
    sizes = (means["size of x"] * x_unit, means["size of y"] * y_unit)
    unit = Moments(*(torch.where(size > 0, size, 1) for size in sizes))
    second = fed.clients.sum(send_deviations, centre, unit, mine)
    squares = _first(second.value)
    weight = sums.weight.to(centre.x)[0]
    counts = Moments(*(weight * means.get(f"kept {name}", torch.ones_like(weight)) for name in Moments._fields))
    both = first.clients.mask & second.clients.mask
    return centre, unit, Moments(squares["x"], squares["y"]), counts, None if both.all() else each(both)


def _to_each(kept: Moments | None) -> Moments | None:
    return None if kept is None else each(kept)


def _first(sums: Sums[tuple[()]]) -> Params:
    """The means of the only group of sums; if some clients are excluded, over the others."""
    means = {
        name: (total / sums.weight.to(total).reshape(1, *[1] * (total.dim() - 1)))[0]
        for name, total in sums.total.items()
    }
    if "kept x" not in means:
        return means
    shares = {name: torch.where(means[f"kept {name}"] > 0, means[f"kept {name}"], 1) for name in Moments._fields}
    return {name: mean if name.startswith("kept") else mean / shares[name[-1]] for name, mean in means.items()}


def _excluded(fed: Federation, kept: Moments | None, *, targets: bool) -> Excluded:
    if kept is None:
        return {}
    out = ~torch.cat([kept.x, (kept.y if targets else torch.ones_like(kept.y))[:, None]], 1)
    return {fed.names[row]: out[row].nonzero()[:, 0].tolist() for row in out.any(1).nonzero()[:, 0].tolist()}


def describe_clients(found: RobustStandard, size: int, feature_names: Sequence[str] = ()) -> list[str]:
    """A line for each set of clients whose values are unlike those of the others in the same way."""
    lines = describe_excluded(
        found.excluded, size, feature_names, limits_targets=bool(found.standard.target_limit.isfinite())
    )
    lines += describe_broad(found.broad, size, feature_names)
    return lines + describe_narrow(found.narrow, size, feature_names)


def describe_excluded(
    excluded: Excluded, size: int, feature_names: Sequence[str] = (), *, limits_targets: bool = False
) -> list[str]:
    """A line for each set of clients excluded from the same scales; examples have `size` features.

    With `limits_targets`, targets far out are limited in training.

    >>> describe_excluded({"b": [1, 2]}, 2, ("age", "dose"))
    ["client 'b' would dominate the variance of 'dose' and the target: it is excluded from their scale"]
    """
    return [
        f"{'client' if one else 'clients'} {who} would dominate the variance of {what}: "
        f"{'it is' if one else 'they are'} excluded from {its} scale"
        + (_limited(one) if limits_targets and what.endswith(TARGET) else "")
        for one, who, what, its in _alike(excluded, size, feature_names)
    ]


def _limited(one: bool) -> str:
    its, it = ("its", "it") if one else ("their", "them")
    return f", and {its} targets are limited in training, so predictions for {it} will be far off: check their units"


def describe_broad(broad: Excluded, size: int, feature_names: Sequence[str] = ()) -> list[str]:
    """A line for each set of clients whose values determine a scale at which those of most others hardly vary.

    >>> describe_broad({"a": [1], "b": [1]}, 2, ("age", "dose"))
    ["clients 'a' and 'b' have values of 'dose' out of all proportion to the others', perhaps in other units: they \
determine its scale, at which the other clients hardly differ"]
    """
    return [
        f"{'client' if one else 'clients'} {who} {'has' if one else 'have'} values of {what} out of all proportion to "
        f"the others', perhaps in other units: {'it determines' if one else 'they determine'} {its} scale, at which "
        "the other clients hardly differ"
        for one, who, what, its in _alike(broad, size, feature_names)
    ]


def describe_narrow(narrow: Excluded, size: int, feature_names: Sequence[str] = ()) -> list[str]:
    """A line for each set of clients whose values hardly vary at the scale that the other clients determine.

    >>> describe_narrow({"a": [0]}, 1, ("power",))
    ["client 'a' has values of 'power' that vary less than a hundredth as much as at the other clients, perhaps in \
other units: at the common scale they hardly differ"]
    """
    return [
        f"{'client' if one else 'clients'} {who} {'has' if one else 'have'} values of {what} that vary less than a "
        "hundredth as much as at the other clients, perhaps in other units: at the common scale they hardly differ"
        for one, who, what, _ in _alike(narrow, size, feature_names)
    ]


def _alike(
    found: Excluded, size: int, feature_names: Sequence[str]
) -> Iterator[tuple[bool, str, str, Literal["its", "their"]]]:
    """Clients grouped by the same features: whether it is a single client, the clients, the features, and its/their."""

    def called(place: int) -> str:
        if place == size:
            return TARGET
        return repr(feature_names[place]) if feature_names else f"feature {place}"

    alike: dict[tuple[int, ...], list[str]] = {}
    for client, its in found.items():
        alike.setdefault(tuple(its), []).append(client)
    for places, clients in alike.items():
        who, what = _some([repr(client) for client in clients], 10), _some([called(place) for place in places], 3)
        yield len(clients) == 1, who, what, "its" if len(places) == 1 else "their"


def _some(names: Sequence[str], most: int) -> str:
    most = len(names) if len(names) == most + 1 else most  # a last name takes no more room than "1 other"
    listed = [*names[:most], *([f"{len(names) - most} others"] if len(names) > most else [])]
    return listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])} and {listed[-1]}"


def _deviation(square: Tensor, unit: Tensor) -> Tensor:
    """The standard deviation; 1 for a constant feature, which standardisation then maps to 0."""
    rounding = (64 * torch.finfo(square.dtype).eps) ** 2
    return torch.where(square <= rounding, 1, square.sqrt() * unit)


class Standardised:
    """An objective that sees standardised examples; its predictions and scores are in the units of the data."""

    def __init__(self, inner: Objective, standard: Standard) -> None:
        self.inner, self.standard = inner, standard
        self.score_name = inner.score_name
        self.higher_is_better = inner.higher_is_better
        self.squared = inner.squared
        self._limits, self._limits_targets = (
            bool(limit.isfinite().any()) for limit in (standard.limit, standard.target_limit)
        )
        self.measures = measures_of(inner)
        self.whitened = None if not len(standard.root) else self._whitened(standard.root)

    @property
    def linear(self) -> LinearForm | None:
        """The inner objective's form, applied to standardised examples."""
        return self._after(linear_form(self.inner))

    @property
    def logits(self) -> LinearForm | None:
        """The inner objective's form, applied to standardised examples."""
        return self._after(logit_form(self.inner))

    def _after(self, form: LinearForm | None) -> LinearForm | None:
        return None if form is None else form.after(self._features, self._learned_targets)

    @property
    def score_unit(self) -> Tensor:
        """The factor from a squared error in standard units to one in the units of the data."""
        return self.standard.target_scale.square()

    @property
    def loss_unit(self) -> float | None:
        """The inner objective's `loss_unit`, if its losses have no natural zero."""
        return getattr(self.inner, "loss_unit", None)

    @property
    def flow(self) -> object | None:
        """The inner objective's flow, if it is a density."""
        return getattr(self.inner, "flow", None)

    @property
    def space(self) -> Callable[[Params, Tensor], Tensor] | None:
        """The coordinates in which the inner objective compares standardised examples, if it defines them."""
        own = getattr(self.inner, "space", None)
        return None if own is None else lambda params, x: own(params, self.seen(x))

    def learned_targets(self, y: Tensor) -> Tensor:
        """Targets as used in training (limited), in the units of the data."""
        if not self._limits_targets:
            return y
        return self._learned_targets(y) * self.standard.target_scale + self.standard.target_mean

    def seen(self, x: Tensor) -> Tensor:
        """Examples as the inner objective sees them."""
        return self._features(x)

    def _whitened(self, root: Tensor) -> Coordinates | None:
        """The coordinates of whitened descent on the inner objective, with examples standardised once per descent."""
        form, d = linear_form(self.inner) or logit_form(self.inner), len(root)
        assert form is not None  # checked by `can_whiten`
        back = torch.linalg.inv(root.double()).to(root)

        def examples(on: Examples) -> Examples:
            learned = self._learned(on)
            return learned._replace(x=learned.x @ root)

        def turned(params: Params, matrix: Tensor) -> Params:
            theta = form.coefficients(params)
            found = form.parameters(torch.cat([theta[..., :d] @ matrix, theta[..., d:]], -1))
            return {name: found[name] for name in params}

        return Coordinates(
            self.inner, examples, lambda params: turned(params, back), lambda params: turned(params, root)
        )

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Standardised:
        """The same objective on another device or in another precision."""
        return Standardised(self.inner.to(device, dtype), map_tensors(lambda t: t.to(device, dtype), self.standard))

    def recipe(self) -> dict[str, Any]:
        """The arguments that rebuild this objective elsewhere: see `corymb.objectives.recipe`."""
        return {"inner": self.inner, "standard": self.standard}

    def init(self, key: Key) -> Params:
        """A fresh model."""
        return self.inner.init(key)

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The loss of each example, in standard units."""
        return self.inner.losses(params, self._learned(examples))

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """The loss of each example in training, in standard units."""
        return training_losses(self.inner, params, self._learned(examples), draws)

    def scores(self, params: Params, examples: Examples) -> Tensor:
        """The score of each example, in the units of the data: a squared error grows with the square of the scale."""
        return self.inner.scores(params, self._standardised(examples)) * self.score_unit

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The prediction for each example of raw features, in the units of the data."""
        return self.inner.predict(params, self._features(x)) * self.standard.target_scale + self.standard.target_mean

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """One prediction from those of several models, in the units of the data."""
        return self.inner.mix(predictions, weights)

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """The score of each example from predictions, both in the units of the data."""
        return self.inner.grade(predictions, examples._replace(x=self._features(examples.x)))

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        return f"{self.inner.describe()}, features standardised"

    def _learned(self, examples: Examples) -> Examples:
        """Standardised examples for the loss, with extreme targets limited."""
        x, y, weight = examples
        return Examples(self._features(x), self._learned_targets(y), weight)

    def _learned_targets(self, y: Tensor) -> Tensor:
        limits, y = self._limits_targets and y.is_floating_point(), self._targets(y)
        return limited(y, self.standard.target_limit) if limits else y

    def _standardised(self, examples: Examples) -> Examples:
        x, y, weight = examples
        return Examples(self._features(x), self._targets(y), weight)

    def _targets(self, y: Tensor) -> Tensor:
        return (y - self.standard.target_mean) / self.standard.target_scale if y.is_floating_point() else y

    def _features(self, x: Tensor) -> Tensor:
        x = (x - self.standard.mean) / self.standard.scale
        return limited(x, self.standard.limit) if self._limits else x


class NullObjective:
    """The objective of an engine that only holds the data; it learns nothing."""

    score_name = "nothing"
    higher_is_better = True
    squared = None

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        self.device, self.dtype = device, dtype

    def to(self, device: torch.device | str, dtype: torch.dtype) -> NullObjective:
        """The same objective on another device or in another precision."""
        return NullObjective(device, dtype)

    def recipe(self) -> dict[str, Any]:
        """No arguments are needed to rebuild it elsewhere."""
        return {}

    def init(self, key: Key) -> Params:
        """A single unused parameter."""
        return {"nothing": torch.zeros(1, device=self.device, dtype=self.dtype)}

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """0 for each example."""
        return params["nothing"] * torch.zeros_like(examples.weight)

    scores = losses

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """0 for each example."""
        return params["nothing"].expand(len(x))

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """0 for each example."""
        return predictions[0]

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """0 for each example."""
        return torch.zeros_like(examples.weight)

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        return "nothing"
