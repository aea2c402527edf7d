"""Test cases for `corymb advise`: data for which the right advice is known. `benchmarks/advise.py` runs them.

Every case is a function of a seed. Two use the library's digits; two are linear regressions with known parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from corymb.data.built_in.digits import digits, digits_iid
from corymb.data.built_in.synthetic import mixed_regression, mixed_regression_ifca
from corymb.data.dataset import FederatedDataset
from corymb.runs.advising.verdict import Verdict


@dataclass(frozen=True)
class Case:
    """Data with the right advice."""

    make: Callable[[int], FederatedDataset]
    about: str
    verdict: Verdict
    clusters: int
    """The expected `Advice.clusters`."""


def own_lines(seed: int, *, n: int = 20, m: int = 120, d: int = 10) -> FederatedDataset:
    """Every client has its own line, at distance 1 from a common one, and enough examples to find it."""
    return mixed_regression(seed, n=n, m=m, d=d, k=1, within=2.0, name="own-lines")


def near_lines(seed: int, *, n: int = 40, m: int = 150, d: int = 10) -> FederatedDataset:
    """Two groups whose lines are 0.4 apart: the true clusters would reduce an error that is mostly noise by 4 %."""
    made = mixed_regression_ifca(seed, n=n, m=m, d=d, k=2, sigma=1.0, separation=0.4)
    return replace(made, name="near-lines")


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "digits": Case(digits, "80 clients in 4 groups by rotation", "clusters", 4),
        "digits-iid": Case(digits_iid, "20 clients alike", "one-model", 1),
        "own-lines": Case(own_lines, "20 clients, each with a line of its own", "alone", 0),
        "near-lines": Case(near_lines, "2 groups of 20 clients, lines .4 apart, noise 1", "one-model", 1),
    }
)
