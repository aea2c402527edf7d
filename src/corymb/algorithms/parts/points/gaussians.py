"""The affine flow at its optimum: a Gaussian for every cluster, from one sum of counts, Σx and Σxxᵀ."""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.algorithms.parts.points.centres import space_of
from corymb.algorithms.parts.points.labels import members
from corymb.core.client import Client, Shares, on_client
from corymb.core.sums import Sums
from corymb.models.flows.affine import Affine
from corymb.objectives.measures import wide
from corymb.trees import Params, align_leading

MEAN, SQUARE = "mean x", "mean x xᵀ"


@on_client
def relabel_and_sum(client: Client, models: Params, *, relabel: bool, prior: bool, least: int) -> Shares[tuple[()]]:
    """The means of x and x xᵀ over the client's examples of each cluster; the server gets only weighted sums.

    Of a cluster with fewer than `least` examples here nothing is sent: the sum of one example is the example.
    """
    own = members(client, models, relabel=relabel, prior=prior)
    x = wide(space_of(client, models, client.train.x))  # far from zero, x xᵀ has more digits than float32
    enough = own.number >= least
    portion = torch.where(enough[:, None], wide(own.weight) / own.number.clamp_min(1)[:, None], 0)  # k m
    square = (portion.unsqueeze(-1) * x).mT @ x  # k d d
    return Shares({MEAN: portion @ x, SQUARE: square, **own.extra}, weight=torch.where(enough, own.number, 0))


def fit_gaussians(models: Params, sums: Sums[tuple[()]], shrinkage: float) -> Params:
    """The maximum-likelihood Gaussian of each cluster, with its covariance shrunk; empty clusters keep theirs.

    Covariances are shrunk to a spherical one with the mean variance of all clusters, so that clusters of few examples
    are not degenerate.
    """
    weight = sums.weight.double()
    used = weight > 0
    number = torch.where(used, weight, 1)
    mean = sums.total[MEAN].double() / number[:, None]
    covariance = sums.total[SQUARE].double() / number[:, None, None] - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    d = mean.shape[-1]
    variance = (covariance.diagonal(dim1=-2, dim2=-1).mean(-1) * weight).sum() / weight.sum().clamp_min(1)
    spherical = torch.eye(d).to(covariance) * variance.clamp_min(1e-12)
    least = 1e-6  # examples in a subspace would have no density otherwise
    covariance = (1 - shrinkage) * covariance + max(shrinkage, least) * spherical
    covariance = torch.where(used[:, None, None], covariance, spherical)
    fitted = Affine.gaussian(mean, covariance)
    return {**models, **{name: _where(used, value.to(models[name]), models[name]) for name, value in fitted.items()}}


def _where(used: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(align_leading(used.to(old.device), old), new, old)
