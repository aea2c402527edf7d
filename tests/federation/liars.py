"""A node that lies, on a real federation: what it says instead of its honest reply is in a file in its working folder.

The function that gives a node its clients runs in the node's own process, which is where a node goes bad.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import corymb
from corymb.core.client import Client, Share, on_client
from corymb.core.federation import Federation
from corymb.core.snapshot import Snapshot
from corymb.core.sums import Sums
from corymb.engines.node import Node
from corymb.local import Descent, descend, one_hot, serve_assigned
from corymb.trees import Params, map_tensors, take
from corymb.wire import pack, unpack
from tests.federation import nodes

LIAR = "node-1"
LIE = Path("lie")
LOST = "a reply that is lost"


def spoiled(change):
    """What a lying node makes of its honest reply: another part."""

    def lie(reply):
        (part,) = reply["parts"]
        return pack(reply | {"parts": [part | change(part)]})

    return lie


def sums(change):
    """The same for the sums in the part; rows are honest."""

    def spoil(part):
        value = part["value"]
        return {"value": value._replace(**change(value))} if isinstance(value, Sums) else {}

    return spoiled(spoil)


def totals(change):
    return sums(lambda value: {"total": map_tensors(change, value.total)})


LIES = {
    "NaN": (totals(lambda total: total * torch.nan), "not finite"),
    "another shape": (totals(lambda total: total[..., :-1]), "of the reply is float64[2], of the model float64[3]"),
    "weight × 1e6": (sums(lambda value: {"weight": value.weight * 1e6}), "weight is more than"),
    "a negative weight": (sums(lambda value: {"weight": -value.weight - 1}), "weight is negative"),
    "label 99": (sums(lambda value: {"label": torch.full_like(value.label, 99)}), "label is out of range"),
    "1e300": (totals(lambda total: total + 1e300), "larger than its weight allows"),
    "ids of others": (spoiled(lambda part: {"ids": part["ids"] + 5}), "clients that it does not have"),
    "garbage": (lambda reply: b"x" * 100, "cannot be read"),
    "no reply to calls": (lambda reply: pack({"kind": "refused", "why": "no disk", "unknown": False}), "no disk"),
}


def lying(answer):
    """A node's way to answer, but for calls while there is a lie to tell."""

    def lie(self, message):
        good = answer(self, message)
        if not LIE.exists() or unpack(message, self.allow).get("kind") != "call":
            return good
        if (told := LIE.read_text()) == LOST:
            LIE.unlink()
            raise OSError("the reply is lost on its way")
        return LIES[told][0](unpack(good, self.allow))

    return lie


def clients(node, number, of):
    """The clients of one node; the liar's process learns to lie."""
    if node == LIAR:
        Node.answer = lying(Node.answer)
    return nodes.clients(node, number, of)


def outdated(node, number, of):
    """The clients of a node with another version of the library."""
    corymb.__version__ = "0.0.1"
    return nodes.clients(node, number, of)


# ---- a client that never comes to an end

HANGS = 12
"""The client with so many examples; no other has as many."""


@on_client
def train_or_hang(client: Client, models: Params, *, local: Descent, hang: bool):
    """The model after local training; one client never ends it, or ends it with nothing that can be used."""
    bad = len(client.train.y) == HANGS
    while bad and hang:
        time.sleep(0.05)
    label = torch.zeros((), dtype=torch.int64)
    model = map_tensors(lambda leaf: leaf * (torch.nan if bad else 1.0), descend(client, take(models, 0), local))
    return Share(model, one_hot(label, 1), label)


@dataclass(frozen=True, kw_only=True)
class Average:
    """FedAvg, with one bad client."""

    rounds: int = 2
    hang: bool = True

    serve = serve_assigned

    def run(self, fed: Federation, start: Snapshot | None = None) -> Iterator[Snapshot]:
        at = start or Snapshot.fresh(fed, 1)
        for _ in range(at.round, self.rounds):
            replies = fed.clients.sum(train_or_hang, at.models, local=Descent(lr=0.05, steps=2), hang=self.hang)
            models = replies.value.mean(empty=at.models)
            yield (at := at.next(models=models, labels=(replies.clients, replies.value.label), notes={}))
