"""How a run is made: what changes bits, and how often it is looked at and saved."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from corymb.engines.vectorised.kernels import KernelName
from corymb.runs.folder.reader import CONFIG, ENVIRONMENT
from corymb.runs.learners import Dropout
from corymb.runs.placing import EngineName, Memory, Precision
from corymb.settings import InvalidInput, require

SAID = ("data", "client", "label", "test", "task")
"""What a user says of data."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of a run that are none of its algorithm's."""

    seed: int = 0
    engine: EngineName = "vectorised"
    device: str = "auto"
    precision: Precision = "float32"
    threads: int | None = None
    memory: Memory = "auto"
    kernel: KernelName | None = None
    evaluate_every: int = 10
    checkpoint_every: int = 1
    min_replies: int = 1
    dropout: Dropout = "refuse"

    def __post_init__(self) -> None:
        require(self.checkpoint_every >= 1, f"checkpoint_every must be at least 1, got {self.checkpoint_every}.")


class Recorded(NamedTuple):
    """What a run folder says of how its run is made."""

    how: RunSettings
    said: dict[str, Any]
    environment: dict[str, Any]


def recorded(folder: Path) -> Recorded:
    """How the run in a folder was begun: what it must obey to go on bit for bit."""
    config, environment = read_config(folder), read_environment(folder)
    own = {field.name for field in fields(RunSettings)}
    how = RunSettings(**{name: value for name, value in config.items() if name in own})
    return Recorded(how, {name: config[name] for name in SAID if name in config}, environment)


def read_config(folder: Path) -> dict[str, Any]:
    """What was run."""
    require(folder.is_dir(), f"{folder} is not a folder: give the folder of a run.")
    path = folder / CONFIG
    require(path.exists(), f"{folder} has no run: it has no {CONFIG}. Begin one with corymb run ... --out {folder}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{path} cannot be read as TOML: {error}") from None


def read_environment(folder: Path) -> dict[str, Any]:
    """Where the run was begun."""
    try:
        environment = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        environment = None
    if not isinstance(environment, Mapping) or "run" not in environment:
        raise InvalidInput(f"{folder} cannot be resumed: its {ENVIRONMENT} cannot be read.")
    return dict(environment)
