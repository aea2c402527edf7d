"""Callbacks: user functions that a run calls while it runs, and that may stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from corymb.runs.history import Round
from corymb.settings import InvalidInput, did_you_mean, require

if TYPE_CHECKING:
    from corymb.runs.run import Run

HOOKS = ("on_start", "on_round", "on_evaluation", "on_end")


class StopRun(Exception):
    """Raised by a callback to end the run after this round: its `stopped` is then `callback`."""


class Start(NamedTuple):
    """The description of a run that `on_start` receives."""

    names: Sequence[str]
    """The clients."""
    config: Mapping[str, Any]
    """As in `Run.config`."""
    rounds: int
    """The number of planned rounds."""
    done: int
    """The number of rounds that a resumed run has already done."""


class Callbacks:
    """Calls the hooks that each callback has, in the order given.

    A callback is an object with any of `on_start(start)`, `on_round(row)`, `on_evaluation(row)` and `on_end(run)`; a
    plain function is an `on_round`. Rounds are saved before callbacks are called.
    """

    def __init__(self, given: object = (), show: Callable[[Round], None] | None = None) -> None:
        self.given: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
        self.show = show
        for callback in self.given:
            _check(callback)

    def start(self, about: Start) -> None:
        """Call the hooks before the first round."""
        self._call("on_start", about)

    def __call__(self, row: Round) -> None:
        """Call the hooks after a round, and after its evaluation if it had one."""
        if self.show is not None:
            self.show(row)
        self._call("on_round", row)
        if "metrics" in row:
            self._call("on_evaluation", row)

    def end(self, run: Run) -> None:
        """Call the hooks once the run has ended and is saved."""
        self._call("on_end", run)

    def _call(self, hook: str, value: object) -> None:
        for callback in self.given:
            own = getattr(callback, hook, None)
            if own is not None:
                own(value)
            elif hook == "on_round" and _plain(callback):
                callback(value)


def _plain(callback: Any) -> bool:
    """Whether a callback is a plain function of each round's record."""
    return callable(callback) and not any(hasattr(callback, hook) for hook in HOOKS)


def _check(callback: Any) -> None:
    for name in dir(callback):
        if name.startswith("on_") and name not in HOOKS:
            raise InvalidInput(f"A callback has no hook {name!r}. {did_you_mean(name, HOOKS)}")
    known = not isinstance(callback, type) and (_plain(callback) or any(hasattr(callback, hook) for hook in HOOKS))
    what = f"the class {callback.__name__}" if isinstance(callback, type) else f"a {type(callback).__name__}"
    require(
        known, f"A callback is {what}: wanted a function, or an object with {', '.join(HOOKS[:-1])} or {HOOKS[-1]}."
    )
