"""Jobs on several threads: all of them are done, or the first error ends them."""

import os
import threading
import time

import pytest
import torch

from corymb.engines.vectorised.threads import (
    GIL_SECONDS,
    Cancelled,
    _pool,
    even_slices,
    one_thread,
    run_jobs,
    worthwhile_threads,
)


@pytest.mark.parametrize("total", [1, 2, 7, 100])
@pytest.mark.parametrize("longest", [1, 3, 13, 200])
@pytest.mark.parametrize("multiple", [1, 2, 3])
def test_slices_cover_everything_once_in_like_sizes(total, longest, multiple):
    slices = even_slices(total, longest, multiple)
    assert [i for some in slices for i in range(total)[some]] == list(range(total))
    sizes = [some.stop - some.start for some in slices]
    assert 1 <= min(sizes) <= max(sizes) <= min(longest, min(sizes) + 1)
    assert len(slices) % multiple == 0 or len(slices) == total


@pytest.mark.parametrize(("operations", "threads"), [(0.0, 1), (0.5, 1), (1.9, 1), (2.1, 2), (7.5, 7), (100, 16)])
def test_longer_operations_pay_for_more_threads(operations, threads):
    assert worthwhile_threads(operations * GIL_SECONDS, 16) == threads


@pytest.mark.parametrize("threads", [2, 4])
def test_every_job_is_done_once(threads):
    done, who, before = list[int](), set[str](), torch.get_num_threads()

    def do(job, *_):
        time.sleep(0.002)
        done.append(job.start)
        who.add(threading.current_thread().name)
        assert torch.get_num_threads() == 1

    with one_thread():
        run_jobs(even_slices(40, 1), do, do, threads)
    assert sorted(done) == list(range(40))
    assert len(who) > 1
    assert torch.get_num_threads() == before


def test_modes_of_torch_hold_on_other_threads():
    modes = list[tuple[bool, bool]]()

    def note(job, *_):
        time.sleep(0.002)
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    with one_thread(), torch.no_grad():
        run_jobs(even_slices(8, 1), note, note, 2)
    with one_thread(), torch.inference_mode():
        run_jobs(even_slices(8, 1), note, note, 2)
    assert modes == 8 * [(False, False)] + 8 * [(False, True)]


def test_threads_that_begin_later_have_as_many_threads_of_torch_as_before():
    """Also if a thread of the pool starts too late for any job."""
    before, seen = torch.get_num_threads(), list[int]()
    torch.set_num_threads(3)
    try:
        for _ in range(20):
            _pool.cache_clear()
            with one_thread():
                run_jobs(even_slices(8, 1), lambda job: None, lambda job, check: None, 8)
            later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
            later.start()
            later.join()
    finally:
        torch.set_num_threads(before)
    assert seen == [3] * 20


@pytest.mark.parametrize("after", [0, 1, 2])
def test_ctrl_c_while_threads_start_ends_their_work(after, monkeypatch):
    done, pool = list[int](), _pool()

    class Interrupted:
        calls = 0

        def submit(self, work):
            self.calls += 1
            if self.calls > after:
                raise KeyboardInterrupt
            return pool.submit(work)

    def slowly(job, check):
        for _ in range(50):
            time.sleep(0.001)
            check()
        done.append(job.start)

    interrupted = Interrupted()
    monkeypatch.setattr("corymb.engines.vectorised.threads._pool", lambda: interrupted)
    with one_thread(), pytest.raises(KeyboardInterrupt):
        run_jobs(even_slices(100, 1), lambda job: None, slowly, 4)
    time.sleep(0.15)
    assert not done


def test_an_error_on_another_thread_is_raised_and_ends_the_rest():
    done = list[int]()

    def on_caller(job):
        time.sleep(0.005)
        done.append(job.start)

    def on_worker(job, check):
        raise ValueError("on a worker")

    with one_thread(), pytest.raises(ValueError, match="on a worker"):
        run_jobs(even_slices(1000, 1), on_caller, on_worker, 2)
    assert len(done) < 10


def test_an_error_on_the_caller_cancels_jobs_on_other_threads():
    cancelled, begun = list[bool](), threading.Event()

    def on_caller(job):
        begun.wait(10)
        raise TimeoutError

    def on_worker(job, check):
        begun.set()
        try:
            for _ in range(1000):
                time.sleep(0.005)
                check(0.0)
        except Exception:
            cancelled.append(True)
            raise

    with one_thread(), pytest.raises(TimeoutError):
        run_jobs(even_slices(4, 1), on_caller, on_worker, 2)
    assert cancelled == [True]


def test_what_is_raised_while_other_threads_finish_cancels_them():
    looked, cancelled = list[bool](), list[bool]()

    def on_worker(job, check):
        for _ in range(4000):
            time.sleep(0.005)
            try:
                check()
            except Cancelled:
                cancelled.append(True)
                raise

    def look():
        looked.append(True)
        raise TimeoutError

    def on_caller(job):
        time.sleep(0.05)

    began = time.perf_counter()
    with one_thread(), pytest.raises(TimeoutError):
        run_jobs(even_slices(2, 1), on_caller, on_worker, 2, look)
    assert (looked, cancelled) == ([True], [True])
    assert time.perf_counter() - began < 5


def test_threads_that_are_busy_with_another_run_are_not_waited_for():
    busy, free, done = threading.Event(), threading.Event(), list[int]()

    def hold(job, check):
        busy.set()
        free.wait(20)

    def note(job, *_):
        time.sleep(0.002)
        done.append(job.start)

    def run_other():
        with one_thread():
            run_jobs(even_slices(2, 1), lambda job: busy.wait(20), hold, 2)

    other = threading.Thread(target=run_other)
    other.start()
    busy.wait(20)
    with one_thread():
        run_jobs(even_slices(20, 1), note, note, 2)
    assert sorted(done) == list(range(20))
    assert not free.is_set()
    free.set()
    other.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_threads_of_its_own():
    def work() -> None:
        with one_thread():
            run_jobs(even_slices(4, 1), lambda job: time.sleep(0.002), lambda job, check: time.sleep(0.002), 2)

    work()
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    for _ in range(1000):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert (pid, status) == (child, 0)
