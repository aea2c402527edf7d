"""How far a reply may be from the model that its client was sent, judged by how far the others' are.

An honest client's update is about as long as the others'. One that is much longer is refused and named: whatever
finite numbers it holds, they never get into a sum. The bound is a multiple of the median length, wider where the
middle half of all lengths is wide, where there are few to compare with, where several clients go equally far, and for
clients with more examples, who may take more steps. It is the same for every order in which replies come: lengths are
compared in steps of a fourth root of 2 (`levels`), so that sums of replies that arrive one by one can be kept apart
until all lengths are known.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Share, Shares
from corymb.core.one_pass import in_one_pass
from corymb.core.sums import Sums, type_of_sum
from corymb.trees import Params, Tree, leaves, map_tensors, on_cpu

STEPS = 4
"""Levels of length for every factor of 2."""
LEAD = 2.8
"""An update may be this many times as long as the median of the others' (one client of ten who goes three times as far
backwards already costs its cluster a point or two of accuracy), ..."""
FEW = 30.0
"""... or more where there are few others, by this over the cube of their number (twice as much for three of them, 1.04
times for nine), or ..."""
FENCE = 5.0
"""... longer than three quarters of them by this many times the width of their middle half: Tukey's fence, far out."""
LARGER = 10.0 / LEAD
"""A client with more examples than is usual may go farther by as much, up to this: it may have taken more steps."""
HANDFUL = 5
"""Among no more clients than this nobody can say what is usual: thirty times the median is refused, and no less. Of
five shares one that is far dearer is no bad client."""
CROWD = 30.0
"""Up to so many times the median, updates that are not alone in their length count: a small cluster's clients are all
far from a model that was trained for others, and a rule against one bad client must not shut them out. So does one that
is about as long as another that counts: where clients differ (one of 48 states is California), lengths rise by degrees.
"""
KIN = 2.0
"""Two updates are of about the same length if neither is more than this many times the other."""
STILL = 1e-3
"""An update shorter than this part of the model is never too long: near the optimum others' are next to nothing."""
ALONE = 100.0
"""Whoever is alone in a cluster may go this much farther: nobody else's model is at stake."""
PAIR = 10.0
"""Of two in a cluster, the longer may be this many times the shorter, where that is more than the others'."""
UNKNOWN = 1000.0
"""Of sums whose values start from no model, the multiple of the median that is refused; or of the models, if loose."""
ROUNDING = 1 + 1e-4
"""A length that is to be just so may be so much longer, in low precision."""
IN_CACHE = 2**19
"""Numbers that are compared at once on a CPU: its memory is slow, and new memory slower."""
ON_GPU = 2**27
"""The same on a GPU, where they take memory beside the models."""
TOGETHER = 64
"""Rows that are compared at once however wide they are, a part of each: fewer calls for many wide rows."""
NEVER = 2**31
"""A level that no length reaches."""


class Near(NamedTuple):
    """The models that replies are expected near: k rows, one for each sum."""

    models: Params
    by: Tensor | None = None
    """n k, where a client starts from a mixture of models: the shares of each client asked. Else its own weights."""
    loose: bool = False
    """Whether only a thousand times the others' is too far: for what need not be near, but of the same size."""
    most: float | None = None
    """A length that is known to be the longest: then nobody is compared with others."""
    apart: bool = False
    """Whether what a client sends for several sums is made of other examples each: then sums are reduced one by one,
    and there may be further ones beside the models'."""
    handful: bool = False
    """Whether the whole federation has no more than `HANDFUL` clients."""

    def at(self, places: Tensor) -> Near:
        """For the clients at these places of those asked."""
        return self if self.by is None else self._replace(by=self.by[places.to(self.by.device)])


class Lengths(NamedTuple):
    """How long each reply's update is, and which sum it goes into: -1 for several."""

    length: Tensor  # n, float64
    group: Tensor  # n

    def allowing(self, larger: Tensor) -> Lengths:
        """As long as they count, for clients with so many times the usual number of examples."""
        return self._replace(length=self.length / larger.clamp(1, LARGER).to(self.length))

    @staticmethod
    def none(n: int) -> Lengths:
        """Of replies that have no length to compare."""
        return Lengths(torch.zeros(n, dtype=torch.float64), torch.full((n,), -1))


