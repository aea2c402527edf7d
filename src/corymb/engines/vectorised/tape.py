"""Records the operations of a training step once and replays them on other tensors.

A step of a small model spends more time in vmap, autograd and module code than in arithmetic: about 3 ms for 0.3 ms of
products. What finally reaches the processor is a list of plain operations, the same for every step on tensors of the
same shapes. The second step is therefore recorded below vmap and autograd (the first may do things that are done only
once), the third is computed both ways, and if the results agree bit for bit, all later ones replay the list. A step is
never replayed if it reads values into Python (`item`, `tolist`), makes tensors whose shapes depend on values
(`nonzero`, packed sequences), reads the number of the step, or depends on state outside its inputs. Dropout reads a
key of the step instead, which is an input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf
from operator import itemgetter
from statistics import fmean
from threading import get_ident
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from corymb.core.objective import Draws
from corymb.keys import BY_NUMPY

Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Maps inputs, which it may write into, to outputs."""
MAX_TAPES = 256
"""The most tapes to keep."""
TIMED_REPLAYS = 5
"""The number of replays of a tape that are timed."""
SHAPED_BY_VALUES = {"aten::_pack_padded_sequence"}
"""Operations whose results' shapes depend on values, in addition to those that torch tags as such."""
KEEPS_FOR_BACKWARD = {"aten.mkldnn_rnn_layer.default"}
"""Operations that store what their backward pass needs only while gradients are enabled."""
READS_VALUES = {"tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage"}
"""Methods that hand a tensor's memory to Python without any operation."""


class _Place(NamedTuple):
    """The number of a tensor on a tape."""

    number: int


