"""A step of training recorded once and played again: the same operations on other numbers.

Under vmap and autograd a step of a small model takes longer in Python than in arithmetic: some 3 ms for 0.3 ms of
products. What reaches the processor in the end is a list of plain operations, the same for every step on tensors of the
same shapes. So the first step is recorded below vmap and autograd, the second one is done both ways, and if every bit
agrees the list is played from then on. A step that looks at values (`item`), at the number of the step (dropout) or
at what is kept elsewhere is never played.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Of some inputs, which it may write into, to some outputs."""
MOST = 256
"""Tapes that are kept."""


class _Place(NamedTuple):
    """Where a tensor is while a tape plays."""

    number: int


class _Line(NamedTuple):
    """One operation: what it is given, where its results go, and which places are free afterwards."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int, ...]
    free: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tape:
    """The operations of a function, for inputs of one signature."""

    lines: tuple[_Line, ...]
    inputs: int
    constants: dict[int, Tensor]
    outputs: tuple[int, ...]
    written: tuple[int, ...]
    """Inputs that it writes into."""

    def play(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Do to other tensors what was done to the first ones."""
        places: dict[int, Any] = {**self.constants, **dict(enumerate(inputs))}
        for function, args, kwargs, results, free in self.lines:
            found = function(*[places[a.number] if type(a) is _Place else _filled(a, places) for a in args], **kwargs)
            if len(results) == 1:
                places[results[0]] = found[0] if isinstance(found, (tuple, list)) else found
            else:
                places.update(zip(results, found, strict=True))
            for number in free:
                del places[number]
        return [places[number] for number in self.outputs]

    def without_outputs(self) -> Tape:
        """For what it writes into its inputs alone: operations that nothing else needs are left out."""
        return _freed(_needed(self.lines, set()), self.inputs, self.constants, (), self.written)


def record(function: Function, inputs: Sequence[Tensor]) -> tuple[Sequence[Tensor], Tape | None]:
    """What a function gives, and its tape; None where it cannot be played."""
    recorder = _Recorder(inputs)
    before = [t._version for t in inputs]
    with recorder:
        outputs = function(inputs)
    if recorder.problem or recorder.leaks or any(id(out) not in recorder.places for out in outputs):
        return outputs, None
    written = tuple(i for i, t in enumerate(inputs) if t._version != before[i])
    ends = tuple(recorder.places[id(out)] for out in outputs)
    return outputs, _freed(_needed(recorder.lines, set(ends)), len(inputs), recorder.constants(), ends, written)


