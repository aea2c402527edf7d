"""Retries calls that a run makes only once: a client that stays silent would be left out of everything that follows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from corymb.core.federation import ClientsFailed, Cohort, Replies, TooFewReplies
from corymb.core.guard import longest_accepted
from corymb.trees import Params, concat, take

T = TypeVar("T")
MAX_RETRIES = 4
"""The most retries. If none of the silent clients answers a retry, they are taken to be gone."""

log = logging.getLogger(__name__)


def ask_again(asked: Cohort, first: Replies[T], ask: Callable[[Cohort], Replies[T]]) -> Replies[T]:
    """The replies including those of clients silent at first, in the order asked; refused clients are not retried."""
    replies = first
    for _ in range(MAX_RETRIES):
        refused = {name for name, _ in replies.rejected}
        answered = set(replies.clients.ids.tolist())
        places = [
            place
            for place, (client, name) in enumerate(zip(asked.ids.tolist(), asked.names, strict=True))
            if client not in answered and name not in refused
        ]
        if not places:
            break
        try:
            late = ask(asked[places].like(first.value))
        except (TooFewReplies, ClientsFailed):  # concerns only these clients; the others' replies stand
            late = None
        log.warning(
            "%d of %d clients did not answer and were asked again: %d did",
            len(places), len(asked), 0 if late is None else len(late.clients),
        )  # fmt: skip
        if late is None:
            break
        replies = _together(asked, replies, late)
    return replies


def ask_again_near(
    clients: Cohort, start: Params, ask: Callable[[Cohort], Replies[Params]], *, loose: bool = False
) -> Replies[Params]:
    """Ask clients for models near the one they are sent (`start`, 1 row), and ask silent clients again.

    The few late replies are compared with the bound from the first replies, not with one another.
    """
    first = ask(clients.near(start, loose=loose))
    most = longest_accepted(first.value, start)
    return ask_again(clients, first, lambda late: ask(late.like(first.value).near(start, loose=loose, most=most)))


def _together(asked: Cohort, one: Replies[T], other: Replies[T]) -> Replies[T]:
    ids = torch.cat([one.clients.ids, other.clients.ids])
    place = torch.empty(int(asked.ids.max()) + 1, dtype=torch.int64).index_copy(0, asked.ids, torch.arange(len(asked)))
    order = place[ids].argsort()
    clients = asked[place[ids][order]]
    return Replies(clients, take(concat([one.value, other.value]), order), one.rejected + other.rejected)