class Apart(NamedTuple):
    """What lengths are made of, where the replies are: a GPU is not waited for until `on_cpu` is asked for them."""

    squares: Tensor
    """Of a row's distance from its start, in each of its tensors: tensors n (k), float64."""
    weight: Tensor
    """What each row says it weighs in every sum, n k; or 1 where nothing is added up."""
    models: Tensor | None
    """The lengths of the tensors of the models that are near: tensors k, float64."""


def measured(rows: Tree, near: Near | None, clients: int, *, known: bool = False) -> Apart | None:
    """How far each of n stacked replies is from where it started; None for replies that are not compared.

    `known`: whether nobody needs the lengths of the models any longer.
    """
    if near is None and not isinstance(rows, (Share, Shares)):
        return None
    models = None if near is None or known else _model_lengths(near.models)
    if isinstance(rows, Shares):
        return _apart_together(_of_shares(rows, near), rows.weight, models)
    if isinstance(rows, Share):
        weight = rows.weight
    else:
        assert near is not None
        weight = torch.ones(clients, len(next(iter(near.models.values()))))
    by = weight if near is None or near.by is None else near.by.cpu()
    return _apart_together(_apart(_held(rows), near, by), weight, models)


def _apart_together(squares: Tensor, weight: Tensor, models: Tensor | None) -> Apart:
    """On one device: of several, the models may be on another than the replies."""
    return Apart(squares, weight, None if models is None else models.to(squares.device))


def lengths_of(found: Apart, rows: Tree, near: Near | None) -> Lengths:
    """Lengths by what was `measured` of them and is on the CPU now."""
    if isinstance(rows, Shares):
        far = torch.where(found.weight > 0, found.squares.sum(0), 0).amax(1).sqrt()
        return Lengths(far, torch.full((len(far),), -1))
    group, squares = _only_sum(found.weight), found.squares
    taken_for_one = isinstance(rows, Share) and near is not None and near.by is None and found.weight.shape[1] > 1
    if taken_for_one and rows.weight.device.type != "cpu" and bool((group < 0).any()):
        squares = _apart(_held(rows), near, found.weight).cpu()  # some have started from a mixture after all
    return Lengths(squares.sum(0).sqrt(), group)


def row_lengths(rows: Tree, near: Near | None, clients: int) -> Lengths | None:
    """How far each of n stacked replies is from where it started; None for replies that are not compared."""
    found = measured(rows, near, clients)
    return None if found is None else lengths_of(on_cpu(found), rows, near)


def _held(rows: Tree) -> Tree:
    """What replies hold: their `value`, or, of named tuples without one, all of them by name."""
    if hasattr(rows, "value"):
        return rows.value
    return rows._asdict() if hasattr(rows, "_asdict") else rows


def largest_possible(
    rows: Tree, near: Near | None, lengths: Lengths, models: Tensor | None = None, weight: Tensor | None = None
) -> Tensor | None:
    """What no number of a row's value can be larger than, if it is as far as this from where it started: n.

    `models` are the lengths of the models that are near, and `weight` the rows' weights on the CPU, where those are
    known. None where lengths do not tell. One that is no number has no length: NaN goes through.
    """
    length = 2 * LARGER * lengths.length  # before it was made shorter; rounding in float32 is far less than twice
    if not isinstance(rows, Share) or not isinstance(rows.value, dict):
        return None
    if near is None:
        return length
    if rows.value.keys() != near.models.keys():
        return None
    by = (rows.weight if weight is None else weight) if near.by is None else near.by
    between = (by >= 0).all(1).cpu() | (_only_sum(by) >= 0)  # or else what it started from may be any length
    models = model_lengths(near.models) if models is None else models
    return torch.where(between, length + 2 * models.amax(), math.inf)


