"""A run requested by a command line or a TOML file: data, algorithm, and the options of each part of the run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from corymb.cli.run import USAGE
from corymb.core.engine import Engine
from corymb.core.snapshot import Algorithm, packages_of
from corymb.data import FederatedDataset
from corymb.data.catalogue import NAMES
from corymb.data.store import SUFFIX
from corymb.runs.defaults import class_of, configure
from corymb.runs.learners import MODELS
from corymb.runs.plan import rounds_in
from corymb.runs.remote.engine import FEDERATION, federation
from corymb.runs.remote.engine import USAGE as ON_NODES
from corymb.runs.serving import labels_points
from corymb.runs.settings import DataOptions, FitOptions, RunSettings, names
from corymb.settings import InvalidInput, from_dict, merged, read_toml, require

S = TypeVar("S")


OPTIONS = (RunSettings, FitOptions, DataOptions)
"""All options of `corymb run` besides those of the algorithm and of the output."""

RETIRED = {"fresh": False}
"""Settings that earlier versions wrote into config.toml, with the value at which they can be ignored."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A requested run."""

    data: str
    algorithm: str
    algorithm_settings: dict[str, Any]
    settings: RunSettings
    fit_options: FitOptions
    data_options: DataOptions

    @staticmethod
    def read(values: Mapping[str, Any]) -> Request:
        """Parse the values of a command line, a TOML file or the config of a run."""
        if values.get("data") is None or values.get("algorithm") is None:
            raise InvalidInput(USAGE)
        others = {name for kind in OPTIONS for name in names(kind)} | {"data", "algorithm", "record"}
        others |= {name for name, value in RETIRED.items() if "record" in values and values.get(name) == value}
        own = {name: value for name, value in values.items() if name not in others}
        options = _part(DataOptions, {**values, **_task_of(str(values["algorithm"]), values)})
        if values.get("engine") == "flower" and "record" not in values and (given := options.given()):
            raise InvalidInput(
                f"The nodes of a federation read their own data: leave out --{next(iter(given))} here, and set it in "
                "the nodes' data function."
            )
        if rounds_in(own) is None:  # an explicit number of rounds is always run in full
            values = {"until": "converged", **values}
        return Request(
            data=str(values["data"]),
            algorithm=str(values["algorithm"]),
            algorithm_settings=own,
            settings=_part(RunSettings, values),
            fit_options=_part(FitOptions, values),
            data_options=options,
        )

    def load(self, clients: Collection[str] = ()) -> tuple[FederatedDataset | Engine, Algorithm]:
        """Load the data, or connect to the nodes that hold them, and configure the algorithm with suitable defaults.

        `clients` are those of a run to resume: nodes that have none of them are left out.
        """
        data: FederatedDataset | Engine
        if self.settings.engine == "flower":
            kind = class_of(self.algorithm)
            keeps, packages = bool(getattr(kind, "keeps_memory", False)), packages_of(kind)
            data = federation(self.settings, self.data, keeps_memory=keeps, allow=packages, clients=clients)
        else:
            named = self.data != FEDERATION or Path(self.data).exists()
            require(named, f"{FEDERATION!r} stands for the data held by the nodes of a federation: {ON_NODES}.")
            data = self.data_options.load(self.data, self.settings.seed)
        return data, configure(self.algorithm, data, model=self.fit_options.model, **self.algorithm_settings)


def _task_of(algorithm: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The task `density` for an algorithm that clusters examples: files are then read without labels by default."""
    by_path = values["data"] not in NAMES and Path(str(values["data"])).suffix != SUFFIX
    by_path = by_path and values.get("engine") != "flower"  # nodes read their own data
    wanted = by_path and values.get("task") is None and labels_points(class_of(algorithm))
    return {"task": "density"} if wanted else {}


def _part(kind: type[S], values: Mapping[str, Any]) -> S:
    return from_dict(kind, {name: values[name] for name in names(kind) if name in values})


def with_file(path: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the given values over those of a settings file. A file written by a run is data and may not name code."""
    values = read_toml(path) if path else {}
    model = values.get("model")
    if "record" in values and model is not None and model not in MODELS and "model" not in given:
        raise InvalidInput(
            f"{path} was written by a run with a user-defined model: a run folder is data and never decides which code "
            f"runs, so name it again: --model {model}."
        )
    return merged(values, given)
