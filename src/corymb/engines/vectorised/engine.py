"""Runs client functions for many clients at once under vmap; a kernel does the work on their data.

Clients are sorted by size, split into chunks that fit a memory budget, and padded with rows of weight 0. Sums are
accumulated chunk by chunk, so that memory holds k models and one chunk, not n models.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corymb.choices import KernelName
from corymb.core.client import Client, ClientFn, Memory, Slot, Split, TestExamplesWanted
from corymb.core.engine import Call, ClientData, Each, Journal, Part, TimeIsUp
from corymb.core.intake import Intake
from corymb.core.objective import Examples, Objective
from corymb.engines.heap import MAX_HEAP_BLOCK, keep_freed_memory
from corymb.engines.host import ClientHost, OfHost, Outcome, Replies, as_reply, blame, check_kinds
from corymb.engines.isolation import copies, isolated
from corymb.engines.placement import Placement
from corymb.engines.vectorised.answers import same_answer, why_answers_differ, why_not_vmap
from corymb.engines.vectorised.blocks import GPU_PASS_BYTES, MAX_SIZE_RATIO
from corymb.engines.vectorised.graphs import Graphs
from corymb.engines.vectorised.kernels import Kernels
from corymb.engines.vectorised.probe import FEWEST_COPIES, probe
from corymb.engines.vectorised.tape import Tapes
from corymb.engines.vectorised.traits import CountedExamples
from corymb.local.single_vmap import over_rows
from corymb.trees import flatten, nbytes, unflatten

log = logging.getLogger(__name__)
CPU_BUDGET = 2**29
"""Bytes of a chunk on a CPU, by conservative estimates; larger chunks are not faster."""
CHEAP_PADDING = 1024
"""Up to this many padded values per client cost less than another chunk."""
MAX_PADDED = 4
"""On a CPU, a chunk has at most this many times the rows of its clients' examples: padding is copied even if it
is never computed with."""
MIN_TRIAL, MAX_TRIAL = 64, 1024
"""The least and the most examples on which the memory need of a client function is measured on a CPU."""
TRIAL_BYTES = 2**23
"""Bytes of activations of those examples, which bound the time of the measurement."""
LIKELY_FACTOR = 64
"""A client function is unlikely to need more memory than this many times that of one descent."""
OWN_MODULES = ("corymb.algorithms.", "corymb.local", "corymb.evaluate")
"""Modules whose client functions are known not to write into examples."""
Errors = list[tuple[int, Exception]]


class Need(NamedTuple):
    """The memory that a client function needs for each client."""

    models: int = 1
    """Models per client that are evaluated or trained at once: k if the function uses vmap over its k models."""
    examples: int | None = None
    """Examples per client that go through a model at once; None if that may be all of them."""
    measures: bool = False
    """Whether, in addition, all examples are evaluated in passes of bounded size (`blocks.passes`)."""
    reply: int = 0
    """Bytes of the reply and of the memory writes."""
    part: float = 1.0
    """The ratio of the measured to the estimated need, which is conservative; 1 on a CPU, where it is not measured."""


class _Queue(NamedTuple):
    """The clients that are still to be asked, sorted by size."""

    ids: Tensor
    places: Tensor
    """The index of each client in the call's list of clients."""
    fitting: dict[tuple[Need, int], int]
    """The size of the next chunk, by need and budget, as far as it has been computed."""

    def after(self, n: int) -> _Queue:
        """The queue without its first n clients."""
        return _Queue(self.ids[n:], self.places[n:], {})


