"""The stress matrix: how a cell is judged, and that cells run."""

from __future__ import annotations

import pytest

from corymb.recipes.evidence_cases import CASES, WITHOUT
from corymb.recipes.evidence_matrix import cells, judged, named, plain, table, work


def test_names_of_cells_can_be_read_back() -> None:
    names = cells(["ifca"], [0, 1])
    assert len(names) == len(set(names)) == 2 * 3 * len(CASES)
    assert {plain(name.split("/")[0]) for name in names} == set(CASES)
    assert named("55/30/10/5") == "55:30:10:5"


@pytest.mark.parametrize(
    ("k", "ari", "score", "fedavg", "oracle", "wanted"),
    [
        (4, 1.0, 0.95, 0.85, 0.96, (True, True, False)),
        (4, 0.9, 0.95, 0.85, 0.96, (False, True, False)),
        (1, 0.0, 0.85, 0.85, 0.96, (False, False, False)),
        (1, 0.0, 0.95, 0.955, 0.96, (True, True, False)),
    ],
)
def test_right_and_near(
    k: int, ari: float, score: float, fedavg: float, oracle: float, wanted: tuple[bool, bool, bool]
) -> None:
    found = {"k": k, "ari": ari, "score": score, "accuracy": True}
    assert judged("rotations", found, fedavg, oracle) == wanted


def test_errors_are_judged_by_tenths_and_invented_clusters_reported() -> None:
    found = {"k": 2, "ari": 0.0, "score": 0.21, "accuracy": False}
    assert judged("regression, one", found, 0.2, 0.2) == (False, True, True)
    assert judged("regression, one", {**found, "k": 1, "score": 0.23}, 0.2, 0.2) == (True, False, False)


def test_a_cell_and_its_line_in_the_table() -> None:
    results = {name: work(name) for name in cells(["ifca"], [3], ["iid 6"])}
    assert set(WITHOUT) <= set(CASES)
    printed = table(results, ["ifca"])
    assert "| digits, no groups, 6 × 150 | 1 |" in printed
    assert "ifca: right in 1 of 1 cells, near in" in printed
    assert "clusters invented in 0 of 1 cells without clusters." in printed
    (search,) = (found for name, found in results.items() if "/ifca/" in name)
    assert search["bytes_down"] > 0
    assert search["evidence"].startswith("One model")
