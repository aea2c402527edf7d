"""Questions that a run asks once: whoever is silent is asked again, or would be left out of all that follows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from corymb.core.federation import ClientsFailed, Cohort, Replies, TooFewReplies
from corymb.core.guard import longest_beside
from corymb.trees import Params, concat, take

T = TypeVar("T")
AGAIN = 4
"""How often, at most; clients of whom none answers the second time may be gone, and are not asked a third."""

log = logging.getLogger(__name__)


def ask_again(asked: Cohort, first: Replies[T], ask: Callable[[Cohort], Replies[T]]) -> Replies[T]:
    """Replies with those of clients silent at first, in the order asked; who was refused is not asked again."""
    replies = first
    for _ in range(AGAIN):
        refused = {name for name, _ in replies.rejected}
        heard = set(replies.clients.ids.tolist())
        places = [
            place
            for place, (client, name) in enumerate(zip(asked.ids.tolist(), asked.names, strict=True))
            if client not in heard and name not in refused
        ]
        if not places:
            break
        try:
            late = ask(asked[places].like(first.value))
        except (TooFewReplies, ClientsFailed):  # of these few; the others' answers stand
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
    """The same for models that are expected near the one that clients were sent: 1 row.

    The few who answer later are held to what the others' lengths allowed, not to one another's.
    """
    first = ask(clients.near(start, loose=loose))
    most = longest_beside(first.value, start)
    return ask_again(clients, first, lambda late: ask(late.like(first.value).near(start, loose=loose, most=most)))


def _together(asked: Cohort, one: Replies[T], other: Replies[T]) -> Replies[T]:
    ids = torch.cat([one.clients.ids, other.clients.ids])
    stands = torch.empty(int(asked.ids.max()) + 1, dtype=torch.int64).index_copy(0, asked.ids, torch.arange(len(asked)))
    order = stands[ids].argsort()
    clients = asked[stands[ids][order]]
    return Replies(clients, take(concat([one.value, other.value]), order), one.rejected + other.rejected)
