"""Small runs to report on, with clients whose names would do harm if a page took them for code."""

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import numpy as np

from corymb.algorithms import IFCA, UIFCA, Alone, FedAvg, FedSoft, Oracle
from corymb.algorithms.parts.saving import Saving
from corymb.data import FederatedDataset
from corymb.local import Descent
from corymb.runs.fit import fit

HARMFUL = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    "{{ 7 * 7 }}",
    "a|b *c* `d`",
    "<b>bold</b> & \"quoted\" 'name'",
    "\u2028line\u2029",
)
STEP = Descent(lr=0.5, steps=5)


@cache
def people() -> FederatedDataset:
    """Twelve clients in two groups that answer in opposite ways."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(12), 20)
    x = rng.normal(size=(len(client), 2))
    y = ((x[:, 0] > 0) ^ (client % 2 == 1)).astype(int)
    names = [*HARMFUL, *(f"client-{number}" for number in range(len(HARMFUL), 12))]
    return FederatedDataset.from_arrays(x, y, client, names=names, truth=np.arange(12) % 2)


@cache
def runs():
    """IFCA and its baselines."""
    truth = people().in_order().truth.tolist()  # as engines have the clients
    algorithms = (
        IFCA(k=2, rounds=8, restarts=2, local=STEP),
        FedAvg(rounds=4, local=STEP),
        Alone(rounds=4, local=STEP),
        Oracle(groups=truth, inner=FedAvg(rounds=4, local=STEP)),
    )
    return tuple(fit(algorithm, people(), evaluate_every=0) for algorithm in algorithms)


@cache
def saving_run():
    """IFCA that sends settled clients their own model only."""
    saving = Saving(stable_rounds=2, recheck_every=5)
    return fit(IFCA(k=2, rounds=12, local=STEP, saving=saving), people(), evaluate_every=0)


@cache
def soft_run():
    """FedSoft: every client belongs to both clusters."""
    return fit(FedSoft(k=2, rounds=4, local=STEP), people(), evaluate_every=0)


@cache
def examples_run(pictures=False):
    """Gaussians of examples: pictures of 4 by 4, or a table with a harmful column."""
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = rng.normal(size=(90, 16)) * 0.1 + np.eye(16)[5 * y]
    owner = np.arange(90) % 4
    if pictures:
        data = FederatedDataset.from_arrays(x.reshape(-1, 1, 4, 4).clip(0, 1), y, owner, task="density")
    else:
        data = replace(
            FederatedDataset.from_arrays(x[:, :3] * 100, y, owner, task="density"), feature_names=HARMFUL[:3]
        )
    return fit(UIFCA(k=4, density="gaussian", rounds=6), data, seed=1)


def noted(run, **notes):
    """The run with further notes on its last round."""
    return replace(run, snapshot=replace(run.snapshot, notes={**run.snapshot.notes, **notes}))


class Page(HTMLParser):
    """The elements, attributes and texts of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self.scripts, self._inside = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        (self.scripts if self._inside == "script" else self.texts).append(data)
