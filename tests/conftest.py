"""Settings of all tests: one thread (the choice of a kernel depends on it), and property tests without deadlines."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=True,  # the same examples on every machine: a change is judged by what it changes
)
settings.register_profile("explore", settings.get_profile("house"), derandomize=False, max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))


LONG = tuple(
    line for line in Path(__file__).with_name("long.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"
)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what -m does not want
def pytest_collection_modifyitems(items):
    """Mark what `long.txt` lists."""
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
