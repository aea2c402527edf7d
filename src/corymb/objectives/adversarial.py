"""ClusterGAN's objective: a generator of k clusters against a critic, and an encoder that recovers the cluster.

Mukherjee, Asnani, Lin, Kannan: ClusterGAN: Latent Space Clustering in Generative Adversarial Networks. AAAI 2019, with
the loss of Gulrajani et al. 2017 (Wasserstein distance with a gradient penalty), as in the authors' code for MNIST.

Latent variables are (z_n, z_c): z_n normal with standard deviation 0.1, z_c one of k clusters. In every step, each
training example gets its own latent variable and interpolation from its own keys, so that an example's loss does not
depend on other examples. One of `critic_steps` + 1 steps trains generator and encoder, the others train the critic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import cross_entropy

from corymb.core.objective import Draws, Examples
from corymb.keys import Key, normal, uniform
from corymb.models.adversarial import CODES, Networks
from corymb.settings import require
from corymb.trees import Params, take

SPREAD = 0.1
"""Standard deviation of z_n."""


class ClusterGame:
    """ClusterGAN's adversarial training; the reported loss of an example is its squared reconstruction error."""

    score_name = "reconstruction_error"
    higher_is_better = False
    squared = None

    def __init__(
        self,
        networks: Networks,
        *,
        critic_steps: int = 5,
        penalty: float = 10.0,
        noise_weight: float = 10.0,
        cluster_weight: float = 10.0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        require(critic_steps >= 1, f"critic_steps must be at least 1, got {critic_steps}.")
        self.networks, self.critic_steps, self.penalty = networks, critic_steps, penalty
        self.noise_weight, self.cluster_weight = noise_weight, cluster_weight  # the paper's beta_n and beta_c
        self.device, self.dtype = torch.device(device), dtype

    def to(self, device: torch.device | str, dtype: torch.dtype) -> ClusterGame:
        """The same objective on another device or in another precision."""
        return ClusterGame(**self.recipe(), device=device, dtype=dtype)

    def recipe(self) -> dict[str, Any]:
        """The arguments that recreate this objective: see `corymb.objectives.recipe`."""
        names = ("networks", "critic_steps", "penalty", "noise_weight", "cluster_weight")
        return {name: getattr(self, name) for name in names}

    def init(self, key: Key) -> Params:
        """Fresh networks for one cluster; `joined` turns k of them into one model of k clusters."""
        return {name: value.to(self.device, self.dtype) for name, value in self.networks.init(key.cpu()).items()}

    def training_losses(self, params: Params, examples: Examples, draws: Draws) -> Tensor:
        """The loss of generator and encoder in every (`critic_steps` + 1)-th step from the first, else the critic's.

        The networks that are not trained in a step have gradient 0.
        """
        x, held = examples.x.flatten(1), {name: value.detach() for name, value in params.items()}
        noise, cluster, place = self.latent(draws.keys(len(x)), params)
        if draws.step % (self.critic_steps + 1) == 0:
            made = self.networks.generate(params, noise, cluster)
            code = self.networks.encode(params, made)
            noise_error = (noise - code.noise).square().mean(-1)
            cluster_error = cross_entropy(code.logits, cluster, reduction="none")
            judged = self.networks.judge(held, made)
            return self.noise_weight * noise_error + self.cluster_weight * cluster_error - judged
        made = self.networks.generate(held, noise, cluster)
        slope = grad(lambda at: self.networks.judge(params, at).sum())(place * x + (1 - place) * made)
        steepness = (slope.square().sum(-1) + 1e-12).sqrt()
        score_gap = self.networks.judge(params, made) - self.networks.judge(params, x)
        losses: Tensor = score_gap + self.penalty * (steepness - 1).square()
        return losses

    def latent(self, key: Key, params: Params) -> tuple[Tensor, Tensor, Tensor]:
        """z_n, z_c and an interpolation weight in [0, 1) for each key. One draw serves all three, to save time."""
        k, q = params[CODES[0]].shape[0], self.networks.noise
        drawn = uniform(key, (q + 2,), torch.float64)
        noise = SPREAD * torch.special.ndtri(drawn[..., :q] + 2.0**-54)  # never exactly 0, where ndtri is infinite
        return noise.to(self.dtype), (drawn[..., q] * k).long(), drawn[..., q + 1 :].to(self.dtype)

    def space(self, params: Params, x: Tensor) -> Tensor:
        """The encoder's latent variables of examples: z_n, then the logits of k clusters."""
        return torch.cat(self.networks.encode(params, x.flatten(1)), -1)

    def label_points(self, models: Params, x: Tensor) -> Tensor:
        """The cluster of each example: the encoder's most likely code."""
        return self.networks.encode(take(models, 0), x.flatten(1)).logits.argmax(-1)

    def sample_cluster(self, models: Params, cluster: int, key: Key, n: int) -> Tensor:
        """n new examples of a cluster's code, as vectors."""
        noise = SPREAD * normal(key.cpu(), (n, self.networks.noise), self.dtype).to(self.device)
        return self.networks.generate(take(models, 0), noise, torch.full((n,), cluster, device=self.device))

    def predict(self, params: Params, x: Tensor) -> Tensor:
        """The reconstructions of examples from their latent variables, as vectors."""
        code = self.networks.encode(params, x.flatten(1))
        return self.networks.generate(params, code.noise, code.logits.argmax(-1))

    def losses(self, params: Params, examples: Examples) -> Tensor:
        """The mean squared reconstruction error of each example."""
        return self.grade(self.predict(params, examples.x), examples)

    scores = losses

    def mix(self, predictions: Tensor, weights: Tensor) -> Tensor:
        """The mean of several models' reconstructions."""
        mean: Tensor = torch.tensordot(weights.to(predictions), predictions, dims=1)
        return mean

    def grade(self, predictions: Tensor, examples: Examples) -> Tensor:
        """The mean squared error of each example."""
        return (predictions - examples.x.flatten(1)).square().mean(-1)

    def describe(self) -> str:
        """A description of the objective, for fingerprints and run records."""
        weights = f"penalty {self.penalty:g}, weights {self.noise_weight:g} and {self.cluster_weight:g}"
        return f"ClusterGAN by {self.networks.describe()}; {self.critic_steps} steps of the critic, {weights}"


def joined(models: list[Params]) -> Params:
    """One model of k clusters from k models of one cluster each: the first model, with the codes of all."""
    return {
        name: torch.cat([one[name] for one in models]) if name in CODES else value for name, value in models[0].items()
    }
