"""Clients on threads of their own have the bits of one thread, and code of modules stays on the calling thread."""

import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import corymb
from corymb.engines import VectorisedEngine
from corymb.engines.vectorised import threads as threads_module
from corymb.engines.vectorised.kernels import Kernels, groups, one_by_one
from corymb.engines.vectorised.kernels.steps import Steps
from corymb.engines.vectorised.tape import Tapes
from corymb.engines.vectorised.threads import one_thread
from corymb.engines.vectorised.traits import traits_of
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.runs.progress import RoundTimer
from corymb.trees import take
from tests.engines.vectorised.test_tape import LastState, job
from tests.tiny import farthest

HOW = Descent(lr=0.1, steps=5, batch=2)
EPOCHS = Descent(lr=0.1, epochs=2, batch=3, momentum=0.5)
PLAIN_EPOCHS = replace(EPOCHS, momentum=0.0)
CLIENTS = 7


def objective_of(kind=Classification):
    return kind(Network(mlp(4, [6], 3)), 3)


def several_threads(objective, monkeypatch, threads: int, kernel: str = "fused") -> Kernels:
    """Kernels with so little cache that each thread takes one or two of seven clients at a time.

    "layers" is the serial kernel with linear layers that are stepped in their backward pass.
    """
    params, on, _ = job(objective, 0, clients=CLIENTS)
    traits = traits_of(objective, take(params, 0), take(take(on, 0), slice(0, 1)))
    monkeypatch.setattr(groups, "THREADED_CACHE_BYTES", 2 * traits.parameter_bytes)
    monkeypatch.setattr(one_by_one, "WIDE_LAYER_BYTES", 1)
    monkeypatch.setattr("corymb.engines.vectorised.threads.GIL_SECONDS", 1e-9)
    if kernel == "layers":
        return Kernels(traits._replace(convolutional=True), "cpu", threads, replays=True)
    return Kernels(traits, "cpu", threads, only=kernel, replays=True)


@pytest.fixture
def on_threads(monkeypatch) -> set[threading.Thread]:
    """The threads that take steps."""
    seen, step, single = set[threading.Thread](), Steps.fused, one_by_one.descend_single

    def noted(*args, **options):
        seen.add(threading.current_thread())
        return step(*args, **options)

    def noted_single(*args, **options):
        seen.add(threading.current_thread())
        return single(*args, **options)

    monkeypatch.setattr(Steps, "fused", noted)
    monkeypatch.setattr(one_by_one, "descend_single", noted_single)
    return seen


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(
    ("kernel", "how"),
    [("fused", HOW), ("fused", PLAIN_EPOCHS), ("serial", HOW), ("serial", EPOCHS), ("layers", HOW)],
)
def test_clients_on_several_threads_have_the_bits_of_one_thread(kernel, how, threads, own, monkeypatch, on_threads):
    objective = objective_of()
    several, before = several_threads(objective, monkeypatch, threads, kernel), torch.get_num_threads()
    single = replace(several, threads=1, tapes=Tapes())
    for seed in range(20):
        params, on, key = job(objective, seed, clients=CLIENTS)
        with one_thread():
            want, want_loss = single.descend(objective, params, on, key, how)
        given, parts = {name: value.clone() for name, value in params.items()}, list[float]()
        several.watch.report = parts.append
        got, loss = several.descend(objective, given, on, key, how, own=own)
        assert all(torch.equal(got[name], want[name]) for name in want)
        assert torch.equal(loss, want_loss)
        assert parts == sorted(parts)
        assert parts[-1] == 1
    assert len(on_threads) > 1
    assert torch.get_num_threads() == before


class Looks(Classification):
    """Notes the threads that run its code."""

    def losses(self, params, on):
        SEEN.add(threading.current_thread())
        return super().losses(params, on)


SEEN: set[threading.Thread] = set()


@pytest.mark.parametrize("kernel", ["fused", "serial", "layers"])
def test_code_of_objectives_runs_on_the_calling_thread_only(kernel, monkeypatch, on_threads):
    SEEN.clear()
    objective = objective_of(Looks)
    kernels = several_threads(objective, monkeypatch, 2, kernel)
    for rate in (0.1, 0.2):  # another step size may be another tape
        for steps in (2, 5):
            for seed in range(10):
                how = replace(HOW, lr=rate, steps=steps, batch=5)  # of two sizes, and one of another client
                kernels.descend(objective, *job(objective, seed, clients=CLIENTS), how)
    assert len(on_threads) > 1
    assert {threading.current_thread()} == SEEN


