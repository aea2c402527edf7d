"""The data of the stress matrix are what their names say."""

from __future__ import annotations

import pytest
import torch

from corymb.recipes.evidence_cases import CASES


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.needs_files])
def test_a_case_has_its_clusters_and_nobody_an_example_twice(name: str) -> None:
    data = CASES[name].make(3)
    assert data.truth is not None
    assert len(data.truth.unique()) == CASES[name].clusters
    smallest = int(data.train.offsets.diff().argmin())
    x, _ = data.train.of(smallest)
    assert len(torch.unique(x, dim=0)) == len(x)
    again = CASES[name].make(3)
    assert torch.equal(data.train.x, again.train.x)
    assert not torch.equal(data.train.x[:5], CASES[name].make(4).train.x[:5])
