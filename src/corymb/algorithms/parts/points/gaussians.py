"""The affine flow at its optimum: a Gaussian for every cluster, from one sum of counts, Σx and Σxxᵀ."""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.algorithms.parts.points.centres import space_of
from corymb.algorithms.parts.points.labels import members
from corymb.core.client import Client, Shares, on_client
from corymb.core.sums import Sums
from corymb.models.flows.affine import Affine
from corymb.trees import Params

MEAN, SQUARE = "mean x", "mean x xᵀ"


@on_client
def relabel_and_sum(client: Client, models: Params, *, relabel: bool, prior: bool, least: int) -> Shares[tuple[()]]:
    """The means of x and x xᵀ over the client's examples of each cluster; the server gets only weighted sums.

    Of a cluster with fewer than `least` examples here nothing is sent: the sum of one example is the example.
    """
    own = members(client, models, relabel=relabel, prior=prior)
    x = space_of(client, models, client.train.x)
    enough = own.number >= least
    portion = torch.where(enough[:, None], own.weight / own.number.clamp_min(1)[:, None], 0)  # k m
    square = (portion.unsqueeze(-1) * x).mT @ x  # k d d
    return Shares({MEAN: portion @ x, SQUARE: square, **own.said}, weight=torch.where(enough, own.number, 0))


def fit_gaussians(models: Params, sums: Sums[tuple[()]], shrinkage: float) -> Params:
    """The likeliest Gaussian of each cluster, its covariance drawn to a round one; empty clusters keep theirs.

    The round one has the mean variance of all clusters, so that a cluster of few examples has volume too.
    """
    weight = sums.weight.double()
    some = weight > 0
    number = torch.where(some, weight, 1)
    mean = sums.total[MEAN].double() / number[:, None]
    covariance = sums.total[SQUARE].double() / number[:, None, None] - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    d = mean.shape[-1]
    variance = (covariance.diagonal(dim1=-2, dim2=-1).mean(-1) * weight).sum() / weight.sum().clamp_min(1)
    round_one = torch.eye(d).to(covariance) * variance.clamp_min(1e-12)
    least = 1e-6  # noiseless examples in a subspace have no density without it
    covariance = (1 - shrinkage) * covariance + max(shrinkage, least) * round_one
    covariance = torch.where(some[:, None, None], covariance, round_one)
    fitted = Affine.gaussian(mean, covariance)
    return {**models, **{name: _where(some, value.to(models[name]), models[name]) for name, value in fitted.items()}}


def _where(some: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(some.to(old.device).reshape(-1, *[1] * (old.dim() - 1)), new, old)
