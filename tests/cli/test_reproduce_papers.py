"""The papers' pages: their tables are made from the saved cells, and figures in the text agree with the tables."""

import functools
import re
from pathlib import Path

import pytest

from corymb.cli import reproduce
from corymb.recipes.cells import read_cell

PAPERS = Path(__file__).parents[2] / "papers"
NUMBER = re.compile(r"(?<![\d.,])\d+\.\d+(?![\d.])")


@functools.cache
def kept(paper):
    """What the committed cells of a paper gave, in the order of its jobs."""
    cells = PAPERS / paper / "results" / "cells"
    jobs = reproduce.jobs_of(paper, reproduce.EVERYTHING)
    return {job: value for job in jobs if (value := read_cell(cells, job)) is not None}


def made(paper):
    """The table that `corymb reproduce` writes for the cells that are there."""
    recipe, results = reproduce.recipe_for(paper), kept(paper)
    measures = recipe.measures(results)
    claims = [claim for claim in reproduce.expected(paper) if not claim.quick]
    table = reproduce.table_of([(claim, measures.get(claim.measure)) for claim in claims])
    return table + (f"\n{recipe.tables(results)}" if hasattr(recipe, "tables") else "")


@pytest.mark.parametrize("paper", reproduce.RECIPES)
def test_the_table_is_that_of_the_cells(paper):
    """If not, `corymb reproduce PAPER --seconds 0 --out papers/PAPER/results` rewrites it."""
    there, wanted = (text.partition("## Time")[0] for text in (_table(paper), made(paper)))
    assert there == wanted


def _table(paper):
    return (PAPERS / paper / "results" / "table.md").read_text()


def test_figure_4_of_ifca_shows_when_every_client_has_found_its_kind():
    recipe = reproduce.recipe_for("ifca")
    found = recipe.measures(kept("ifca"))
    for _, settings, last in recipe.FIGURE_4:
        assert all(found[f"{setting}.rounds_to_identity"] < last for setting in settings)


def plain(value):
    """Every number in what a cell gave, in per cent too where it may be a share."""
    if isinstance(value, dict):
        return {number for item in value.values() for number in plain(item)}
    if isinstance(value, list):
        return {number for item in value for number in plain(item)} if len(value) <= 10 else set()
    return {value, 100 * value} if isinstance(value, (int, float)) else set()


def tables_in(text):
    """The Markdown tables of a page."""
    return re.findall(r"(?:^ *\|.*\n)+", text, re.MULTILINE)


@pytest.mark.parametrize("paper", ["ifca", "sr-fca", "uifca"])
def test_figures_on_the_page_are_measured_or_published(paper):
    page, table = (PAPERS / paper / "README.md").read_text(), _table(paper)
    written = set(NUMBER.findall(table))
    known = {f"{number:.2f}" for value in kept(paper).values() for number in plain(value)}
    known |= written | {f"{float(number):.1f}" for number in written}
    pairs = re.findall(r"\d+\.\d+ ± \d+\.\d+", page)
    assert pairs or paper == "uifca"
    assert [pair for pair in pairs if pair not in table] == []
    ours = [one for one in tables_in(page) if "ours" in one or "our " in one]
    assert ours
    found = [number for one in ours for number in NUMBER.findall(re.sub("λ = [0-9.]+", "", one))]
    assert len(found) > 20
    assert [number for number in found if number not in known] == []