def part_lengths(sums: Sums[Tree], near: Near | None, clients: int) -> Lengths:
    """How far the means of a host's partial sums are from where its clients started, said once for each of them."""
    if not sums.weight.numel():
        return Lengths.none(clients)
    used = sums.weight > 0
    weight = torch.where(used, sums.weight, 1).double()
    mean = map_tensors(lambda v: v.double() / weight.to(v.device).reshape(-1, *[1] * (v.dim() - 1)), sums.total)
    by = torch.eye(len(weight)) if near is None or near.by is None else near.by.double().mean(0).expand(len(weight), -1)
    apart = torch.where(used.cpu(), _apart(mean, near, by).cpu().sum(0).sqrt(), 0)
    group = _only_sum(sums.weight[None])
    return Lengths(apart.amax().expand(clients), group.expand(clients))


def misfit(rows: Tree, near: Near, *, summed: bool = False) -> str | None:
    """Why stacked replies or sums cannot be near the models: they must hold what those hold, into as many sums.

    Most clients' form is no measure where few are asked: all members of a small cluster may be bad.
    """
    value, models = (rows.total if summed else _held(rows)), near.models
    lead, k = (2 if isinstance(rows, Shares) else 1), len(next(iter(models.values()), ()))
    if (summed or isinstance(rows, (Share, Shares))) and rows.weight.shape[-1] != k:
        return f"reply goes into {rows.weight.shape[-1]} sums, there are {k} models"
    for name, start in models.items():
        found = value.get(name) if isinstance(value, dict) else None
        if not isinstance(found, Tensor):
            return f"reply has no {name!r}, which the model has"
        kind = type_of_sum(start.dtype, rows.weight.dtype) if summed else start.dtype
        one, other = (found.dtype, list(found.shape[lead:])), (kind, list(start.shape[1:]))
        if one != other:
            said = (f"{str(dtype).removeprefix('torch.')}{shape}" for dtype, shape in (one, other))
            return "{!r} of the reply is {}, of the model {}".format(name, *said)
    named = not summed and not isinstance(rows, dict) and not hasattr(rows, "value")
    more = next((name for name in value if name not in models), None)
    if more is None or near.apart or named:  # a named tuple's other fields are what else it says
        return None
    return f"reply has {str(more)[:80]!r}, which the model has not"


def _of_shares(rows: Shares[Tree], near: Near | None) -> Tensor:
    """The squares of what every row has for each sum: tensors n k."""
    shape, found = rows.weight.shape, [torch.zeros_like(rows.weight, dtype=torch.float64)]
    if near is None:
        found += [_wide(leaf).reshape(*shape, -1).square().sum(2).double() for leaf in _filled(rows.value)]
    else:
        for name, start in near.models.items():
            leaf = _wide(rows.value[name])
            found.append((leaf - start.to(leaf)).reshape(*shape, -1).square().sum(2).double())
    return torch.stack(found)


def _filled(value: Tree) -> list[Tensor]:
    return [leaf for leaf in leaves(value) if leaf.numel()]


def _apart(value: Tree, near: Near | None, by: Tensor) -> Tensor:
    """The squares of a row, or of its difference from its mixture of models: tensors n.

    Shares that are on a GPU are not looked at: there every row is taken to have started from one model.
    """
    if near is None:
        far = [torch.linalg.vector_norm(_wide(leaf).reshape(len(by), -1), dim=1) for leaf in _filled(value)]
    else:
        mixture = _mixture(by)
        far = []
        for name, start in near.models.items():
            leaf, starts = _wide(value[name]).reshape(len(by), -1), _wide(start).reshape(len(start), -1)
            far.append(_distances(leaf, starts.to(leaf), mixture))
    if not far:
        return torch.zeros(1, len(by)).double()
    return torch.stack([torch.zeros_like(far[0]), *far]).double().square()


class _Mixture(NamedTuple):
    """Which starts the rows have: shares of all of them, or one each."""

    share: Tensor | None  # n k
    only: Tensor | None  # n; None where there is one start for all

    def of(self, starts: Tensor, rows: slice) -> Tensor:
        """The starts of some rows."""
        if self.share is not None:
            return self.share[rows].to(starts) @ starts
        return starts if self.only is None else starts.index_select(0, self.only[rows].to(starts.device))


