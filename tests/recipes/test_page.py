"""A reproduction as a page."""

from corymb.recipes.page import page

TABLE = """| a | b |
|---|---|
| <1> | **no** |

## Table 1: accuracy

Words of `code`
on two lines.
"""


def test_tables_headings_and_drawings_are_in_the_page_and_nothing_is_fetched():
    text = page("IFCA & co", TABLE, ['<?xml version="1.0"?>\n<!DOCTYPE svg>\n<svg viewBox="0 0 1 1"></svg>'])
    assert "<h1>IFCA &amp; co</h1>" in text
    assert "<tr><td>&lt;1&gt;</td><td><b>no</b></td></tr>" in text
    assert "<h2>Table 1: accuracy</h2>" in text
    assert "<p>Words of <code>code</code> on two lines.</p>" in text
    assert text.count("<svg") == 1
    assert "<?xml" not in text
    assert "http" not in text


def test_drawings_follow_the_first_table_and_the_last_line_says_by_what_it_was_made():
    text = page("IFCA", TABLE, ["<svg></svg>"], "3 cells; Corymb & torch")
    places = [text.index(part) for part in ("<table>", "<svg", "<h2>", "<footer>3 cells; Corymb &amp; torch</footer>")]
    assert places == sorted(places)
    assert "<footer>" not in page("IFCA", TABLE, [])