class _Recorder(TorchDispatchMode):
    """Writes down every operation, with tensors by the place that they were first seen at."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[_Line] = []
        self.alive = list(inputs)  # an id is only good while its tensor lives
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
        found = function(*args, **kwargs)
        several = found if isinstance(found, (tuple, list)) else (found,)
        self.problem |= not all(isinstance(one, Tensor) for one in several)  # a number, or no value: it looks at values
        if len(several) == 1 and given and isinstance(given[0], _Place) and _same_view(function, args[0], found):
            self.alive.append(found)
            self.places[id(found)] = given[0].number
            return found
        results = tuple(self._seen(one) for one in several if isinstance(one, Tensor))
        if function is torch.ops.aten.ones_like.default and found.is_contiguous():
            # A backward begins with these. They need no number of the loss: a tape without outputs can leave it out.
            function, given = torch.ops.aten.ones.default, (list(found.shape),)
            kwargs = {"dtype": found.dtype, "device": found.device}
        self.lines.append(_Line(function, given, kwargs, results))
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
        """Whether a tensor from outside shares memory with one from inside: then it is no constant."""
        outside = {id(t) for t in self.outside}
        inside = {_memory(t) for t in self.alive if id(t) not in outside}
        return any(_memory(t) in inside for t in self.outside)


def _same_view(function: Any, given: Tensor, found: Any) -> bool:
    """Whether an operation only gives its argument another name."""
    if not function._schema.returns or not isinstance(found, Tensor) or function._schema.is_mutable:
        return False
    alias = function._schema.returns[0].alias_info is not None and _memory(given) == _memory(found)
    where = (given.shape, given.stride(), given.storage_offset(), given.dtype)
    return alias and where == (found.shape, found.stride(), found.storage_offset(), found.dtype)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _filled(arg: Any, places: dict[int, Any]) -> Any:
    if type(arg) is _Place:
        return places[arg.number]
    return [_filled(one, places) for one in arg] if type(arg) is list else arg


def _used(arg: Any) -> list[int]:
    if isinstance(arg, _Place):
        return [arg.number]
    return [number for one in arg for number in _used(one)] if isinstance(arg, list) else []


def _needed(lines: Sequence[_Line], wanted: set[int]) -> list[_Line]:
    """The lines whose results are wanted, in the end or by a line that is kept, and those that write in place."""
    kept: list[_Line] = []
    for line in reversed(lines):
        if line.function._schema.is_mutable or wanted & set(line.results):
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
    """A tape that lets go of every tensor after its last use."""
    last: dict[int, int] = {}
    for at, line in enumerate(lines):
        for number in (*line.results, *(n for arg in line.args for n in _used(arg))):
            last[number] = at
    stay = {*range(inputs), *constants, *outputs}
    ends: dict[int, list[int]] = {}
    for number, at in last.items():
        if number not in stay:
            ends.setdefault(at, []).append(number)
    done = tuple(line._replace(free=tuple(ends.get(at, ()))) for at, line in enumerate(lines))
    return Tape(done, inputs, constants, outputs, written)


# ---- which steps are played


class Step(int):
    """The number of a step that tells when somebody uses it."""

    used = False


def _telling(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def use(self: Step, *others: Any) -> Any:
        self.used = True
        return plain(self, *others)

    return use


_UNARY = ["index", "int", "float", "bool", "hash", "str", "repr", "format", "neg", "pos", "abs", "invert"]
_COMPARED = ["eq", "ne", "lt", "le", "gt", "ge"]
_BINARY = ["add", "sub", "mul", "mod", "floordiv", "truediv", "divmod", "pow", "and", "or", "xor", "lshift", "rshift"]
for _word in (*_UNARY, *_COMPARED, *_BINARY, *(f"r{word}" for word in _BINARY)):
    setattr(Step, f"__{_word}__", _telling(f"__{_word}__"))


class _Kept(NamedTuple):
    whole: Tape | None
    """None where it cannot be played."""
    of: tuple[Any, ...]
    """Held on to: an id is only good while its object lives."""
    lean: Tape | None = None
    """Without outputs; only of a tape that is trusted."""


@dataclass
class Tapes:
    """The tapes of an engine, by what they are of and the signature of their inputs."""

    kept: dict[Any, _Kept] = field(default_factory=dict)

    def run(
        self, of: tuple[Any, ...], function: Function, inputs: Sequence[Tensor], step: Step, *, outputs: bool = True
    ) -> Sequence[Tensor]:
        """Do what the function does, by its tape where that is known to be the same; `of` says which function it is.

        Without `outputs` only what is written into the inputs counts.
        """
        signature = ((t.shape, t.stride(), t.dtype, t.device) for t in inputs)
        name = (*(part if isinstance(part, (str, float, bool)) else id(part) for part in of), *signature)
        kept = self.kept.get(name)
        if kept is None:
            if len(self.kept) >= MOST:
                self.kept.clear()
            found, tape = record(function, inputs)
            self.kept[name] = _Kept(None if step.used else tape, of)
            return found
        if kept.lean is not None:
            assert kept.whole is not None
            return (kept.whole if outputs else kept.lean).play(inputs)
        if kept.whole is None:
            return function(inputs)
        copies = [t.clone() if place in kept.whole.written else t for place, t in enumerate(inputs)]
        played = kept.whole.play(copies)
        found = function(inputs)
        pairs = [*zip(found, played, strict=True), *((inputs[i], copies[i]) for i in kept.whole.written)]
        same = all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)
        self.kept[name] = kept._replace(lean=kept.whole.without_outputs()) if same else kept._replace(whole=None)
        return found
