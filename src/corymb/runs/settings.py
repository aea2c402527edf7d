"""The options of a run and of its data, all defined here.

A field of `RunSettings` is a keyword of `fit`, an option of `corymb run`, a key of config.toml and something that
resuming obeys. A field of `DataOptions` is an option of `corymb run` and `corymb data show`, and a key of config.toml.
The text below a field is its help.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from corymb.choices import Dropout, KernelName, Missing, Scale, Task
from corymb.settings import check_types, did_you_mean, from_dict, require

if TYPE_CHECKING:
    from corymb.data import FederatedDataset

EngineName = Literal["vectorised", "loop", "flower", "ray"]
Precision = Literal["float32", "tf32", "bfloat16", "float64"]
Until = Literal["rounds", "converged"]
Memory = int | Literal["auto"]
MOST_THREADS = 1024
"""Each thread allocates memory as soon as it starts."""
ELSEWHERE = ("address", "nodes", "ca", "secret", "cluster_folder", "client_seconds")
"""Options of runs whose clients are in other processes."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a run is carried out, independently of its algorithm."""

    seed: int = 0
    """Seed for all randomness, including data that are generated or split."""
    engine: EngineName = "vectorised"
    """`vectorised` runs many clients at once, `loop` one after another, both in this process; `flower` uses nodes that
    hold their own data; `ray` spreads clients over a Ray cluster."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto picks the fastest available. Several share the clients: cuda:0,cuda:1."""
    precision: Precision = "float32"
    """Precision of the clients' arithmetic."""
    threads: int | None = None
    """CPU threads during the run; if not given, as many as torch is set to."""
    memory: Memory = "auto"
    """Bytes of memory for the clients that run at once."""
    kernel: KernelName | None = None
    """How the vectorised engine computes; if not given, the fastest kernel that fits the model."""
    evaluate_every: int = 10
    """Rounds between evaluations; 0 evaluates at the end only."""
    checkpoint_every: int = 1
    """Rounds between checkpoints, from which the run can be resumed."""
    min_replies: int = 1
    """A round with fewer usable replies does not count."""
    guard: bool = True
    """Refuse and name clients whose updates are far longer than the others'."""
    faults: str | None = None
    """Faults to inject, such as `nan:0.1,dropout:0.3`: kinds and shares of clients (`corymb list faults`)."""
    dropout: Dropout = "on"
    """Dropout in training steps: on, with the same draws on every engine; off; or refuse models that have it."""
    class_weight: str | None = None
    """Weights of classes in the training loss: `balanced`, or one by one, `no=1,yes=5`. Scores are not weighted."""
    label_smoothing: float = 0.0
    """The share of every label that training spreads evenly over all classes, such as 0.1. Scores are unaffected."""
    metric: str | None = None
    """The metric for headline, report and best checkpoint: accuracy, balanced_accuracy, macro_f1, auc or log_loss for
    classes; squared_error, r2, mae or rmse for numbers; if not given, accuracy or squared_error."""
    until: Until = "rounds"
    """When a run ends: after all its `rounds`, or earlier once nothing changes any more (`converged`, the default on
    the command line if `rounds` is not given)."""
    address: str | None = None
    """Address of the federation (`flower`: HOST:PORT of its SuperLink) or cluster (`ray`; default: a local one)."""
    nodes: int | None = None
    """Number of nodes of a complete federation, or of actors that share the clients; if not given, any number."""
    patience: float | None = 300.0
    """Seconds to wait for silent nodes once `min_replies` clients have answered; 0 does not wait."""
    ca: str | None = None
    """File with the federation's CA certificate; without one, nothing is encrypted."""
    secret: str | None = None
    """File with the secret that the federation's SuperLink was started with."""
    cluster_folder: str | None = None
    """Folder that all machines of a `ray` cluster share, where actors keep client memory."""
    client_seconds: float | None = None
    """Seconds that a client's work may take on a `ray` actor; nodes have their own limit, one process has none."""
    keep_going: bool = False
    """Continue a run that diverges; otherwise it ends after three evaluations with ten times the loss of its first."""

    def __post_init__(self) -> None:
        from corymb.objectives.class_weight import as_text  # which needs torch: a list of the options does not

        object.__setattr__(self, "class_weight", as_text(self.class_weight))  # fit takes a mapping too
        for name, choices in _choices(RunSettings).items():
            value = getattr(self, name)
            require(value in choices, f"There is no {name} {value!r}. {did_you_mean(str(value), _texts(choices))}")
        check_types(self)
        _check_seed(self.seed)
        check_memory(self.memory)
        part = self.label_smoothing
        require(0 <= part < 1, f"label_smoothing must be in [0, 1), got {part}.")
        one = r"(cpu|cuda|mps)(:[0-9]{1,3})?"
        known = re.fullmatch(rf"auto|{one}(,{one})*", self.device) is not None
        wanted = "'auto', 'cpu', 'cuda' or 'mps', or several such as 'cuda:0,cuda:1'"
        require(known, f"There is no device {self.device!r}: wanted {wanted}.")
        alone = "," not in self.device or self.engine == "vectorised"
        require(alone, f"engine {self.engine!r} runs on one device, got {self.device!r}: leave out engine for several.")
        if self.faults is not None:
            from corymb.faults import read_faults

            read_faults(self.faults)
        some = self.threads is None or 1 <= self.threads <= MOST_THREADS
        require(some, f"threads must be at least 1 and at most {MOST_THREADS:,}, got {self.threads}.")
        require(self.evaluate_every >= 0, f"evaluate_every must not be negative, got {self.evaluate_every}.")
        if self.engine in ("vectorised", "loop"):
            unused = [name for name in ELSEWHERE if getattr(self, name) is not None]
            here = f"engine {self.engine!r} runs all clients in this process"
            require(not unused, f"{here}: leave out {', '.join(unused)}, or give another engine.")
        for name in ("patience", "client_seconds"):
            value = getattr(self, name)
            require(value is None or value >= 0, f"{name} must not be negative, got {value}.")
        require(self.nodes is None or self.nodes >= 1, f"nodes must be at least 1, got {self.nodes}.")
        for name in ("checkpoint_every", "min_replies"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}.")

    @staticmethod
    def recorded(config: Mapping[str, Any]) -> RunSettings:
        """The settings in the config of a run, which resuming must follow to give the same bits."""
        return RunSettings(**_of(RunSettings, config))

    def updated(self, options: Mapping[str, Any], *, others: Iterable[str] = ()) -> RunSettings:
        """Replace some fields, given as keywords of `fit`; `others` are the names of its other keywords.

        >>> RunSettings().updated({"seed": 3, "evaluate_every": None}).evaluate_every
        0
        """
        own = names(RunSettings)
        for name in options:
            readers = (
                f"FederatedDataset.from_dataframe(frame, {name}=...) or corymb.datasets.from_folder(path, {name}=...)"
            )
            of_data = f"It is an option of reading data, such as corymb.{readers}: give fit what that returns."
            hint = of_data if name in names(DataOptions) else did_you_mean(name, [*own, *others])
            require(name in own, f"fit has no option {name!r}. {hint}")
        changes = dict(options)
        if changes.get("evaluate_every", 0) is None:
            changes["evaluate_every"] = 0
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Deal:
    """How a built-in data set is divided among clients; `corymb list data` shows the defaults."""

    clients: int | None = None
    """Number of clients."""
    per_client: int | None = None
    """Training examples per client."""
    alpha: float | None = None
    """Concentration of Dirichlet shares, 0.001 or more: the smaller, the more uneven."""
    least: int | None = None
    """Smallest number of training examples of a client (femnist: images, shakespeare: characters)."""

    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: getattr(self, name) for name in names(Deal) if getattr(self, name) is not None}


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """How to read your own data, or how to divide built-in data."""

    client: str | None = None
    """Column (in npz: array) that names the client of each row; if not given, `client`."""
    label: str | None = None
    """Column (array) that holds the labels; if not given, `label` (in npz: `y`)."""
    features: str | None = None
    """Columns to use, separated by commas (in npz: one array); if not given, all others (in npz: `x`)."""
    test: float | None = None
    """Share of each client's rows to hold out for tests."""
    task: Task | None = None
    """What the labels are: classes or numbers; if not given, what most clients' labels look like."""
    missing: Missing | None = None
    """Missing cells: refuse them, use the column's mean or median, or drop the row; if not given, refuse."""
    scale: Scale | None = None
    """Features: standardise them, treat them as pixels, leave them unchanged, or treat them as codes that a model
    embeds; if not given, by shape: tables or pictures."""
    read_limit: int | None = None
    """Bytes that one file may take in memory when it is read; if not given, half of the machine's memory."""
    deal: Deal | None = None
    """How a data set of `corymb list data` is divided among clients, if it takes these options."""

    @staticmethod
    def recorded(config: Mapping[str, Any]) -> DataOptions:
        """The data options in the config of a run."""
        found = _of(DataOptions, config)
        deal = {name: found.pop(name) for name in ("deal",) if name in found}
        return replace(DataOptions(**found), deal=from_dict(DataOptions, deal).deal) if deal else DataOptions(**found)

    def given(self) -> dict[str, Any]:
        """The options that were given, as plain values."""
        deal = {} if self.deal is None else self.deal.given()
        others = [name for name in names(DataOptions) if name != "deal" and getattr(self, name) is not None]
        return {name: getattr(self, name) for name in others} | ({"deal": deal} if deal else {})

    def load(self, data: str | os.PathLike[str], seed: int) -> FederatedDataset:
        """Load data by name or path, with these options."""
        _check_seed(seed)
        from corymb.data import load

        given = self.given()
        return load(data, seed=seed, **given.pop("deal", {}), **given)


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Arguments of `fit` that are not settings of the run: they may differ when it is resumed."""

    model: str | None = None
    """A name (`corymb list models`) or package.module:function; if not given, a model that suits the data."""
    max_seconds: float | None = None
    """Approximate time limit in seconds for the rounds and the final evaluation; 0 runs exactly one round."""


def check_memory(memory: Memory) -> None:
    """Raise InvalidInput unless this is a budget for the clients that run at once."""
    require(memory == "auto" or memory > 0, f"memory must be 'auto' or bytes, got {memory!r}.")


def _check_seed(seed: int) -> None:
    require(seed >= 0, f"seed must not be negative, got {seed}: give 0 or more.")  # required by numpy's generators


def has_name(data: str) -> bool:
    """Whether the command line can find data by this name; arrays given in Python have no such name."""
    from corymb.data.catalogue import NAMES

    return data in NAMES or os.path.exists(data)


def names(kind: type) -> list[str]:
    """The names of the fields of a settings class."""
    return [field.name for field in fields(kind)]


def _of(kind: type, config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: config[name] for name in names(kind) if name in config}


@cache
def _choices(kind: type) -> dict[str, tuple[Any, ...]]:
    """The fields of a class with a fixed set of values, and those values."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        members = [member for member in (hint, *get_args(hint)) if get_origin(member) is Literal]
        values = tuple(value for member in members for value in get_args(member))
        if values and int not in get_args(hint):
            found[name] = (*values, None) if type(None) in get_args(hint) else values
    return found


def _texts(choices: Iterable[Any]) -> list[str]:
    return [choice for choice in choices if choice is not None]
