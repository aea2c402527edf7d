"""Next-character prediction on the texts of many speakers, with a client for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from corymb.core.engine import in_order
from corymb.data.built_in.views import check_whole
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array
from corymb.data.ragged import Ragged, offsets_of
from corymb.settings import require

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order."""
LENGTH = 80
"""Characters before the one to be predicted, as in LEAF (Caldas et al. 2018)."""


class Roles(NamedTuple):
    """The texts of speakers."""

    texts: Mapping[str, str]
    """Each speaker's text; only the training part if `test` is given."""
    test: Mapping[str, str] = MappingProxyType({})
    """Each speaker's test part; empty if `by_role` is to split the text."""
    notes: tuple[str, ...] = ()


def by_role(
    roles: Roles,
    *,
    clients: int | None = 50,
    least: int = 2000,
    test: float | None = None,
    stride: int = 1,
    seed: int = 0,
    vocabulary: str = VOCABULARY,
    name: str = "roles",
) -> FederatedDataset:
    """Make a client of each role in plays. An example is 80 characters, x [80], and the one that follows.

    Arguments:
        roles: The text of each role, such as Shakespeare's.
        clients: The number of roles, drawn by `seed`; by default all with enough text.
        least: The fewest characters of a role.
        test: The share of a role's text, at its end, to hold out for testing; no example crosses the cut. By default
            the split in `roles`, or a fifth.
        stride: Characters between the starts of two examples.
        vocabulary: All characters; examples hold their positions in it.
    """
    check_whole("stride", stride)
    check_whole("clients", 1 if clients is None else clients)
    require(test is None or 0 <= test < 1, f"test={test}: wanted a share of at least 0 and less than 1.")
    whole = {role: roles.texts[role] + roles.test.get(role, "") for role in roles.texts}
    cuts = {role: _cut(roles, role, test) for role in whole}
    enough = roles_with_enough_text(roles, least, test)
    wanted = len(enough) if clients is None else clients
    require(
        0 < wanted <= len(enough),
        f"clients={clients}, least={least}: {len(enough)} of the {len(whole)} roles have so many characters, and more "
        f"than {LENGTH} of them to train on; ask for fewer clients or fewer characters.",
    )
    drawn = [enough[i] for i in np.random.default_rng(seed).permutation(len(enough))[:wanted]]
    names = [drawn[i] for i in in_order(drawn).tolist()]
    codes, unknown = _codes([whole[role] for role in names], vocabulary)
    parts = [(text[: cuts[role]], text[cuts[role] :]) for role, text in zip(names, codes, strict=True)]
    notes = (f"{unknown} characters that are not in the vocabulary are read as spaces",) if unknown else ()
    return FederatedDataset(
        name=name,
        names=tuple(names),
        train=_windows([train for train, _ in parts], stride),
        test=_windows([held for _, held in parts], stride),
        task="classification",
        classes=characters(vocabulary),
        notes=(*roles.notes, *notes),
    )


def roles_with_enough_text(roles: Roles, least: int, test: float | None = None) -> list[str]:
    """The roles with at least `least` characters and at least one training example."""
    sizes = {role: len(text) + len(roles.test.get(role, "")) for role, text in roles.texts.items()}
    return [role for role, size in sizes.items() if size >= least and _cut(roles, role, test) > LENGTH]


def characters(vocabulary: str = VOCABULARY) -> tuple[str, ...]:
    """Printable names of the characters."""
    return tuple({"\n": "newline", " ": "space"}.get(character, character) for character in vocabulary)


def _cut(roles: Roles, role: str, test: float | None) -> int:
    """The position in a role's text where its test part begins."""
    train = len(roles.texts[role])
    if test is None and roles.test:
        return train
    total = train + len(roles.test.get(role, ""))
    return total - int(total * (0.2 if test is None else test))


def _codes(texts: Sequence[str], vocabulary: str) -> tuple[list[Array], int]:
    """Texts as indices of the vocabulary, and the number of characters that are not in it."""
    blank = vocabulary.find(" ")
    require(blank >= 0, "The vocabulary has no space, which replaces unknown characters: add one.")
    place = {character: position for position, character in enumerate(vocabulary)}
    coded = [np.array([place.get(character, -1) for character in text], dtype=np.int64) for text in texts]
    unknown = sum(int((text < 0).sum()) for text in coded)
    return [np.where(text < 0, blank, text) for text in coded], unknown


def _windows(texts: Sequence[Array], stride: int) -> Ragged:
    """The examples of every text: all windows that lie within it."""
    none = np.empty((0, LENGTH + 1), dtype=np.int64)
    views = [
        np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)[::stride] if len(text) > LENGTH else none
        for text in texts
    ]
    rows = torch.from_numpy(np.concatenate(views))
    sizes = torch.tensor([len(view) for view in views])
    return Ragged(rows[:, :LENGTH].contiguous(), rows[:, LENGTH].contiguous(), offsets_of(sizes))
