"""Linear models for clients with few examples: averages over a path of penalties, weighted by validation error.

A client's few examples do not determine how large coefficients should be, so a path of L2 penalties α is tried. For the
squared loss the objective is Σ (y − ŷ)² + α ‖θ‖², solved exactly; for cross-entropy it is Σ loss + (α/2) ‖θ‖². The
intercept is unpenalised; for the squared loss, a second path penalises it like the rest, which keeps it near 0, the
mean target of all clients. The result is not the best of these models but their mean, weighted by their errors on
examples left out: few examples rarely tell which one is best, and a mean of linear models is a linear model. For the
squared loss, each penalty is also weighted by the degrees of freedom between it and its neighbours: with fewer examples
than features, all weak penalties give the same interpolating model, which would otherwise be counted many times.

Everything is computed at the client from its own examples. A client with a single label, or a single example, always
predicts that label or target.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from corymb.core.objective import Examples
from corymb.local.held_out import hold_out

PENALTIES = torch.logspace(4, -4, 9, dtype=torch.float64)
"""Penalties α for the squared loss, strongest first; losses are summed over examples, features are standardised."""
CLASS_PENALTIES = torch.logspace(3, -2, 6, dtype=torch.float64)
"""Penalties α for cross-entropy, strongest first."""
HELD_OUT_PARTS = 8
"""The number of held-out parts, a quarter of the examples each, on which penalties for cross-entropy are compared."""
STEPS_PER_PENALTY = 15
"""Steps at each penalty for cross-entropy, warm-started at the solution for the previous one."""
INTERCEPT_PENALTY = 1e-2
"""The penalty on intercepts for cross-entropy: without one, a client with a single label has no minimiser."""
CONFIDENCE = 0.5
"""The factor on log-likelihoods of examples left out; 1 would be right if their errors were independent."""
NEGLIGIBLE_ERROR = 1e-8
"""Errors, relative to the targets, and differences of logits below this count as 0."""


def ridge(on: Examples, *, intercept: bool) -> Tensor:
    """Coefficients θ of a linear regression of y on x (m d): d values, followed by the intercept if there is one.

    Penalties are weighted by leave-one-out errors, which for least squares are known in closed form.
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
    log_weight = -CONFIDENCE * weight.sum() / 2 * (squares / scale + NEGLIGIBLE_ERROR).log()
    portion = (log_weight + (votes + NEGLIGIBLE_ERROR).log()).softmax(0)
    return (thetas @ portion).to(on.x)


def _path(x: Tensor, y: Tensor, weight: Tensor, *, free: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Ridge regression for each of a penalties α.

    Arguments:
        x: Features, m d.
        y: Targets, m.
        weight: Weights of the examples, m.
        free: Whether to fit an unpenalised intercept.

    Returns:
        Coefficients (d a; with `free` d + 1 a, the intercept last), the sums of squared leave-one-out errors (a), and
        the degrees of freedom that each α accounts for (a).
    """
    total = weight.sum().clamp_min(torch.finfo(weight.dtype).tiny)
    centre, level = (weight @ x / total * free, weight @ y / total * free)
    x, y, root = x - centre, y - level, weight.sqrt()[:, None]
    values, vectors = torch.linalg.eigh((x.mT * weight) @ x)
    gain = 1 / (values.clamp_min(0)[:, None] + PENALTIES.to(x))  # d a
    along = x @ vectors  # m d
    thetas = gain * (along.mT @ (weight * y))[:, None]
    leverage = weight[:, None] * (along.square() @ gain + free / total)  # m a
    left_out = root * (y[:, None] - along @ thetas) / (1 - leverage).clamp_min(NEGLIGIBLE_ERROR)
    thetas = vectors @ thetas
    thetas = torch.cat([thetas, (level - centre @ thetas)[None]]) if free else thetas
    freedom = free + (values.clamp_min(0)[:, None] * gain).sum(0)
    between = torch.cat([torch.zeros_like(freedom[:1]), (freedom[1:] + freedom[:-1]) / 2, freedom[-1:]])
    return thetas, left_out.square().sum(0), between.diff()


def logistic(on: Examples, classes: int, *, shares: Tensor | None = None) -> Tensor:
    """Coefficients of the c classes' logits for x (m d) and labels y: c d + 1, intercepts last.

    Penalties are weighted by errors on held-out parts. `shares` (m c) are soft targets to fit instead of the labels.
    """
    x, y, weight = on.x.to(_wide(on.x)), on.y, on.weight.to(_wide(on.x))
    parts = [hold_out(on._replace(weight=weight), turn=turn) for turn in range(HELD_OUT_PARTS)]
    kept = torch.stack([*(part.kept.weight for part in parts), weight])  # the last row keeps all examples
    held = torch.stack([part.held.weight for part in parts])
    x, right = torch.cat([x, torch.ones_like(x[:, :1])], 1), one_hot(y, classes).to(x)
    targets = right if shares is None else shares.to(x)
    theta, thetas, errors = _frequencies(kept @ targets, x.shape[1]), [], []
    for alpha in CLASS_PENALTIES.to(x):
        theta = _descend(theta, x, targets, kept, alpha)
        wrong = _wrong(x @ theta[:-1].mT, right)
        errors.append((wrong * held).sum() / held.sum().clamp_min(1))
        thetas.append(theta[-1])
    portion = (-2 * CONFIDENCE * weight.sum() * torch.stack(errors)).softmax(0)
    mean: Tensor = torch.tensordot(portion, torch.stack(thetas), dims=1)
    return mean.to(on.x)


def _wrong(logits: Tensor, right: Tensor) -> Tensor:
    """The 0-1 loss of logits (... c) for one-hot labels; a tie between the right class and another counts one half."""
    true = (logits * right).sum(-1)
    other = torch.where(right > 0, -torch.inf, logits).amax(-1)
    return ((other > true + NEGLIGIBLE_ERROR).to(true) + (other > true - NEGLIGIBLE_ERROR).to(true)) / 2


def _frequencies(counts: Tensor, d: int) -> Tensor:
    """f models (f c d) that predict class frequencies, from counts (f c): all coefficients but the intercept are 0."""
    share = (counts + INTERCEPT_PENALTY).log()
    level = share - share.mean(-1, keepdim=True)
    return torch.cat([level.new_zeros(*level.shape, d - 1), level[..., None]], -1)


def _descend(theta: Tensor, x: Tensor, targets: Tensor, weight: Tensor, alpha: Tensor) -> Tensor:
    """`STEPS_PER_PENALTY` majorisation steps for f models (f c d) with weights f m; the penalised loss never increases.

    Σ x xᵀ / 2 bounds the Hessian in each class's coefficients, so one inverse serves all steps.

    Böhning: Multinomial Logistic Regression Algorithm. Annals of the Institute of Statistical Mathematics 1992.
    """
    penalty = torch.cat([alpha.expand(x.shape[1] - 1), alpha.new_full((1,), INTERCEPT_PENALTY)])
    inverse = torch.linalg.inv((x.mT * weight[:, None]) @ x / 2 + torch.diag(penalty))  # f d d
    for _ in range(STEPS_PER_PENALTY):
        wrong = ((x @ theta.mT).softmax(-1) - targets) * weight[..., None]  # f m c
        theta = theta - (wrong.mT @ x + penalty * theta) @ inverse
    return theta


def _wide(x: Tensor) -> torch.dtype:
    return x.dtype if x.device.type == "mps" else torch.float64
