"""A Ray cluster for a run: the number of actors, and where they keep client memory."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from corymb.core.engine import Engine
from corymb.data import FederatedDataset
from corymb.engines.remote import Patience, RemoteEngine
from corymb.objectives.null import NullObjective
from corymb.runs.folder.layout import ACTORS
from corymb.runs.plan import placement_for
from corymb.runs.settings import RunSettings
from corymb.settings import InvalidInput, expanded, require

Folder = str | os.PathLike[str]
LOCAL_ACTORS = 2
START_SECONDS = 300.0
"""Time for actors to start: they import torch, and may wait for free resources."""


def cluster(settings: RunSettings, data: FederatedDataset, *, keeps_memory: bool, allow: Sequence[str] = ()) -> Engine:
    """An engine whose clients are spread over the actors of a Ray cluster."""
    require(settings.kernel is None, "Each actor chooses its own kernel: leave out kernel.")
    require(settings.memory == "auto", "Each actor chooses its own memory: leave out memory.")
    try:
        from corymb.engines.ray import RayTransport
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise InvalidInput("Ray is not installed: pip install 'corymb[ray]'.") from None
    placement = placement_for(settings)
    actors = settings.nodes or (torch.cuda.device_count() if placement.device.startswith("cuda") else LOCAL_ACTORS)
    transport = RayTransport(
        data,
        NullObjective(),
        actors=min(actors, len(data)),
        address=settings.address,
        folder=_folder(settings, keeps_memory=keeps_memory),
        device=placement.device,
        precision=settings.precision,
        allow=allow,
        client_seconds=settings.client_seconds,
    )
    try:
        patience = Patience(settings.patience, settings.min_replies)
        engine = RemoteEngine(
            transport,
            expect=len(transport.actors),
            wait=START_SECONDS,
            patience=patience,
            allow=allow,
            remembers=keeps_memory,
        )
        return engine.open(NullObjective())
    except BaseException:
        transport.close()
        raise


def kept_in(settings: RunSettings, out: Folder | None) -> RunSettings:
    """Let local actors keep client memory in the run's folder, so that the run can be resumed."""
    here = settings.engine == "ray" and settings.address is None and settings.cluster_folder is None
    return replace(settings, cluster_folder=str(expanded(out).resolve() / ACTORS)) if here and out else settings


def _folder(settings: RunSettings, *, keeps_memory: bool) -> Path | None:
    """The folder where actors keep client memory, which all machines of the cluster must share."""
    if settings.cluster_folder is not None:
        return Path(settings.cluster_folder).expanduser()
    if settings.address is None:
        folder = tempfile.mkdtemp(prefix="corymb-actors-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)
    require(
        not keeps_memory,
        "Clients of this algorithm keep memory, which would be lost if an actor dies: give cluster_folder=…, a folder "
        "that all machines of the cluster share.",
    )
    return None
