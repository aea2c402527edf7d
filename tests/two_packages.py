"""An algorithm whose client function, and the named tuple in its reply, come from a second package of the user's."""

import sys

ALGORITHM, FUNCTIONS = "corymb_mine", "corymb_apart"
PLACE = f"{ALGORITHM}:Mean"
APART = """
from typing import NamedTuple

import torch
from torch import Tensor

from corymb.core.client import Share, on_client
from corymb.local import descend, loss, one_hot
from corymb.trees import take


class Noted(NamedTuple):
    before: Tensor


@on_client
def train_apart(client, models, *, local):
    model, label = take(models, 0), torch.zeros((), dtype=torch.int64)
    note = Noted(loss(client, model))
    return Share(descend(client, model, local), weight=one_hot(label, 1), label=label, note=note)


def one_round(fed, models, local):
    return fed.clients.sum(train_apart, models, local=local)
"""
MINE = """
from dataclasses import dataclass

import corymb_apart
from corymb.core.snapshot import Snapshot
from corymb.local import Descent, serve_assigned


@dataclass(frozen=True, kw_only=True)
class Mean:
    rounds: int = 2
    local: Descent = Descent(lr=0.1, steps=2)

    serve = serve_assigned

    def run(self, fed, start=None):
        at = start or Snapshot.fresh(fed, 1)
        for t in range(at.round, self.rounds):
            replies = corymb_apart.one_round(fed, at.models, self.local.at(t))
            notes = {"train_loss": float(replies.value.note.before.mean())}
            models = replies.value.mean(empty=at.models)
            yield (at := at.next(models=models, labels=(replies.clients, replies.value.label), notes=notes))
"""


def write(folder):
    """Write the two modules."""
    (folder / f"{ALGORITHM}.py").write_text(MINE)
    (folder / f"{FUNCTIONS}.py").write_text(APART)


def importable(folder, monkeypatch):
    """Write the two modules, and let them be imported until the test ends."""
    write(folder)
    monkeypatch.syspath_prepend(str(folder))
    for name in (ALGORITHM, FUNCTIONS):
        monkeypatch.delitem(sys.modules, name, raising=False)
