"""Freed memory is reused: allocating it again causes no page faults."""

import os
import platform
import subprocess
import sys

import pytest

GLIBC = platform.libc_ver()[0] == "glibc"
COUNT = """
import resource, torch
from corymb.engines.heap import keep_freed_memory
torch.set_num_threads(1)
if {keep}:
    assert keep_freed_memory() is {told}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(12_000_000)  # 48 MB, more than malloc ever takes from its heap by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(sum([faults() for _ in range(30)][-10:]))
"""


def faults(*, keep: bool, told: bool = True, **environment: str) -> int:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | environment
    said = subprocess.run(
        [sys.executable, "-c", COUNT.format(keep=keep, told=told)], capture_output=True, text=True, check=True, env=env
    )
    return int(said.stdout)


@pytest.mark.skipif(not GLIBC, reason="another malloc")
def test_a_large_tensor_is_mapped_once_and_then_reused():
    new = faults(keep=False)
    if new < 1000:
        pytest.skip("this system's pages are huge")
    assert faults(keep=True) < new / 10


@pytest.mark.skipif(not GLIBC, reason="another malloc")
def test_user_settings_of_malloc_are_respected():
    assert faults(keep=True, told=False, MALLOC_TRIM_THRESHOLD_="200000") >= 0