class _Line(NamedTuple):
    """One operation: its arguments, the places of its results, and the places that are free afterwards."""

    function: Any
    """An operation of torch, or a function that computes outside torch (`keys.BY_NUMPY`)."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int | None, ...]
    """None for a result that is None: `convolution_backward` returns only the gradients that are requested."""
    free: tuple[int, ...] = ()

    @property
    def returns_several(self) -> bool:
        """Whether its result is a tuple or a list of tensors."""
        if self.function in BY_NUMPY:
            return False
        return len(self.results) > 1 or isinstance(self.function._schema.returns[0].type, torch.ListType)

    @property
    def writes(self) -> bool:
        """Whether it writes into its arguments."""
        return self.function not in BY_NUMPY and self.function._schema.is_mutable

    @property
    def call(self) -> Callable[..., Any]:
        """The callable for its arguments, with options bound and without a Python wrapper around the operation."""
        plain = getattr(self.function, "_op", self.function)
        plain = torch.enable_grad()(plain) if str(self.function) in KEEPS_FOR_BACKWARD else plain
        return partial(plain, **self.kwargs) if self.kwargs else plain


@dataclass(frozen=True)
class Tape:
    """The operations of a function, for inputs of one signature."""

    lines: tuple[_Line, ...]
    inputs: int
    constants: dict[int, Tensor]
    outputs: tuple[int, ...]
    written: tuple[int, ...]
    """Inputs that it writes into."""

    @cached_property
    def play(self) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """A function that applies the recorded operations to other inputs.

        Everything slow in Python is done here, once: a step of a small model is a hundred operations of a few
        microseconds each. Every argument, tensor or not, has a slot, so that one C call collects those of an operation.
        """
        slots, lines = _Slots(self), list[_Call]()
        for line in self.lines:
            places = [slots.of(arg, lines) for arg in line.args]
            several = line.returns_several
            one = None if several or not line.results else line.results[0]
            lines.append(_Call(line.call, _getter(places), one, line.results if several else (), line.free))
        return partial(_play, slots.values, self.inputs, lines, self.outputs)

    def without_outputs(self) -> Tape:
        """A tape of only the operations needed for what is written into the inputs."""
        return _freed(_needed(self.lines, set()), self.inputs, self.constants, (), self.written)


class _Call(NamedTuple):
    """One operation, ready to be called."""

    function: Callable[..., Any]
    arguments: Callable[[list[Any]], Sequence[Any]]
    """Collects its arguments from the slots."""
    result: int | None
    results: tuple[int | None, ...]
    free: tuple[int, ...]


class _Slots:
    """The values of a tape by number: tensors at their places, then all other arguments."""

    def __init__(self, tape: Tape) -> None:
        made = (number for line in tape.lines for number in line.results if number is not None)
        self.values: list[Any] = [None] * (1 + max((*made, *tape.constants, tape.inputs)))
        for number, value in tape.constants.items():
            self.values[number] = value

    def of(self, arg: Any, lines: list[_Call]) -> int:
        """The slot of an argument; a list of tensors is assembled by a separate call."""
        if type(arg) is _Place:
            return arg.number
        self.values.append(None)
        slot = len(self.values) - 1
        if type(arg) is list:
            lines.append(_Call(_listed, _getter([self.of(one, lines) for one in arg]), slot, (), ()))
        else:
            self.values[slot] = arg
        return slot


def _listed(*values: Any) -> list[Any]:
    return list(values)


def _getter(places: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Collects the values at these places; for a single place, `itemgetter` would return a bare value, so it slices."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0, 0))


def _play(
    values: list[Any], inputs: int, lines: Sequence[_Call], outputs: Sequence[int], given: Sequence[Tensor]
) -> list[Tensor]:
    slots = values.copy()
    slots[:inputs] = given
    for function, arguments, result, results, free in lines:
        found = function(*arguments(slots))
        if result is not None:
            slots[result] = found
        else:
            for place, one in zip(results, found or (), strict=False):
                if place is not None:
                    slots[place] = one
        for place in free:
            slots[place] = None
    return [slots[place] for place in outputs]


def record(function: Function, inputs: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tape | None]:
    """The outputs of a function, and its tape; None if it cannot be replayed."""
    recorder = _Recorder(inputs)
    readers = _Readers(recorder)
    before = [t._version for t in inputs]
    with readers, recorder:
        outputs = function(inputs)
    if readers.found or recorder.problem or recorder.leaks or any(id(out) not in recorder.places for out in outputs):
        return outputs, None
    written = tuple(i for i, t in enumerate(inputs) if t._version != before[i])
    ends = tuple(recorder.places[id(out)] for out in outputs)
    return outputs, _freed(_needed(recorder.lines, set(ends)), len(inputs), recorder.constants(), ends, written)


class _Readers(TorchFunctionMode):
    """Notes whether a function passes values to Python without an operation that would show it.

    Functions that deliberately compute outside torch are recorded as if they were operations.
    """

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder, self.found = recorder, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= getattr(func, "__name__", "") in READS_VALUES
        if func in BY_NUMPY:
            return self.recorder.whole(func, args)
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    """Records every operation; tensors are numbered when they are first seen."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[_Line] = []
        self.alive = list(inputs)  # an id is valid only while its tensor is alive
        self.places = {id(t): place for place, t in enumerate(inputs)}
        self.outside: list[Tensor] = []
        self.problem = len(self.places) < len(inputs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True wraps `__torch_dispatch__` in a function that imports torch's compiler: 1.5 seconds

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tuple(self._placed(arg) for arg in args)
        self.problem |= any(isinstance(value, Tensor) for value in kwargs.values())
        self.problem |= torch.Tag.dynamic_output_shape in function.tags or function.name() in SHAPED_BY_VALUES
        found = function(*args, **kwargs)
        several = found if isinstance(found, (tuple, list)) else (found,)
        absent = isinstance(found, tuple)  # then some results may be None
        self.problem |= not all(isinstance(one, Tensor) or (absent and one is None) for one in several)  # reads values
        if len(several) == 1 and given and isinstance(given[0], _Place) and _same_view(function, args[0], found):
            self.alive.append(found)
            self.places[id(found)] = given[0].number
            return found
        results = tuple(self._seen(one) if isinstance(one, Tensor) else None for one in several)
        if function is torch.ops.aten.ones_like.default and found.is_contiguous():
            # A backward pass starts with these ones. Without the dependency on the loss, `without_outputs` can omit it.
            function, given = torch.ops.aten.ones.default, (list(found.shape),)
            kwargs = {"dtype": found.dtype, "device": found.device}
        self.lines.append(_Line(function, given, kwargs, results))
        return found

    def whole(self, function: Any, args: tuple[Any, ...]) -> Tensor:
        """Call a function that computes outside torch, and record it as one operation."""
        given = tuple(self._placed(arg) for arg in args)
        with _disable_current_modes():
            found: Tensor = function(*args)
        self.lines.append(_Line(function, given, {}, (self._seen(found),)))
        return found

    def _placed(self, arg: Any) -> Any:
        if isinstance(arg, Tensor):
            known = id(arg) in self.places
            place = self._seen(arg)
            if not known:
                self.outside.append(arg)
            return _Place(place)
        if isinstance(arg, (list, tuple)):
            return [self._placed(one) for one in arg]
        return arg

    def _seen(self, tensor: Tensor) -> int:
        if id(tensor) not in self.places:
            self.alive.append(tensor)
            self.places[id(tensor)] = len(self.alive) - 1
        return self.places[id(tensor)]

    def constants(self) -> dict[int, Tensor]:
        return {self.places[id(t)]: t for t in self.outside}

    @property
    def leaks(self) -> bool:
        """Whether a tensor from outside shares memory with one made inside, so that it is not a constant."""
        outside = {id(t) for t in self.outside}
        inside = {_memory(t) for t in self.alive if id(t) not in outside}
        return any(_memory(t) in inside for t in self.outside)


def _same_view(function: Any, given: Tensor, found: Any) -> bool:
    """Whether the result of an operation is the same view of memory as its argument."""
    if not function._schema.returns or not isinstance(found, Tensor) or function._schema.is_mutable:
        return False
    alias = function._schema.returns[0].alias_info is not None and _memory(given) == _memory(found)
    where = (given.shape, given.stride(), given.storage_offset(), given.dtype)
    return alias and where == (found.shape, found.stride(), found.storage_offset(), found.dtype)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _used(arg: Any) -> list[int]:
    if isinstance(arg, _Place):
        return [arg.number]
    return [number for one in arg for number in _used(one)] if isinstance(arg, list) else []


def _needed(lines: Sequence[_Line], wanted: set[int]) -> list[_Line]:
    """The lines whose results are outputs or used by a needed line, and those that write in place."""
    kept: list[_Line] = []
    for line in reversed(lines):
        if line.writes or wanted & set(line.results):
            wanted |= {number for arg in line.args for number in _used(arg)}
            kept.append(line)
    return kept[::-1]


def _freed(
    lines: Sequence[_Line],
    inputs: int,
    constants: dict[int, Tensor],
    outputs: tuple[int, ...],
    written: tuple[int, ...],
) -> Tape:
    """A tape that frees every tensor after its last use."""
    last: dict[int, int] = {}
    for at, line in enumerate(lines):
        made = (number for number in line.results if number is not None)
        for number in (*made, *(n for arg in line.args for n in _used(arg))):
            last[number] = at
    stay = {*range(inputs), *constants, *outputs}
    ends: dict[int, list[int]] = {}
    for number, at in last.items():
        if number not in stay:
            ends.setdefault(at, []).append(number)
    done = tuple(line._replace(free=tuple(ends.get(at, ()))) for at, line in enumerate(lines))
    return Tape(done, inputs, constants, outputs, written)


# ---- which steps are replayed


class Step(int):
    """The number of a step, which notes whether it is used."""

    used = False


def _noting_use(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def use(self: Step, *others: Any) -> Any:
        self.used = True
        return plain(self, *others)

    return use


_UNARY = ["index", "int", "float", "bool", "hash", "str", "repr", "format", "neg", "pos", "abs", "invert"]
_COMPARED = ["eq", "ne", "lt", "le", "gt", "ge"]
_BINARY = ["add", "sub", "mul", "mod", "floordiv", "truediv", "divmod", "pow", "and", "or", "xor", "lshift", "rshift"]
for _word in (*_UNARY, *_COMPARED, *_BINARY, *(f"r{word}" for word in _BINARY)):
    setattr(Step, f"__{_word}__", _noting_use(f"__{_word}__"))


@dataclass
class Player:
    """Runs one function on inputs of one signature: replays its tape once that is known to agree with the function."""

    of: tuple[Any, ...]
    """What identifies the function; kept alive, because ids are only unique among living objects."""
    whole: Tape | None = None
    lean: Tape | None = None
    """The tape without outputs; set once `whole` is trusted."""
    calls: int = 0
    timed: int = 0
    seconds_per_operation: float = inf
    """The minimum over the replays that were timed."""

    @property
    def trusted(self) -> bool:
        """Whether calls are replayed from now on."""
        return self.lean is not None

    @property
    def refused(self) -> bool:
        """Whether the function cannot be replayed: it depends on values, or its tape gave different bits."""
        return self.calls > 1 and self.whole is None

    def run(
        self, function: Function, inputs: Sequence[Tensor], step: int | Tensor, *, outputs: bool = True
    ) -> Sequence[Tensor]:
        """The function's outputs; with `outputs=False`, only what it writes into its inputs is computed."""
        if self.lean is not None and self.whole is not None:
            trusted = self.whole if outputs else self.lean
            return trusted.play(inputs) if self.timed >= TIMED_REPLAYS else self._timed(trusted, inputs)
        self.calls += 1
        if self.calls == 2:
            found, tape = record(function, inputs)
            self.whole = None if isinstance(step, Step) and step.used else tape
            return found
        return function(inputs) if self.whole is None else self._compared(function, inputs, self.whole)

    def _timed(self, tape: Tape, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        began = perf_counter()
        found = tape.play(inputs)
        seconds = (perf_counter() - began) / max(1, len(tape.lines))
        self.seconds_per_operation = min(self.seconds_per_operation, seconds)
        self.timed += 1
        return found

    def _compared(self, function: Function, inputs: Sequence[Tensor], tape: Tape) -> Sequence[Tensor]:
        """Compute the function both ways, and trust the tape if every bit agrees."""
        copies = [t.clone() if place in tape.written else t for place, t in enumerate(inputs)]
        played = _attempted(tape, copies)
        found = function(inputs)
        pairs = [*zip(found, played or (), strict=False), *((inputs[i], copies[i]) for i in tape.written)]
        same = played is not None and all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)
        self.whole, self.lean = (tape, tape.without_outputs()) if same else (None, None)
        return found


def _attempted(tape: Tape, inputs: Sequence[Tensor]) -> list[Tensor] | None:
    """The outputs of a tape; None if it fails, as it may if an operation depends on more than its arguments."""
    try:
        return tape.play(inputs)
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        return None


@dataclass
class Tapes:
    """The tapes of an engine, by function and by the signature of its inputs."""

    kept: dict[Any, Player] = field(default_factory=dict)
    drawing: dict[int, tuple[Any, bool]] = field(default_factory=dict)
    """Objectives and whether their steps are random, by id."""
    replayed: dict[tuple[Any, ...], list[Player]] = field(default_factory=dict)
    """The players of jobs whose every step is replayed, by the job's key: they no longer run code of the objective."""
    dropped: int = 0
    """How often all tapes were dropped because there were too many."""
    _players: dict[int, Player] | None = None
    """The players that the current job has used, by id; None outside a job."""
    _recorder: int | None = None
    """The only thread that may run code of the objective; None if there is just one."""

    @property
    def all_replay(self) -> bool:
        """Whether every function seen so far can be replayed."""
        return not any(player.refused for player in self.kept.values())

    @contextmanager
    def job(self, key: tuple[Any, ...]) -> Iterator[None]:
        """Add the job that runs inside to `replayed` if all functions that it ran are replayed and their tapes kept."""
        self._players, dropped = {}, self.dropped
        try:
            yield
            if self.dropped == dropped and all(player.timed for player in self._players.values()):
                self.replayed[key] = list(self._players.values())
        finally:
            self._players = None

    @contextmanager
    def recording_on_this_thread_only(self) -> Iterator[None]:
        """While other threads replay tapes, raise if one of them needs a tape that is not there.

        Modules are not thread-safe: two threads in one at once would silently mix up their clients' parameters.
        """
        self._recorder = get_ident()
        try:
            yield
        finally:
            self._recorder = None

    def seconds_per_operation(self, keys: Iterable[tuple[Any, ...]]) -> float:
        """The mean over the tapes of these jobs, each played on a single thread."""
        players = {id(player): player for key in keys for player in self.replayed[key]}.values()
        return fmean(player.seconds_per_operation for player in players) if players else 0.0

    def prepare(self, objective: Any, draws: Draws) -> Draws:
        """The draws of a step whose number notes whether it is read; with the step's key if the objective is random."""
        _, random = self.drawing.get(id(objective), (objective, False))
        draws = draws.with_step_key() if random else draws
        return draws._replace(step=Step(draws.step))

    def note(self, objective: Any, draws: Draws) -> None:
        """Remember, after the first step of an objective, whether it is random."""
        if id(objective) not in self.drawing and isinstance(draws.step, Step):
            self.drawing[id(objective)] = objective, draws.step.used

    def player(self, of: tuple[Any, ...], inputs: Sequence[Tensor]) -> Player:
        """The player of a function for such inputs; `of` identifies the function."""
        signature = ((t.shape, t.stride(), t.dtype, t.device) for t in inputs)
        name = (*(part if isinstance(part, (str, float, bool)) else id(part) for part in of), *signature)
        elsewhere = self._recorder not in (None, get_ident())
        if elsewhere and not (name in self.kept and self.kept[name].trusted):
            raise RuntimeError("a client on a thread of its own needs a step that is not recorded")
        if name not in self.kept:
            if len(self.kept) >= MAX_TAPES:
                self.kept.clear()
                self.drawing.clear()
                self.replayed.clear()
                self.dropped += 1
            self.kept[name] = Player(of)
        player = self.kept[name]
        if self._players is not None:
            self._players[id(player)] = player
        return player

    def run(
        self,
        of: tuple[Any, ...],
        function: Function,
        inputs: Sequence[Tensor],
        step: int | Tensor,
        *,
        outputs: bool = True,
    ) -> Sequence[Tensor]:
        """A function's outputs, replayed if the tape is known to agree."""
        return self.player(of, inputs).run(function, inputs, step, outputs=outputs)
