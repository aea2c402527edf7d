"""Quick versions use the original data if they are on the machine, and never download."""

import gzip

import numpy as np
import pytest

from corymb.cli import reproduce
from corymb.cli.reproduce import Chosen
from corymb.data.built_in.sources import MNIST
from corymb.data.fetching.home import Home
from corymb.recipes.quick_data import IN_PACKAGE, is_local, pictures


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A machine without any data, on which nothing may be downloaded."""
    monkeypatch.setenv("CORYMB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CORYMB_DATA", raising=False)
    monkeypatch.setattr(Home, "_fetch", lambda *about: pytest.fail("a download was begun"))
    return tmp_path


def images(m, seed):
    """Pictures whose class is plain: a bright stripe in one of ten places, with some noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(10, size=m).astype(np.uint8)
    x = rng.integers(60, size=(m, 28, 28)).astype(np.uint8)
    for row, label in zip(x, y, strict=True):
        row[2 * label + 2 : 2 * label + 4, 4:20] = 250
    return x, y


def test_without_data_small_versions_take_digits_of_the_package(elsewhere):
    assert not is_local(MNIST)
    assert pictures() == "digits"
    assert reproduce.jobs_of("ifca", Chosen(quick=True))[0] == "quick-digits/ifca/0"
    assert reproduce.jobs_of("sr-fca", Chosen(quick=True))[0] == "quick-rotated-digits/sr-fca/0"
    outcome = reproduce.run_recipe("ifca", elsewhere / "out", Chosen("figure-4", quick=True), workers=1)
    assert f"on {IN_PACKAGE}." in outcome.table


def test_files_in_the_cache_count_if_they_are_all_there_and_right(elsewhere):
    folder = elsewhere / "cache" / "mnist"
    folder.mkdir(parents=True)
    for file in MNIST.home.files:
        (folder / file.name).write_bytes(gzip.compress(b"something else"))
    assert not is_local(MNIST)


@pytest.mark.parametrize("paper", ["ifca", "sr-fca"])
def test_with_data_small_versions_take_a_part_of_them(elsewhere, paper, monkeypatch):
    monkeypatch.setenv("CORYMB_DATA", str(elsewhere))
    (elsewhere / "mnist").mkdir()
    parts = zip(("train", "test"), (images(4000, 0), images(400, 1)), strict=True)
    arrays = {f"{what}_{part}": array for part, pair in parts for what, array in zip("xy", pair, strict=True)}
    np.savez(elsewhere / "mnist" / "mnist.npz", **arrays)
    assert is_local(MNIST)
    asked = reproduce.jobs_of(paper, Chosen(quick=True))
    assert all("-mnist/" in job for job in asked)
    chosen = Chosen(cells=(asked[-1],), quick=True)  # the cheapest
    outcome = reproduce.run_recipe(paper, elsewhere / "out", chosen, workers=1)
    assert "on MNIST: " in outcome.table
