"""Data sets whose clients are people: who wrote, or who speaks."""

from __future__ import annotations

from corymb.data.built_in import sources
from corymb.data.built_in.roles import by_role, who_says_enough
from corymb.data.built_in.writers import by_writer
from corymb.data.dataset import FederatedDataset

ROLES = 50
"""Of Shakespeare's plays, if as many say enough."""


def femnist(seed: int = 0, *, clients: int | None = None, least: int = 50) -> FederatedDataset:
    """Writers with `least` images or more: all of them, or so many drawn by `seed`."""
    source = sources.FEMNIST
    return by_writer(source.load(), clients=clients, least=least, seed=seed, classes=source.classes, name="femnist")


def shakespeare(seed: int = 0, *, clients: int | None = None, least: int = 2000) -> FederatedDataset:
    """Roles with `least` characters or more, 50 if nothing else is said."""
    roles = sources.SHAKESPEARE.load()
    if clients is None:
        there, clients = len(who_says_enough(roles, least)), ROLES
        if 0 < there < ROLES:  # LEAF's program makes small samples too
            told = f"{there} roles have {least} characters or more: all are taken"
            roles, clients = roles._replace(notes=(*roles.notes, told)), there
    return by_role(roles, clients=clients, least=least, seed=seed, name="shakespeare")
