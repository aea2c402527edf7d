"""A refactoring reproduces the golden files: labels to the letter, numbers to 1e-9, with CORYMB_GOLDEN=bits every bit.

Bits depend on the machine's arithmetic, so they are compared only where somebody asks for it.
"""

import os

import pytest

from corymb.testing.engines import IN_PROCESS
from tests.golden import GOLDEN, lines_of, path_of


@pytest.mark.parametrize("name", GOLDEN)
def test_every_algorithm_gives_its_golden_rounds(name):
    want = path_of(name).read_text().splitlines()
    got = [line for engine in IN_PROCESS for line in lines_of(name, engine)]
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        if os.environ.get("CORYMB_GOLDEN") == "bits":
            assert one == other
        *ours, _ = (field.split() for field in one.split(" | "))
        *theirs, _ = (field.split() for field in other.split(" | "))
        assert ours[:3] == theirs[:3]  # engine, stage and round, labels
        for mine, golden in zip(ours[3:], theirs[3:], strict=True):
            assert [_number(word) for word in mine] == [
                pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else value
                for value in map(_number, golden)
            ]


def _number(word: str) -> float | str:
    try:
        return float(word)
    except ValueError:
        return word
