"""The engine of a run whose clients are in other processes, from its settings."""

from __future__ import annotations

import atexit
from collections.abc import Collection, Sequence
from pathlib import Path

from corymb.core.engine import Engine
from corymb.core.snapshot import Algorithm, packages_of
from corymb.data import FederatedDataset
from corymb.engines.remote import Patience, RemoteEngine
from corymb.objectives.null import NullObjective
from corymb.runs.settings import RunSettings
from corymb.settings import InvalidInput, require, split_address

REMOTE_ENGINES = ("flower", "ray")
"""The engines whose clients are in other processes."""
FEDERATION = "federation"
"""The placeholder for the data on the command line and in a run's config if nodes hold them."""
USAGE = "corymb run federation ALGORITHM --engine flower --address HOST:PORT"


def remote_engine(
    settings: RunSettings, data: FederatedDataset | None, algorithm: Algorithm, clients: Collection[str] = ()
) -> Engine:
    """Connect to the clients; the engine has no objective yet. `clients` are those of a run to resume."""
    keeps, packages = bool(getattr(algorithm, "keeps_memory", False)), packages_of(algorithm)
    if settings.engine == "flower":
        require(data is None, "The nodes of a federation hold their data: leave out data, or use another engine.")
        return federation(settings, FEDERATION, keeps_memory=keeps, allow=packages, clients=clients)
    from corymb.runs.remote.cluster import cluster

    if data is None:
        raise InvalidInput("Give the data to run on: a Ray cluster holds none.")
    return cluster(settings, data, keeps_memory=keeps, allow=packages)


def federation(
    settings: RunSettings,
    data: str,
    *,
    keeps_memory: bool,
    allow: Sequence[str] = (),
    clients: Collection[str] = (),
) -> Engine:
    """An engine for the clients of a Flower federation, whose replies may name objects of the packages in `allow`.

    `clients` are those of a run to resume: clients that joined later take no part in it.
    """
    require(data == FEDERATION, f"The nodes of a federation hold their data, not {data!r}: {USAGE}.")
    address = settings.address
    if address is None:
        raise InvalidInput(f"Give the address of the federation: {USAGE}.")
    split_address(address)
    for name in ("kernel", "threads", "client_seconds"):
        require(getattr(settings, name) is None, f"Nodes choose their own {name}: leave it out.")
    require(settings.memory == "auto", "Nodes choose their own memory: leave it out.")
    require(settings.device in ("auto", "cpu"), f"Nodes choose their own device: leave out {settings.device!r}.")
    try:
        from corymb.engines.flower.driver import connect
    except ModuleNotFoundError as error:
        if (error.name or "corymb").startswith("corymb"):  # else Flower, or what it brings: httpx, cryptography
            raise
        raise InvalidInput("Flower is not installed: pip install 'corymb[flower]'.") from None
    files = {name: None if (at := getattr(settings, name)) is None else Path(at) for name in ("ca", "secret")}
    transport = connect(address, **files)
    atexit.register(transport.close)  # so that Flower learns of a run that fails
    try:
        patience = Patience(settings.patience, settings.min_replies)
        engine = RemoteEngine(
            transport,
            expect=settings.nodes,
            patience=patience,
            allow=allow,
            remembers=keeps_memory,
            clients=clients,
        )
        used = engine.describe()["precision"]
        require(
            settings.precision in (used, RunSettings().precision),
            f"The nodes compute in {used}, not in {settings.precision}: set it with `corymb flower node --precision`.",
        )
        return engine.open(NullObjective())
    except BaseException:
        transport.close()
        raise
