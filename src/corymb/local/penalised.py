"""Linear models on few examples: minimisers with penalties, weighed by how well they predict examples left out.

A client's own few examples do not say how large coefficients should be. So a path of penalties α is tried: for the
squared loss Σ (y − ŷ)² + α ‖θ‖², solved exactly, for cross-entropy Σ loss + (α/2) ‖θ‖². The intercept is free or, for
the squared loss, either: penalised like the rest it stays near everybody's mean, which is 0. What is kept is not the
best of these models but their mean, in which those that err more on examples left out count for less: few examples
seldom say which one is best, and a mean of linear models is one. Of the squared loss, a penalty counts for as many
degrees of freedom as lie between it and its neighbours: with fewer examples than features all weak penalties give one
model, which goes through every example, and that would else be counted again and again.

All of it is at the client and about its examples alone. Whoever always has one label, or has one example, predicts
that.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from corymb.core.objective import Examples
from corymb.local.held_out import hold_out

STRENGTHS = torch.logspace(4, -4, 9, dtype=torch.float64)
"""α beside a sum of squares over examples of standardised features."""
CLASS_STRENGTHS = torch.logspace(3, -2, 6, dtype=torch.float64)
"""α beside a sum of cross-entropies, strong ones first."""
TURNS = 8
"""Parts that are held out, one after the other, to judge a penalty for cross-entropy: each a quarter."""
STEPS = 15
"""Steps at each penalty for cross-entropy, from the solution for the one before."""
FREE = 1e-2
"""The penalty on intercepts for cross-entropy: without one, a client with one label has no minimiser."""
SURE = 0.5
"""How much errors of examples left out are believed; 1 would be as a likelihood is, were they independent."""
NOTHING = 1e-8
"""An error, beside the size of targets, below which models are equally good; and logits that are equally large."""


def ridge(on: Examples, *, intercept: bool) -> Tensor:
    """Coefficients θ for x (m d) and y: d of them, and the intercept where there is one.

    Errors are those of each example when it is left out, which for a minimiser of squares are known in closed form.
    """
    x, y, weight = (value.to(_wide(on.x)) for value in on)
    if not intercept:
        thetas, squares, votes = _path(x, y, weight, free=False)
    else:
        free = _path(x, y, weight, free=True)
        held = _path(torch.cat([x, torch.ones_like(x[:, :1])], 1), y, weight, free=False)
        thetas, squares, votes = (torch.cat(pair, -1) for pair in zip(free, held, strict=True))
    scale = (weight @ y.square()).clamp_min(torch.finfo(y.dtype).tiny)
    # A Gaussian of unknown variance: log-likelihood −m/2 log Σ r²
    belief = -SURE * weight.sum() / 2 * (squares / scale + NOTHING).log()
    portion = (belief + (votes + NOTHING).log()).softmax(0)
    return (thetas @ portion).to(on.x)


def _path(x: Tensor, y: Tensor, weight: Tensor, *, free: bool) -> tuple[Tensor, Tensor, Tensor]:
    """For every α: coefficients (d a; `free`: d + 1), the sum of squares of what is left out, and what α counts for."""
    total = weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)
    centre, level = (weight @ x / total * free, weight @ y / total * free)
    x, y, root = x - centre, y - level, weight.sqrt()[:, None]
    values, vectors = torch.linalg.eigh((x.mT * weight) @ x)
    gain = 1 / (values.clamp_min(0)[:, None] + STRENGTHS.to(x))  # d a
    along = x @ vectors  # m d
    thetas = gain * (along.mT @ (weight * y))[:, None]
    lever = weight[:, None] * (along.square() @ gain + free / total)  # m a
    left_out = root * (y[:, None] - along @ thetas) / (1 - lever).clamp_min(NOTHING)
    thetas = vectors @ thetas
    thetas = torch.cat([thetas, (level - centre @ thetas)[None]]) if free else thetas
    freedom = free + (values.clamp_min(0)[:, None] * gain).sum(0)
    between = torch.cat([torch.zeros_like(freedom[:1]), (freedom[1:] + freedom[:-1]) / 2, freedom[-1:]])
    return thetas, left_out.square().sum(0), between.diff()


def logistic(on: Examples, classes: int, *, shares: Tensor | None = None) -> Tensor:
    """Coefficients of each class's logit for x (m d) and labels y: c d + 1, the intercept last.

    Errors are those on parts held out in turns. `shares` (m c) are the probabilities to come near to, in place of 1
    for the label.
    """
    x, y, weight = on.x.to(_wide(on.x)), on.y, on.weight.to(_wide(on.x))
    parts = [hold_out(on._replace(weight=weight), turn=turn) for turn in range(TURNS)]
    kept = torch.stack([*(part.kept.weight for part in parts), weight])  # the last are all examples
    held = torch.stack([part.held.weight for part in parts])
    x, right = torch.cat([x, torch.ones_like(x[:, :1])], 1), one_hot(y, classes).to(x)
    targets = right if shares is None else shares.to(x)
    theta, thetas, errors = _frequencies(kept @ targets, x.shape[1]), [], []
    for alpha in CLASS_STRENGTHS.to(x):
        theta = _descend(theta, x, targets, kept, alpha)
        wrong = _wrong(x @ theta[:-1].mT, right)
        errors.append((wrong * held).sum() / held.sum().clamp_min(1))
        thetas.append(theta[-1])
    portion = (-2 * SURE * weight.sum() * torch.stack(errors)).softmax(0)
    mean: Tensor = torch.tensordot(portion, torch.stack(thetas), dims=1)
    return mean.to(on.x)


def _wrong(logits: Tensor, right: Tensor) -> Tensor:
    """1 where another class has a larger logit, half where one has the same."""
    own = (logits * right).sum(-1)
    other = torch.where(right > 0, -torch.inf, logits).amax(-1)
    return ((other > own + NOTHING).to(own) + (other > own - NOTHING).to(own)) / 2


def _frequencies(counts: Tensor, d: int) -> Tensor:
    """Models that know only how frequent classes are: f c d, from counts f c."""
    share = (counts + FREE).log()
    level = share - share.mean(-1, keepdim=True)
    return torch.cat([level.new_zeros(*level.shape, d - 1), level[..., None]], -1)


def _descend(theta: Tensor, x: Tensor, targets: Tensor, weight: Tensor, alpha: Tensor) -> Tensor:
    """Steps that never go up, for f models with weights f m: Σ x xᵀ / 2 bounds the curvature of every class's logit.

    Böhning: Multinomial Logistic Regression Algorithm. Annals of the Institute of Statistical Mathematics 1992.
    """
    penalty = torch.cat([alpha.expand(x.shape[1] - 1), alpha.new_full((1,), FREE)])
    inverse = torch.linalg.inv((x.mT * weight[:, None]) @ x / 2 + torch.diag(penalty))  # f d d
    for _ in range(STEPS):
        wrong = ((x @ theta.mT).softmax(-1) - targets) * weight[..., None]  # f m c
        theta = theta - (wrong.mT @ x + penalty * theta) @ inverse
    return theta


def _wide(x: Tensor) -> torch.dtype:
    return x.dtype if x.device.type == "mps" else torch.float64
