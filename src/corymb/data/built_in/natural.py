"""Data sets whose clients are people: writers and speakers."""

from __future__ import annotations

from corymb.data.built_in import sources
from corymb.data.built_in.roles import by_role, roles_with_enough_text
from corymb.data.built_in.writers import by_writer
from corymb.data.dataset import FederatedDataset

ROLES = 50
"""The default number of roles of Shakespeare's plays, if as many have enough text."""


def femnist(seed: int = 0, *, clients: int | None = None, least: int = 50) -> FederatedDataset:
    """Writers with at least `least` images: all of them, or `clients` of them drawn by `seed`."""
    source = sources.FEMNIST
    return by_writer(source.load(), clients=clients, least=least, seed=seed, classes=source.classes, name="femnist")


def shakespeare(seed: int = 0, *, clients: int | None = None, least: int = 2000) -> FederatedDataset:
    """Roles with at least `least` characters, by default 50 of them."""
    roles = sources.SHAKESPEARE.load()
    if clients is None:
        available, clients = len(roles_with_enough_text(roles, least)), ROLES
        if 0 < available < ROLES:  # LEAF's program also creates small samples
            note = f"only {available} roles have {least} characters or more: all are used"
            roles, clients = roles._replace(notes=(*roles.notes, note)), available
    return by_role(roles, clients=clients, least=least, seed=seed, name="shakespeare")
