"""Coordinates in which all clients' standardised features have second moment I, for descent on a linear model.

Correlated features (a distance and the time it takes) leave directions in which the loss is almost flat: the number of
steps that descent needs grows with the ratio of the largest to the least curvature. With Σ the mean of z zᵀ, models
φ = (Σ + εI)^{1/2} θ of features (Σ + εI)^{-1/2} z have no such directions. Every client sends its own mean of z zᵀ; the
server gets only the sum over all clients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.objective import Objective
from corymb.objectives.linear_form import linear_form, logit_form
from corymb.objectives.module import limited
from corymb.orthogonal import roots

MOST = 181
"""The most features for which Σ is computed: 2¹⁵ entries in a reply."""
FLOOR = 1e-4
"""ε: directions with less than this fraction of a standardised feature's variance stay flat."""


@on_client
def send_second_moment(client: Client, mean: Tensor, scale: Tensor, limit: Tensor) -> Share[tuple[()]]:
    """The mean of z zᵀ + I over the client's examples; the server gets only the sum over all clients.

    With I, replies have similar lengths even if features hardly vary at half of the clients. Those of the others would
    else count as far too long and be refused.
    """
    x, _, weight = client.train
    dtype = x.dtype if x.device.type == "mps" else torch.float64
    mean, scale, limit, weight = (value.to(x.device, dtype) for value in (mean, scale, limit, weight))
    z = limited((x.to(dtype) - mean) / scale, limit)
    portion = weight / weight.sum().clamp_min(1)
    moment = (z.mT * portion) @ z
    return Share({"zz": moment + torch.eye(len(moment)).to(moment)}, weight=weight.sum()[None])


def whitening_root(fed: Federation, mean: Tensor, scale: Tensor, limit: Tensor) -> Tensor:
    """(Σ + εI)^{-1/2}: d d. Takes a round, which is counted in the ledger."""
    found = fed.clients.sum(send_second_moment, mean, scale, limit.expand_as(mean)).value
    fed.ledger.rounds += 1
    moment = (found.total["zz"][0] / found.weight).cpu()
    moment = moment - torch.eye(len(moment)).to(moment)
    values, vectors = torch.linalg.eigh((moment + moment.mT) / 2)
    return roots(values.clamp_min(0) + FLOOR, vectors).root.float()


def can_whiten(objective: Objective, features: tuple[int, ...]) -> bool:
    """Whether an objective's models are linear in at most `MOST` features of a table."""
    form = linear_form(objective) or logit_form(objective)
    if form is None or len(features) != 1 or features[0] > MOST:
        return False
    return form.features(torch.zeros(1, *features)).shape[-1] == features[0] + form.intercept