@pytest.mark.parametrize("kernel", ["fused", "serial"])
def test_steps_that_cannot_be_replayed_stay_on_the_calling_thread(kernel, monkeypatch, on_threads):
    objective = objective_of()
    kernels = several_threads(objective, monkeypatch, 2, kernel)
    monkeypatch.setattr("corymb.engines.vectorised.tape.record", lambda function, inputs: (function(inputs), None))
    for seed in range(5):
        kernels.descend(objective, *job(objective, seed, clients=CLIENTS), HOW)
    assert on_threads == {threading.current_thread()}
    assert not kernels.tapes.replayed


def test_a_client_on_another_thread_that_needs_a_new_tape_raises(monkeypatch, on_threads):
    objective = objective_of()
    kernels = several_threads(objective, monkeypatch, 2, "serial")
    given = job(objective, 0, clients=CLIENTS)
    for _ in range(3):
        want, _ = kernels.descend(objective, *given, HOW)
    assert len(on_threads) > 1
    kernels.tapes.kept.clear()  # unlike `replayed`, which tells which clients may run on other threads
    tried, single = threading.Event(), one_by_one.descend_single

    def after_another_thread(*args, **options):
        elsewhere = threading.current_thread() is not threading.main_thread()
        assert elsewhere or tried.wait(60)  # else this thread might have recorded the tape again by then
        try:
            return single(*args, **options)
        finally:
            tried.set()

    with monkeypatch.context() as patched:
        patched.setattr(one_by_one, "descend_single", after_another_thread)
        with pytest.raises(RuntimeError, match="not recorded"):
            kernels.descend(objective, *given, HOW)
    kernels.tapes.replayed.clear()
    got, _ = kernels.descend(objective, *given, HOW)
    assert farthest(got, want) == 0


@pytest.mark.parametrize("kernel", ["fused", "serial", "layers"])
def test_short_operations_stay_on_the_calling_thread(kernel, monkeypatch, on_threads):
    objective = objective_of()
    kernels = several_threads(objective, monkeypatch, 2, kernel)
    monkeypatch.setattr("corymb.engines.vectorised.threads.GIL_SECONDS", 1.0)
    for seed in range(5):
        kernels.descend(objective, *job(objective, seed, clients=CLIENTS), HOW)
    assert on_threads == {threading.current_thread()}
    assert 0 < kernels.tapes.seconds_per_operation(kernels.tapes.replayed) < 1


@pytest.mark.parametrize("kernel", ["fused", "serial"])
def test_dropped_tapes_are_recorded_again_on_the_calling_thread(kernel, monkeypatch):
    SEEN.clear()
    monkeypatch.setattr(
        "corymb.engines.vectorised.tape.MAX_TAPES", 1
    )  # clients come in two sizes of pieces, or of batches
    objective = objective_of(Looks)
    kernels = several_threads(objective, monkeypatch, 2, kernel)
    for seed in range(5):
        kernels.descend(objective, *job(objective, seed, clients=CLIENTS), replace(HOW, batch=5))
    assert {threading.current_thread()} == SEEN


def test_a_client_whose_own_tapes_drop_each_other_stays_on_the_calling_thread(monkeypatch):
    SEEN.clear()
    monkeypatch.setattr("corymb.engines.vectorised.tape.MAX_TAPES", 1)
    objective = objective_of(Looks)
    kernels = several_threads(objective, monkeypatch, 2, "serial")
    for seed in range(5):  # a whole batch and the rest of one, each in enough steps to be trusted
        kernels.descend(objective, *job(objective, seed, clients=CLIENTS), Descent(lr=0.1, epochs=5, batch=4))
    assert {threading.current_thread()} == SEEN


def test_examples_in_another_layout_are_recorded_on_the_calling_thread(monkeypatch, on_threads):
    SEEN.clear()
    objective, how = objective_of(Looks), Descent(lr=0.1, steps=5)
    kernels = several_threads(objective, monkeypatch, 2, "serial")
    params, on, key = job(objective, 0, clients=CLIENTS)
    for _ in range(3):
        want, _ = kernels.descend(objective, params, on, key, how)
    turned = on._replace(x=on.x.mT.contiguous().mT)
    got, _ = kernels.descend(objective, params, turned, key, how)
    assert len(on_threads) > 1
    assert {threading.current_thread()} == SEEN
    assert farthest(got, want) < 1e-6


@pytest.mark.parametrize("kernel", ["fused", "serial"])
def test_a_run_that_is_stopped_leaves_no_thread_at_work(kernel, monkeypatch):
    objective = objective_of()
    kernels, before = several_threads(objective, monkeypatch, 2, kernel), torch.get_num_threads()
    given = job(objective, 0, clients=CLIENTS)
    for _ in range(3):
        want, _ = kernels.descend(objective, *given, HOW)

    def stop(part: float) -> None:
        if part > 0.1:
            raise TimeoutError

    kernels.watch.report = stop
    with pytest.raises(TimeoutError):
        kernels.descend(objective, *given, HOW)
    assert torch.get_num_threads() == before
    kernels.watch.report = lambda part: None
    got, _ = kernels.descend(objective, *given, HOW)
    assert farthest(got, want) == 0


