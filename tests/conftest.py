"""What every test stands on: one thread (the choice of a kernel depends on it) and patient property tests."""

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "house", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("house")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
