"""The settings of private averaging.

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018: updates of bounded
length, Gaussian noise in their sum, a fixed denominator, clients drawn independently.
"""

from __future__ import annotations

from dataclasses import dataclass

from corymb.settings import check_types, require

NOISE = (1e-3, 1e6)
"""The range of noise multipliers for which ε can be computed; with the least it is a million per round."""
LONGEST = 1e18
"""The longest update that a single-precision sum of clients can hold."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Differential privacy of clients: ε and δ bound what a run's models reveal about any one of them.

    The server adds the noise, and must be trusted with each client's update. Neighbours: the same clients, one of which
    contributes nothing.
    """

    noise: float
    """Standard deviation of the noise in a sum of updates, in units of `clip`: the noise multiplier z."""
    clip: float | None = None
    """Updates longer than this are clipped to this length, at the client; without noise it may be omitted."""
    epsilon: float | None = None
    """The budget: the run ends before it spends more. By default there is no limit, and the spent ε is reported."""
    delta: float = 1e-5
    """δ, less than one in the number of clients."""
    labels: float | None = None
    """ε of one report of a client's cluster, by randomised response. By default the server knows every choice."""
    least: int = 10
    """Clusters of fewer clients, by their noisy count, keep their models in that round."""
    secret: int | None = None
    """Seed of noise and draws; by default from the system, kept in checkpoints. Whoever knows it can undo them."""

    def __post_init__(self) -> None:
        check_types(self)
        least, most = NOISE
        hides = self.noise == 0 or least <= self.noise <= most
        require(hides, f"noise must be 0, or from {least:g} (less hides nobody) to {most:g}, got {self.noise}.")
        clip = self.clip
        require(clip is None or 0 < clip <= LONGEST, f"clip must be positive and at most {LONGEST:g}, got {clip}.")
        require(clip is not None or not self.noise, "noise is in units of clip: give privacy.clip as well.")
        require(self.epsilon is None or self.epsilon > 0, f"epsilon must be positive, got {self.epsilon}.")
        require(
            self.epsilon is None or self.noise > 0,
            f"epsilon={self.epsilon} cannot be kept without noise: give noise above 0, or leave epsilon out.",
        )
        require(0 < self.delta < 1, f"delta must be above 0 and below 1, got {self.delta}.")
        require(self.labels is None or 0 < self.labels < 50, f"labels must be above 0 and below 50, got {self.labels}.")
        require(self.least >= 1, f"least must be at least 1, got {self.least}.")

    def check_clients(self, n: int) -> None:
        """Raise InvalidInput if the federation is too small for these settings to protect anybody."""
        require(
            n >= self.least,
            f"{n} clients are fewer than privacy.least={self.least}, too few to protect anybody: bring more clients.",
        )
        require(
            self.delta * n < 1,
            f"delta={self.delta:g} must be below 1 / {n} (one over the number of clients): lower delta.",
        )