class VectorisedEngine:
    """Runs a call for many clients at once in this process, on CPU or GPU.

    `memory` is the budget of one chunk in bytes (by default, it depends on the device), and `kernel` overrides the
    choice of kernel. `journal` stores client memory beyond the life of the process.
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
        self._use(host, self._probed(host))

    def _use(self, host: ClientHost, kernels: Kernels) -> None:
        self.host, self.objective = host, host.objective
        self.commit, self.refresh = host.commit, host.refresh
        self.kernels = kernels
        self.budget = self._memory or _budget(host.device)
        self._serial: set[str] = set()  # client functions that fail, or answer differently, under vmap
        self._compared: set[tuple[str, bool]] = set()  # client functions whose answers were checked; whether padded
        self._use_test: set[str] = set()  # client functions that read test examples
        self._needs: dict[str, Need] = {}
        self._purposes: dict[str, tuple[str, ...]] = {}  # purposes of the keys that a client function last used
        self._latest: tuple[Tensor, Tensor, _Queue] | None = None  # sizes and ids of the last call, and its queue

    names = OfHost(lambda host: host.names)
    hosts = OfHost(lambda host: host.hosts)
    sizes = OfHost(lambda host: host.sizes)
    schema = OfHost(lambda host: host.schema)
    fingerprint = OfHost(lambda host: host.fingerprint)

    def describe(self) -> dict[str, Any]:
        """The settings that may change results in the last bits, for the record of a run."""
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
        """An engine with the same clients, another objective and empty client memory; examples are shared."""
        engine, host = copy.copy(self), self.host.opened(objective, journal)
        engine._use(host, self.kernels if objective is self.objective else self._probed(host))
        return engine

    def _probed(self, host: ClientHost) -> Kernels:
        return probe(host, only=self._kernel, budget=self._memory or CPU_BUDGET)

    def run(self, call: Call, ids: Tensor) -> Iterator[Part]:
        """Run a call for these clients, chunk by chunk."""
        call = self.host.deliver(call)
        intake = Intake.at_host(call, ids, self.sizes)
        blame(*self.fill(call, ids, intake), intake, everybody=len(ids) == len(self.names))
        yield self.host.settle(call, intake)

    def fill(self, call: Call, ids: Tensor, intake: Replies) -> tuple[int, Errors]:
        """Run a call and pass replies to `intake`; returns how many answered, and the errors of those that raised."""
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
        """The clients sorted by size, cached since most rounds ask the same clients as the last one."""
        if self._latest is None or self._latest[0] is not self.sizes or not torch.equal(self._latest[1], ids):
            places = self.sizes[ids].argsort(stable=True)
            self._latest = self.sizes, ids, _Queue(ids[places], places, {})
        return self._latest[2]

    # ---- chunks

    def _need(self, call: Call, ids: Tensor, places: Tensor) -> Need:
        """The memory need of a client function, measured on one client the first time that it could matter.

        It does not matter if the function runs client by client, or if the clients have similar sizes and fit into one
        chunk by a wide margin (`LIKELY_FACTOR`).
        """
        name = f"{call.fn.name} {nbytes((call.args, call.options))}"
        if len(ids) <= 1:
            return Need()  # nothing to split into chunks
        if name not in self._needs:
            least, most = (int(size) for size in self.sizes[ids].aminmax())
            similar = most <= MAX_SIZE_RATIO * least or not self.kernels.splits_by_size
            total = len(ids) * self._bytes_of(most, Need())
            if (similar and total * LIKELY_FACTOR <= self.budget) or call.fn.name in self._serial:
                return Need()
            # The largest client gives the best estimate, and on a GPU it is quick; on a CPU the smallest is used.
            one = slice(-1, None) if self.host.device.type == "cuda" else slice(1)
            self._needs[name] = self._measured(call, ids[one], places[one])
        return self._needs[name]

    def _measured(self, call: Call, ids: Tensor, places: Tensor) -> Need:
        watch, peak, counted = self.kernels.watch, Peak(self.host.device), CountedExamples(self.objective)
        few = None if self.host.device.type == "cuda" else self._trial_examples  # a GPU measures bytes: use all
        try:
            with watch.trial(brief=few is not None):
                outcome = self._stacked(call, ids, places, counted, few)
        except TimeIsUp:
            raise
        except Exception:  # the call itself will find out what is wrong
            return Need()
        writes = nbytes([slot.value for slot in outcome.writes.values()])
        size = min(int(self.sizes[ids]), few or 2**62)
        examples = max(counted.examples, watch.batch) if 0 < counted.examples < size else None
        need = Need(watch.rows, examples, reply=nbytes(outcome.value) + writes)
        if examples is None and 0 < counted.trained < size and self.kernels.splits_by_size:
            need = need._replace(examples=max(counted.trained, watch.batch), measures=True)
        taken = peak.bytes()
        return need if taken is None else need._replace(part=taken / self._bytes_of_chunk(1, size, need))

    @property
    def _trial_examples(self) -> int:
        """The number of examples for measuring a client function's need on a CPU: fewer if each takes long."""
        return min(MAX_TRIAL, max(MIN_TRIAL, TRIAL_BYTES // max(1, self.kernels.traits.activation_bytes)))

    def _bytes_of(self, size: int, need: Need) -> int:
        """A conservative estimate of the bytes that a client with `size` examples takes in a chunk."""
        traits, table = self.kernels.traits, self.host.examples["train"]
        example = table.row_bytes + 16
        at_once = size if need.examples is None else min(size, need.examples)
        together = self.kernels.equal or self.kernels.pick(None, at_once) == "foreach"
        copies = 8 if together else FEWEST_COPIES  # the model, its start, its reply, and intermediate results of steps
        passing = at_once * (example + 3 * traits.activation_bytes)
        work = passing + copies * traits.parameter_bytes + (size * example if at_once < size else 0)
        extra = max(0, need.reply - traits.parameter_bytes)  # twice: vmap copies the reply on the way out
        return int(need.part * (need.models * work + 2 * extra)) + 64

    def _bytes_of_chunk(self, clients: int, size: int, need: Need) -> int:
        """An estimate of the bytes of a chunk of `clients` clients, the largest of which has `size` examples."""
        passing = min(GPU_PASS_BYTES, 3 * clients * size * self.kernels.traits.activation_bytes) if need.measures else 0
        return clients * self._bytes_of(size, need) + int(need.part * passing)

    def _fitting(self, sizes: Tensor, need: Need) -> int:
        """How many of the clients, whose sizes ascend, go into the next chunk."""
        passing = sizes if need.examples is None else sizes.clamp(max=need.examples)  # more padding costs only memory
        first = int(passing[0])
        cheap = max(8, CHEAP_PADDING // max(1, self.host.examples["train"].x[:1].numel()))
        n = min(self._most, int((passing <= max(MAX_SIZE_RATIO * first, first + cheap)).sum()))
        if self.host.device.type == "cpu":
            counts = torch.arange(1, n + 1)
            padded = (sizes[:n] - cheap).clamp_min(0) * counts
            n = 1 + int((padded <= MAX_PADDED * sizes[:n].cumsum(0)).nonzero().max())
        low, high = 1, n
        if self._bytes_of_chunk(n, int(sizes[n - 1]), need) <= self.budget:
            return n
        while low < high:  # bisect: the need grows with the number of clients
            middle = (low + high + 1) // 2
            fits = self._bytes_of_chunk(middle, int(sizes[middle - 1]), need) <= self.budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    @property
    def _most(self) -> int:
        """The most clients in a chunk; on a CPU, malloc can then reuse the block of the largest stacked parameter."""
        return max(8, MAX_HEAP_BLOCK // self.kernels.traits.largest_bytes) if self.host.device.type == "cpu" else 2**62

    # ---- one chunk

    def _ask(self, call: Call, ids: Tensor, places: Tensor, intake: Replies) -> tuple[int, Errors]:
        """Run a call for a chunk; returns how many answered, and the errors of those that raised."""
        if call.fn.name in self._serial:
            return self.host.ask_each(call, zip(ids.tolist(), places.tolist(), strict=True), intake)
        self.host.on_begin(ids.tolist())
        try:
            value, writes = self._stacked(call, ids, places)
        except TimeIsUp:
            raise
        except Exception as error:
            if _out_of_memory(error) and len(ids) > 1:
                self.budget = max(1, self.budget // 2)
                log.warning("out of memory with %d clients at once: halving the size of chunks", len(ids))
                return self._halves(call, ids, places, intake)
            return self._find_fault(call, ids, places, intake, error)
        if len(ids) > 1 and not _reads_only(call):
            problem = self._problem_of_stacking(call, ids, places, Outcome(value, writes))
            if problem is not None:
                self._serial.add(call.fn.name)
                log.warning("%s runs client by client: %s", call.fn.name, problem)
                return self._ask(call, ids, places, intake)
        intake.add_rows(ids, value, writes)
        return len(ids), []

    def _problem_of_stacking(self, call: Call, ids: Tensor, places: Tensor, together: Outcome) -> str | None:
        """Run one client of the chunk alone: None if its answer is the same, else why it differs.

        A client function is checked once in a padded chunk, and before that at most once in a chunk without padding.
        """
        one, padded = self._most_padded(call, ids)
        if {(call.fn.name, padded), (call.fn.name, True)} & self._compared:
            return None
        self._compared.add((call.fn.name, padded))
        self.host.on_begin([int(ids[one])])
        here = slice(one, one + 1)
        try:
            with self.kernels.watch.silent():
                alone = self._stacked(call, ids[here], places[here])
                if same_answer(alone, together, one):
                    return None
                exact = self._in_full_precision()
                if exact is not None:  # the rounding of low precision can exceed any tolerance
                    together, alone = exact._stacked(call, ids, places), exact._stacked(call, ids[here], places[here])
                    if same_answer(alone, together, one):
                        return None
                again = (exact or self)._stacked(call, ids[here], places[here])
        except TimeIsUp:
            raise
        except Exception:  # it worked in the stack, so this says nothing about the answers
            return None
        return why_answers_differ(alone, again, together)

    def _in_full_precision(self) -> VectorisedEngine | None:
        """An engine with the same clients and memory that computes in full precision; None if this one does."""
        placement = self.host.placement
        if not (placement.mixed or placement.tf32):
            return None
        engine, host = copy.copy(self), copy.copy(self.host)
        host.placement = replace(placement, mixed=False, tf32=False)
        engine.host = host
        engine.kernels = replace(self.kernels, mixed=False, tapes=Tapes(), graphs=Graphs())
        return engine

    def _most_padded(self, call: Call, ids: Tensor) -> tuple[int, bool]:
        """The index of the client with the most padding in this chunk, and whether it has any.

        Training examples are considered first, then, if the function reads them, test examples.
        """
        tables = [self.host.examples["train"]]
        if call.fn.name in self._use_test:
            tables.append(self.host.examples["test"])
        for sizes in (table.counts[ids] for table in tables):
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
        """Handle a chunk that raised, which can have three reasons.

        Either some clients fail: the chunk is split until they are found. Or vmap does not support the function: it
        runs client by client from now on. Or the function fails for all clients: their errors are returned.
        """
        if len(ids) > 1 and self._works(call, ids[:1], places[:1]):
            return self._halves(call, ids, places, intake)
        errors = Errors()
        for i, (client, place) in enumerate(zip(ids.tolist(), places.tolist(), strict=True)):
            answered, problems = self.host.ask_each(call, [(client, place)], intake)
            errors += problems
            if answered:  # it works without vmap; if not under vmap, that is the reason
                if not self._works(call, ids[i : i + 1], places[i : i + 1]):
                    self._serial.add(call.fn.name)
                    level = logging.INFO if self.kernels.traits.recurrent else logging.WARNING  # expected if recurrent
                    log.log(level, "%s runs client by client: %s", call.fn.name, why_not_vmap(error))
                rest = (0, Errors()) if i + 1 == len(ids) else self._ask(call, ids[i + 1 :], places[i + 1 :], intake)
                return 1 + rest[0], errors + rest[1]
        return 0, errors

    def _works(self, call: Call, ids: Tensor, places: Tensor) -> bool:
        try:
            self._stacked(call, ids, places)
        except TimeIsUp:
            raise
        except Exception:
            return False
        return True

    def _stacked(
        self, call: Call, ids: Tensor, places: Tensor, objective: Objective | None = None, few: int | None = None
    ) -> Outcome:
        try:
            return self._under_vmap(call, ids, places, objective or self.objective, few)
        except TestExamplesWanted:
            self._use_test.add(call.fn.name)
            return self._under_vmap(call, ids, places, objective or self.objective, few)

    def _stack(
        self, call: Call, ids: Tensor, splits: Sequence[Split], few: int | None
    ) -> tuple[dict[Split, Examples], dict[Split, int], dict[str, Slot]]:
        """Clients' examples, their numbers of rows with padding, and their memory."""
        tables = self.host.examples
        copy = self.kernels.traits.writes or not _reads_only(call)  # a copy takes a tenth of a round with few batches
        examples = {split: tables[split].stack(ids, copy=copy) for split in splits}
        padded = {split: table.longest(ids) for split, table in tables.items()}
        stored = self.host.memory.read(ids, padded)
        if few is not None and not any(slot.along for slot in stored.values()):
            examples = {split: Examples(*(t[:, :few] for t in on)) for split, on in examples.items()}
            padded = {split: min(few, longest) for split, longest in padded.items()}
        return examples, padded, stored

    def _under_vmap(
        self, call: Call, ids: Tensor, places: Tensor, objective: Objective, few: int | None = None
    ) -> Outcome:
        """Run a call for a stack of clients; with `few`, on their first `few` examples, to measure its need."""
        host = self.host
        splits: list[Split] = ["train", "test"] if call.fn.name in self._use_test else ["train"]
        unwritten = {split: host.examples[split].unwritten for split in splits}
        examples, padded, stored = self._stack(call, ids, splits, few)
        along = {name: slot.along for name, slot in stored.items()}
        slots = {name: (slot.value, slot.present) for name, slot in stored.items()}
        every = (*call.args, *call.options.values())
        shared = copies([None if isinstance(arg, Each) else arg for arg in every])
        rows = [_rows_at(arg, places) for arg in every]
        purposes = self._purposes.get(call.fn.name, ())
        inputs, structure = flatten((examples, slots, host.keys(call, ids, purposes), rows))
        answer: dict[str, Any] = {}

        def one(*leaves: Tensor) -> tuple[Tensor, ...]:
            given, slots_of_one, keys, own = unflatten(structure, leaves)
            memory = Memory(
                {name: Slot(value, present, along[name]) for name, (value, present) in slots_of_one.items()},
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
            arguments = [
                row if isinstance(arg, Each) else same for arg, row, same in zip(every, own, shared, strict=True)
            ]
            n = len(call.args)
            value = call.fn.body(subject, *arguments[:n], **dict(zip(call.options, arguments[n:], strict=True)))
            self._purposes[call.fn.name] = subject.purposes
            writes = {name: (slot.value, slot.present) for name, slot in memory.writes.items()}
            answer["along"] = {name: slot.along for name, slot in memory.writes.items()}
            out, answer["structure"] = flatten(as_reply(call.fn, (value, writes)))
            return tuple(leaf.to(host.device) for leaf in out)

        with isolated(), host.placement.computing():
            outputs = [out.detach() for out in over_rows(one, inputs)]  # drop autograd graphs
        if unwritten != {split: host.examples[split].unwritten for split in splits}:
            raise AssertionError(f"{call.fn.name} wrote into its clients' examples")
        value, writes = unflatten(answer["structure"], outputs)
        slots_out = {name: Slot(v, present, answer["along"][name]) for name, (v, present) in writes.items()}
        check_kinds(value, slots_out)
        return Outcome(value, slots_out)


class Peak:
    """The peak of a GPU's memory use since this object was made."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.before = device, 0
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)

    def bytes(self) -> int | None:
        """The peak in bytes above the memory in use at the start; None on a CPU, where it is unknown."""
        return torch.cuda.max_memory_allocated(self.device) - self.before if self.device.type == "cuda" else None


def _reads_only(call: Call) -> bool:
    """Whether only this library's client functions run, which never write into examples."""
    functions = [call.fn, *(option for option in call.options.values() if isinstance(option, ClientFn))]
    return all(fn.body.__module__.startswith(OWN_MODULES) for fn in functions)


def _rows_at(arg: Any, places: Tensor) -> Any:
    return arg.at(places) if isinstance(arg, Each) else None


def _budget(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free // 3  # a margin for errors of the estimates and for fragmentation
    return CPU_BUDGET


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