def seven_clients():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(56, 4, generator=generator), torch.arange(56) % 3
    return corymb.FederatedDataset.from_arrays(x, y, torch.arange(56) // 8, test=0.25)


@pytest.mark.parametrize(("kernel", "model"), [("serial", lambda: LastState(nn.LSTM)), ("fused", mlp(4, [6], 3))])
def test_time_that_is_up_inside_a_round_ends_it_on_all_threads(kernel, model, monkeypatch, on_threads):
    monkeypatch.setattr(groups, "THREADED_CACHE_BYTES", 1)  # jobs of one client
    monkeypatch.setattr(threads_module, "GIL_SECONDS", 1e-9)  # short operations on several threads too
    objective, how = Classification(Network(model), 3), Descent(lr=0.1, steps=10, batch=3)
    options = {"kernel": kernel, "threads": 2, "evaluate_every": 0}
    late, parts, clock, step = [0.0], list[float](), time.perf_counter, RoundTimer._step
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])

    def told(beat, part):
        if beat.rounds == 1 and beat.active and beat.limit:  # in the second round: its steps are all replayed
            parts.append(part)
            late[0] = 1000.0 if len(parts) == 7 else late[0]
        step(beat, part)

    monkeypatch.setattr(RoundTimer, "_step", told)
    algorithm, data = corymb.FedAvg(rounds=2, local=how), seven_clients()
    run = corymb.fit(algorithm, data, objective, max_seconds=500, **options)
    assert (run.stopped, len(run.history), len(parts)) == ("max_seconds", 1, 7)
    assert parts == sorted(parts)
    assert 0 < parts[-1] < 1
    assert len(on_threads) > 1
    late[0], parts[:] = 0.0, []
    monkeypatch.setattr(RoundTimer, "_step", step)
    whole = corymb.fit(corymb.FedAvg(rounds=1, local=how), data, objective, **options)
    assert all(torch.equal(run.models[name], whole.models[name]) for name in whole.models)


def test_a_thread_that_waits_for_a_longer_client_sees_that_time_is_up(monkeypatch):
    monkeypatch.setattr(threads_module, "POLL_SECONDS", 0.01)
    objective, single, seen, begun = objective_of(), one_by_one.descend_single, list[float](), threading.Event()
    kernels = several_threads(objective, monkeypatch, 2, "serial")
    params, on, key = job(objective, 0, clients=2)
    given = params, on._replace(weight=torch.ones_like(on.weight)), key  # equal sizes: both replay the same tapes
    for _ in range(3):
        kernels.descend(objective, *given, HOW)

    def slow_elsewhere(objective, model, client, *more):
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(10)
        else:
            begun.set()
            for _ in range(2000):
                time.sleep(0.005)
                client.before_step()
        return single(objective, model, client, *more)

    def stop(part: float) -> None:
        seen.append(part)
        if len(seen) > 40:
            raise TimeoutError

    monkeypatch.setattr(one_by_one, "descend_single", slow_elsewhere)
    kernels.watch.report = stop
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        kernels.descend(objective, *given, HOW)
    assert time.monotonic() - began < 5
    assert seen == sorted(seen)


class Peeks(nn.Module):
    """Reads a value into Python, which no tape can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * (1.0 if float(x.detach().sum()) > 1e9 else 2.0)


@pytest.mark.parametrize(("model", "replays"), [(mlp(4, [6], 3), True), (Peeks, False)])
def test_whether_steps_can_be_replayed_is_known_before_a_run(model, replays):
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    data = corymb.FederatedDataset.from_arrays(x, y, torch.arange(40) // 10, test=0)
    engine = VectorisedEngine(Classification(Network(model), 3), data, kernel="serial")
    assert engine.kernels.replays == replays


def test_models_whose_steps_cannot_be_replayed_keep_all_threads(monkeypatch):
    objective, seen = objective_of(), set[int]()
    kernels = replace(several_threads(objective, monkeypatch, 2, "serial"), replays=False)
    single, before = one_by_one.descend_single, torch.get_num_threads()

    def noted(*args, **options):
        seen.add(torch.get_num_threads())
        return single(*args, **options)

    monkeypatch.setattr(one_by_one, "descend_single", noted)
    torch.set_num_threads(2)
    try:
        kernels.descend(objective, *job(objective, 0, clients=CLIENTS), HOW)
    finally:
        torch.set_num_threads(before)
    assert seen == {2}