def _mixture(by: Tensor) -> _Mixture:
    if by.shape[1] == 1:
        return _Mixture(None, None)
    if by.device.type != "cpu":
        return _Mixture(None, (by != 0).int().argmax(1))
    only = _only_sum(by)
    if len(only) and int(only.min()) < 0:
        return _Mixture(by.double() / by.sum(1, keepdim=True).clamp_min(1e-300).double(), None)
    return _Mixture(None, only)


def _distances(rows: Tensor, starts: Tensor, mixture: _Mixture) -> Tensor:
    """The distance of every row from its mixture of the starts: n."""
    n, width = rows.shape
    at_once = IN_CACHE if rows.device.type == "cpu" else ON_GPU
    if mixture.share is None and (found_at_once := in_one_pass(rows, starts, mixture.only)) is not None:
        return found_at_once.sqrt()
    if rows.numel() <= at_once:
        whole: Tensor = torch.linalg.vector_norm(rows - mixture.of(starts, slice(None)), dim=1)
        return whole
    few = min(n, max(TOGETHER, at_once // width))
    found = []
    for first in range(0, n, few):
        here = slice(first, first + few)
        total = rows.new_zeros(len(rows[here]), dtype=torch.float64)
        for some, begun in zip(rows[here].split(at_once // few, 1), starts.split(at_once // few, 1), strict=True):
            total += torch.linalg.vector_norm(some - mixture.of(begun, here), dim=1).double().square()
        found.append(total)
    return torch.cat(found).sqrt()


def _wide(leaf: Tensor) -> Tensor:
    return leaf if leaf.dtype == torch.float64 else leaf.float()


def _only_sum(weight: Tensor) -> Tensor:
    """The sum that each row's weights go into; -1 where there are several, or none."""
    used = weight.cpu() != 0
    if not used.shape[1]:
        return torch.full((len(used),), -1)
    return torch.where(used.sum(1) == 1, used.long().argmax(1), -1)


# ---- what is too long


def levels(lengths: Tensor) -> Tensor:
    """Lengths in steps, from below: n."""
    return (STEPS * lengths.clamp_min(1e-300).log2()).floor().long()


class Bounds(NamedTuple):
    """The highest level that counts, for all clients and by the sum that they belong to; and what is usual."""

    everybody: int
    by_group: dict[int, int]
    usual: float

    def over(self, level: Tensor, group: Tensor) -> Tensor:
        """Which replies are too far."""
        most = [self.by_group.get(number, self.everybody) for number in group.tolist()]
        return level > torch.tensor(most, dtype=torch.int64)

    def reason(self, length: float) -> str:
        """Why a reply is refused."""
        times = length / self.usual if self.usual > 0 else math.inf
        return f"update is {times:.3g} times as long as is usual"


def bounds(found: Lengths, near: Near | None, models: Tensor | None = None) -> Bounds:
    """What the lengths of all replies that could count say of the longest of them.

    `models` are the lengths of the models that are near, where those are known.
    """
    length, group = found
    if near is not None and near.most is not None:
        return Bounds(_level(near.most * ROUNDING), {}, near.most)
    models = model_lengths(near.models) if models is None and near is not None else models
    still = 0.0 if models is None else STILL * float(models.amax())
    if near is None or near.loose:
        usual = _quantile(_others(length), 0.5)
        size = 0.0 if models is None else _quantile(models.sort().values, 0.5)
        return Bounds(_level(UNKNOWN * max(usual, size)), {}, usual)
    most, usual = max(_most(length), still), _quantile(_others(length), 0.5)
    most = max(most, CROWD * usual) if near.handful else most
    by_group = {}
    for number in group.unique().tolist():
        members = length[group == number]
        if number >= 0:
            few = ALONE * most if len(members) == 1 else PAIR * float(members.amin())
            by_group[number] = _level(max(most, few if len(members) < 3 else _most(members)))
    return Bounds(_level(most), by_group, usual)


def plainly_near(found: Apart, near: Near | None, larger: Tensor, room: float) -> Tensor | None:
    """Whether lengths alone say that nobody is too far and no number is larger than `room`, where the replies are.

    They do where all have moved, by one model each, and the longest is within what every bound allows: then neither
    bounds nor numbers need be looked at. None where such a look can never say so. `larger` as for `Lengths.allowing`.
    """
    usual = near is not None and near.by is None and near.most is None and not near.loose
    if not usual or found.models is None or len(larger) < 3:
        return None
    weight = found.weight
    allowed = larger.clamp(1, LARGER).to(found.squares.device, non_blocking=True)
    rising = (found.squares.sum(0).sqrt() / allowed).sort().values
    longest, middle = rising[-1], rising[(len(rising) - 1) // 2]  # the median of the others
    one_model = ((weight > 0).sum(1) == 1).all() & (weight >= 0).all()
    fits = 2 * LARGER * longest + 2 * found.models.square().sum(0).sqrt().amax() <= room  # as in `largest_possible`
    return one_model & fits & (rising[0] > 0) & (longest <= LEAD * middle)


def too_far(found: Lengths, near: Near | None, models: Tensor | None = None) -> tuple[Tensor, Bounds] | None:
    """Which replies are too far, and by what bounds; None where nobody is."""
    limit = bounds(found, near, models)
    far = limit.over(levels(found.length), found.group)
    return (far, limit) if bool(far.any()) else None


def longest_beside(rows: Params, start: Params) -> float | None:
    """How long the update of one may be who answers after these have been accepted; None where they show nothing."""
    found = row_lengths(rows, Near(start), len(next(iter(rows.values()))))
    lengths = torch.zeros(0) if found is None else found.length
    if not bool((lengths > 0).any()):
        return None
    return max(LEAD * _quantile(_others(lengths), 0.5), KIN * float(lengths.max()))


def _most(lengths: Tensor) -> float:
    """The longest that may count, by all lengths but the longest itself."""
    rest = _others(lengths)
    if len(rest) < 2:  # of two clients, either may be the odd one
        return math.inf
    low, middle, high = (_quantile(rest, part) for part in (0.25, 0.5, 0.75))
    most = max(LEAD * (1 + FEW / len(rest) ** 3) * middle, high + FENCE * (high - low))
    rising: list[float] = lengths[lengths <= CROWD * middle].sort().values.tolist()
    for shorter, longer in pairwise(rising):  # by degrees: each about as long as one that counts
        most = longer if shorter <= most < longer <= KIN * shorter else most
    beyond = [length for length in rising if length > most]
    kin = [longer for shorter, longer in pairwise(beyond) if longer <= KIN * shorter]
    return max([most, *kin])


def _others(lengths: Tensor) -> Tensor:
    """All but the longest, rising; those who did not move at all, having no examples perhaps, are no yardstick."""
    return lengths[lengths > 0].sort().values[:-1]


def _quantile(rising: Tensor, part: float) -> float:
    """A length that is there, the nearest: no huge one is mixed in."""
    return float(rising[int(part * (len(rising) - 1) + 0.5)]) if len(rising) else 0.0


def _level(length: float) -> int:
    """No bound where there is nothing to compare with: nobody else, or nobody else who moved."""
    return int(levels(torch.tensor(length, dtype=torch.float64))) if 0 < length < math.inf else NEVER


def model_lengths(models: Params, found: Tensor | None = None) -> Tensor:
    """The Euclidean length of each of k models: k, float64, on the CPU; by its tensors' where those are `found`."""
    lengths: Tensor = (_model_lengths(models).cpu() if found is None else found).square().sum(0).sqrt()
    return lengths


def _model_lengths(models: Params) -> Tensor:
    """The lengths of the tensors of each of k models: tensors k, float64."""
    rows = [_wide(value).reshape(len(value), -1) for value in models.values()]
    lengths = [torch.linalg.vector_norm(row, dim=1) for row in rows if row.numel()]
    return torch.stack(lengths).double() if lengths else torch.zeros(1, len(rows[0])).double()
