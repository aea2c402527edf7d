"""Many clients at once: client functions under vmap, their work with data handed to a kernel.

Clients are sorted by size, cut into chunks that fit a memory budget and padded with weight 0; sums are streamed chunk
by chunk, so that memory holds k models and one chunk, not n models.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.choices import KernelName
from corymb.core.client import Client, ClientFn, Memory, Slot, Split, TestExamplesWanted
from corymb.core.engine import Call, ClientData, Each, Journal, Part, TimeIsUp
from corymb.core.intake import Intake
from corymb.core.objective import Examples, Objective
from corymb.engines.heap import REUSED, keep_freed_memory
from corymb.engines.host import ClientHost, OfHost, Outcome, Replies, as_reply, blame, check_kinds
from corymb.engines.placement import Placement
from corymb.engines.room import copies, isolated
from corymb.engines.vectorised.answers import same_answer, why_answers_differ, why_not_vmap
from corymb.engines.vectorised.blocks import ON_GPU, UNEVEN
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.probe import probe
from corymb.engines.vectorised.traits import Watched
from corymb.local.single_vmap import over_rows
from corymb.trees import flatten, nbytes, unflatten

log = logging.getLogger(__name__)
CPU_BUDGET = 2**29  # by estimates on the safe side; larger chunks gain nothing
LIGHT = 1024  # so many further numbers of padding cost less than another chunk
LEAST, ENOUGH = 64, 1024  # examples by which a client shows what a client function takes,
TRIED = 2**23  # and what they may take of memory by it, as a measure of time
LIKELY_FACTOR = 64  # a client function hardly takes more than this many times one descent
OURS = ("corymb.algorithms.", "corymb.local", "corymb.evaluate")  # where client functions are known to read only
Errors = list[tuple[int, Exception]]


class Need(NamedTuple):
    """What a client function takes of memory for each client."""

    models: int = 1
    """Models that are worked on at once: k where the function maps over the models it was sent."""
    examples: int | None = None
    """Examples of a client that go through a model at once, where that is known to be fewer than all."""
    measures: bool = False
    """Whether all examples go through models beside those, in passes of a bounded size (`blocks.passes`)."""
    reply: int = 0
    """Bytes of the reply and of what the client keeps."""
    part: float = 1.0
    """What was really taken, as a part of what is expected on the safe side; a GPU tells."""


class _Queue(NamedTuple):
    """Clients that are still to be asked, by size."""

    ids: Tensor
    places: Tensor
    """Where each stands among those that were asked."""
    fitting: dict[tuple[Need, int], int]
    """How many of them go into the next chunk, by what they need and the budget, where that is known."""

    def after(self, n: int) -> _Queue:
        """Without the first n."""
        return _Queue(self.ids[n:], self.places[n:], {})


class VectorisedEngine:
    """Runs a call for many clients at once in this process, on CPU or GPU.

    `memory` is the budget of one chunk in bytes (`None`: from the device), `kernel` overrides the choice of kernel.
    `journal` is where client memory outlasts the process.
    """

    def __init__(
        self,
        objective: Objective,
        data: ClientData,
        placement: Placement = Placement(),  # noqa: B008
        *,
        memory: int | None = None,
        kernel: KernelName | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._memory, self._kernel = memory, kernel
        host = ClientHost(objective, data, placement, journal)
        if host.device.type == "cpu":
            keep_freed_memory()
        self._use(host, probe(host, only=kernel))

    def _use(self, host: ClientHost, kernels: Kernels) -> None:
        self.host, self.objective = host, host.objective
        self.commit, self.refresh = host.commit, host.refresh
        self.kernels = kernels
        self.budget = self._memory or _budget(host.device)
        self._serial: set[str] = set()  # client functions that vmap cannot take, or whose answers it would change
        self._looked_at: set[tuple[str, bool]] = set()  # client functions, and whether clients were padded
        self._look_at_test: set[str] = set()
        self._needs: dict[str, Need] = {}
        self._purposes: dict[str, tuple[str, ...]] = {}
        self._latest: tuple[Tensor, Tensor, _Queue] | None = None  # of all clients' sizes and the ids that were asked

    names = OfHost(lambda host: host.names)
    hosts = OfHost(lambda host: host.hosts)
    sizes = OfHost(lambda host: host.sizes)
    schema = OfHost(lambda host: host.schema)
    fingerprint = OfHost(lambda host: host.fingerprint)

    def describe(self) -> dict[str, Any]:
        """What changes bits, for the record of a run."""
        chunk = min(self._most, max(1, self.budget // self._bytes_of(int(self.sizes.max()), Need())))
        kernel = self.kernels.only or self.kernels.pick(None)
        return {
            "engine": "vectorised",
            **self.host.placement.describe(),
            "kernel": kernel,
            "memory": self.budget,
            "chunk": min(chunk, len(self.names)),
        }

    def open(self, objective: Objective, journal: Journal | None = None, session: str = "") -> VectorisedEngine:
        """The same clients with another objective and nothing in their memory; examples are shared."""
        engine, host = copy.copy(self), self.host.opened(objective, journal)
        engine._use(host, self.kernels if objective is self.objective else probe(host, only=self._kernel))
        return engine

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Ask the clients, chunk by chunk."""
        call = self.host.deliver(call)
        intake = Intake.at_host(call, ids, self.sizes)
        blame(*self.fill(call, ids, intake), intake, everybody=len(ids) == len(self.names))
        yield self.host.settle(call, intake)

    def fill(self, call: Call, ids: Tensor, intake: Replies) -> tuple[int, Errors]:
        """Ask the clients and take their replies in: how many answered, and the errors of those that raised."""
        answered, errors = 0, Errors()
        queue = self._queue(ids)
        need = self._need(call, queue.ids, queue.places)
        while len(queue.ids):
            n = queue.fitting.get((need, self.budget)) or self._fitting(self.sizes[queue.ids], need)
            queue.fitting[need, self.budget] = n
            more, problems = self._ask(call, queue.ids[:n], queue.places[:n], intake)
            answered, errors, queue = answered + more, errors + problems, queue.after(n)
        return answered, errors

    def _queue(self, ids: Tensor) -> _Queue:
        """The clients by size; most rounds ask the same ones as the round before."""
        if self._latest is None or self._latest[0] is not self.sizes or not torch.equal(self._latest[1], ids):
            places = self.sizes[ids].argsort(stable=True)
            self._latest = self.sizes, ids, _Queue(ids[places], places, {})
        return self._latest[2]

    # ---- chunks

    def _need(self, call: Call, ids: Tensor, places: Tensor) -> Need:
        """What a client function takes beside one descent, seen at one client the first time it matters."""
        name = f"{call.fn.name} {nbytes((call.args, call.options))}"
        if len(ids) <= 1:
            return Need()  # there is nothing to divide
        if name not in self._needs:
            least, most = (int(size) for size in self.sizes[ids].aminmax())
            alike = most <= UNEVEN * least or not self.kernels.cuts_unlike_sizes
            crowd = len(ids) * self._bytes_of(most, Need())
            if (alike and crowd * LIKELY_FACTOR <= self.budget) or call.fn.name in self._serial:
                return Need()
            # On a GPU the largest tells most, and is quick.
            one = slice(-1, None) if self.host.device.type == "cuda" else slice(1)
            self._needs[name] = self._measured(call, ids[one], places[one])
        return self._needs[name]

    def _measured(self, call: Call, ids: Tensor, places: Tensor) -> Need:
        watch, peak, watched = self.kernels.watch, Peak(self.host.device), Watched(self.objective)
        few = None if self.host.device.type == "cuda" else self._few  # a GPU tells what all of them take
        try:
            with watch.trial(brief=few is not None):
                outcome = self._stacked(call, ids, places, watched, few)
        except TimeIsUp:
            raise
        except Exception:  # what is wrong is found out when everybody is asked
            return Need()
        writes = nbytes([slot.value for slot in outcome.writes.values()])
        size = min(int(self.sizes[ids]), few or 2**62)
        some = max(watched.examples, watch.batch) if 0 < watched.examples < size else None
        need = Need(watch.rows, some, reply=nbytes(outcome.value) + writes)
        if some is None and 0 < watched.trained < size and self.kernels.cuts_unlike_sizes:
            need = need._replace(examples=max(watched.trained, watch.batch), measures=True)
        taken = peak.bytes()
        return need if taken is None else need._replace(part=taken / self._bytes_of_chunk(1, size, need))

    @property
    def _few(self) -> int:
        """Examples by which a client shows on a CPU what a client function takes: fewer where each takes long."""
        return min(ENOUGH, max(LEAST, TRIED // max(1, self.kernels.traits.activation_bytes)))

    def _bytes_of(self, size: int, need: Need) -> int:
        """What one client with `size` examples takes in a chunk, roughly and on the safe side."""
        traits, table = self.kernels.traits, self.host.examples["train"]
        example = table.row_bytes + 16
        at_once = size if need.examples is None else min(size, need.examples)
        together = self.kernels.pick(None, at_once) == "foreach"
        copies = 8 if together else 4  # the model, its start, its reply, steps in flight
        passing = at_once * (example + 3 * traits.activation_bytes)
        work = passing + copies * traits.parameter_bytes + (size * example if at_once < size else 0)
        beside = max(0, need.reply - traits.parameter_bytes)  # a reply, and its copy on the way out of vmap
        return int(need.part * (need.models * work + 2 * beside)) + 64

    def _bytes_of_chunk(self, clients: int, size: int, need: Need) -> int:
        """What so many clients take, the largest of which has `size` examples."""
        passing = min(ON_GPU, 3 * clients * size * self.kernels.traits.activation_bytes) if need.measures else 0
        return clients * self._bytes_of(size, need) + int(need.part * passing)

    def _fitting(self, sizes: Tensor, need: Need) -> int:
        """How many of the clients (sorted by size) go into the next chunk."""
        passing = sizes if need.examples is None else sizes.clamp(max=need.examples)  # padding beyond costs memory only
        first = int(passing[0])
        light = max(8, LIGHT // max(1, self.host.examples["train"].x[:1].numel()))
        n = min(self._most, int((passing <= max(UNEVEN * first, first + light)).sum()))
        low, high = 1, n
        if self._bytes_of_chunk(n, int(sizes[n - 1]), need) <= self.budget:
            return n
        while low < high:  # the need grows with the number: bisect
            middle = (low + high + 1) // 2
            fits = self._bytes_of_chunk(middle, int(sizes[middle - 1]), need) <= self.budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    @property
    def _most(self) -> int:
        """Clients whose stack of the largest parameter is not too large for a tensor."""
        return max(8, REUSED // self.kernels.traits.largest_bytes) if self.host.device.type == "cpu" else 2**62

    # ---- one chunk

    def _ask(self, call: Call, ids: Tensor, places: Tensor, intake: Replies) -> tuple[int, Errors]:
        """Ask a chunk; how many answered, and the errors of those that raised."""
        if call.fn.name in self._serial:
            return self.host.ask_each(call, zip(ids.tolist(), places.tolist(), strict=True), intake)
        self.host.begun(ids.tolist())
        try:
            value, writes = self._stacked(call, ids, places)
        except TimeIsUp:
            raise
        except Exception as error:  # whose fault it is, is found out below
            if _out_of_memory(error) and len(ids) > 1:
                self.budget = max(1, self.budget // 2)
                log.warning("out of memory with %d clients at once: chunks are halved", len(ids))
                return self._halves(call, ids, places, intake)
            return self._find_fault(call, ids, places, intake, error)
        if len(ids) > 1 and not _reads_only(call):
            problem = self._problem_of_company(call, ids, places, Outcome(value, writes))
            if problem is not None:
                self._serial.add(call.fn.name)
                log.warning("%s runs client by client: %s", call.fn.name, problem)
                return self._ask(call, ids, places, intake)
        intake.add_rows(ids, value, writes)
        return len(ids), []

    def _problem_of_company(self, call: Call, ids: Tensor, places: Tensor, together: Outcome) -> str | None:
        """What is wrong where a client answers otherwise when it is asked alone; None if it does not.

        A function is looked at once in a chunk without padding and once in one with it.
        """
        one, padded = self._most_padded(call, ids)
        if {(call.fn.name, padded), (call.fn.name, True)} & self._looked_at:
            return None
        self._looked_at.add((call.fn.name, padded))
        self.host.begun([int(ids[one])])
        here = slice(one, one + 1)
        try:
            with self.kernels.watch.silent():
                alone = self._stacked(call, ids[here], places[here])
                if same_answer(alone, together, one):
                    return None
                again = self._stacked(call, ids[here], places[here])
        except TimeIsUp:
            raise
        except Exception:  # together it worked: whatever this is, it says nothing about the answers
            return None
        return why_answers_differ(alone, again, together)

    def _most_padded(self, call: Call, ids: Tensor) -> tuple[int, bool]:
        """The place of a client whose examples are padded in this stack, the most of all if it can be; and whether."""
        tables = [self.host.examples["train"]]
        if call.fn.name in self._look_at_test:
            tables.append(self.host.examples["test"])
        for sizes in (table.sizes[ids] for table in tables):
            if bool((sizes < sizes.max()).any()):
                return int(sizes.argmin()), True
        return 0, False

    def _halves(self, call: Call, ids: Tensor, places: Tensor, intake: Replies) -> tuple[int, Errors]:
        half = len(ids) // 2
        first, problems = self._ask(call, ids[:half], places[:half], intake)
        second, more = self._ask(call, ids[half:], places[half:], intake)
        return first + second, problems + more

    def _find_fault(
        self, call: Call, ids: Tensor, places: Tensor, intake: Replies, error: Exception
    ) -> tuple[int, Errors]:
        """A chunk raised: vmap cannot take the function, or some clients are at fault, or it is everybody's bug."""
        if len(ids) > 1 and self._works(call, ids[:1], places[:1]):
            return self._halves(call, ids, places, intake)
        errors = Errors()
        for i, (client, place) in enumerate(zip(ids.tolist(), places.tolist(), strict=True)):
            answered, problems = self.host.ask_each(call, [(client, place)], intake)
            errors += problems
            if answered:  # by itself, but not under vmap?
                if not self._works(call, ids[i : i + 1], places[i : i + 1]):
                    self._serial.add(call.fn.name)
                    level = logging.INFO if self.kernels.traits.recurrent else logging.WARNING  # that one is no news
                    log.log(level, "%s runs client by client: %s", call.fn.name, why_not_vmap(error))
                rest = (0, Errors()) if i + 1 == len(ids) else self._ask(call, ids[i + 1 :], places[i + 1 :], intake)
                return 1 + rest[0], errors + rest[1]
        return 0, errors

    def _works(self, call: Call, ids: Tensor, places: Tensor) -> bool:
        try:
            self._stacked(call, ids, places)
        except TimeIsUp:
            raise
        except Exception:  # the caller finds out which it is
            return False
        return True

    def _stacked(
        self, call: Call, ids: Tensor, places: Tensor, objective: Objective | None = None, few: int | None = None
    ) -> Outcome:
        try:
            return self._under_vmap(call, ids, places, objective or self.objective, few)
        except TestExamplesWanted:
            self._look_at_test.add(call.fn.name)
            return self._under_vmap(call, ids, places, objective or self.objective, few)

    def _under_vmap(
        self, call: Call, ids: Tensor, places: Tensor, objective: Objective, few: int | None = None
    ) -> Outcome:
        """Run a call for a stack of clients, on their first `few` examples where only its need is wanted."""
        host = self.host
        splits: list[Split] = ["train", "test"] if call.fn.name in self._look_at_test else ["train"]
        copy = self.kernels.traits.writes or not _reads_only(call)  # a tenth of a round, where batches are few
        unwritten = {split: host.examples[split].unwritten for split in splits}
        examples = {split: host.examples[split].stack(ids, copy=copy) for split in splits}
        padded = {split: table.longest(ids) for split, table in host.examples.items()}
        stored = host.memory.read(ids, padded)
        if few is not None and not any(slot.along for slot in stored.values()):
            examples = {split: Examples(*(t[:, :few] for t in on)) for split, on in examples.items()}
            padded = {split: min(few, longest) for split, longest in padded.items()}
        along = {name: slot.along for name, slot in stored.items()}
        slots = {name: (slot.value, slot.present) for name, slot in stored.items()}
        every = (*call.args, *call.options.values())
        given_args = copies([None if isinstance(arg, Each) else arg for arg in every])
        rows = [_rows_at(arg, places) for arg in every]
        purposes = self._purposes.get(call.fn.name, ())  # what it asked for keys for the last time
        inputs, structure = flatten((examples, slots, host.keys(call, ids, purposes), rows))
        answer: dict[str, Any] = {}

        def one(*leaves: Tensor) -> tuple[Tensor, ...]:
            given, kept, keys, own = unflatten(structure, leaves)
            memory = Memory(
                {name: Slot(value, present, along[name]) for name, (value, present) in kept.items()},
                lengths=padded,
                readonly=call.readonly,
            )
            subject = Client(
                train=given["train"],
                test=given.get("test"),
                objective=objective,
                memory=memory,
                key=keys[0],
                keys={purpose: keys[place] for place, purpose in enumerate(purposes, 1)},
                kernel=self.kernels,
            )
            mine = [
                row if isinstance(arg, Each) else given for arg, row, given in zip(every, own, given_args, strict=True)
            ]
            n = len(call.args)
            value = call.fn.body(subject, *mine[:n], **dict(zip(call.options, mine[n:], strict=True)))
            self._purposes[call.fn.name] = subject.purposes
            writes = {name: (slot.value, slot.present) for name, slot in memory.writes.items()}
            answer["along"] = {name: slot.along for name, slot in memory.writes.items()}
            out, answer["structure"] = flatten(as_reply(call.fn, (value, writes)))
            return tuple(leaf.to(host.device) for leaf in out)

        with isolated(), host.placement.computing():
            outputs = [out.detach() for out in over_rows(one, inputs)]  # how clients came by them is nobody else's
        if unwritten != {split: host.examples[split].unwritten for split in splits}:
            raise AssertionError(f"{call.fn.name} wrote into the examples of its clients")
        value, writes = unflatten(answer["structure"], outputs)
        slots_out = {name: Slot(v, present, answer["along"][name]) for name, (v, present) in writes.items()}
        check_kinds(value, slots_out)
        return Outcome(value, slots_out)


class Peak:
    """The most memory that is in use on a GPU between two moments."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.before = device, 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)

    def bytes(self) -> int | None:
        """So many bytes more than at the beginning; unknown on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) - self.before if self.device.type == "cuda" else None


def _reads_only(call: Call) -> bool:
    """Whether all that runs at clients is this library's, which writes into nobody's examples."""
    functions = [call.fn, *(option for option in call.options.values() if isinstance(option, ClientFn))]
    return all(fn.body.__module__.startswith(OURS) for fn in functions)


def _rows_at(arg: Any, places: Tensor) -> Any:
    return arg.at(places) if isinstance(arg, Each) else None


def _budget(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // 3  # allocations are estimated, and fragments cost
    return CPU_BUDGET


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
