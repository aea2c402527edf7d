import numpy as np
import pytest

from corymb.data.labels import from_text, read_labels
from corymb.settings import InvalidInput


def where(row):
    return f"row {row}"


def read(values, **options):
    found = read_labels(np.array(values), **options)
    return found.task, found.y.tolist(), found.classes


@pytest.mark.parametrize(
    ("values", "options", "wanted"),
    [
        ([2, 0], {}, ("classification", [2, 0], ("0", "1", "2"))),
        ([[1], [0]], {}, ("classification", [1, 0], ("0", "1"))),
        (["dog", "cat", "dog"], {}, ("classification", [1, 0, 1], ("cat", "dog"))),
        ([True, False], {}, ("classification", [1, 0], ("false", "true"))),
        ([True, True], {}, ("classification", [1, 1], ("false", "true"))),
        ([1.0, 0.0], {}, ("regression", [1, 0], ())),
        ([1.0, 0.0], {"task": "classification"}, ("classification", [1, 0], ("0", "1"))),
        ([3, -1], {"task": "regression"}, ("regression", [3, -1], ())),
        (["cat"], {"classes": ("dog", "cat")}, ("classification", [1], ("dog", "cat"))),
        ([0], {"classes": ("dog", "cat")}, ("classification", [0], ("dog", "cat"))),
    ],
)
def test_the_type_decides(values, options, wanted):
    assert read(values, **options) == wanted


@pytest.mark.parametrize(
    ("values", "options", "complaint"),
    [
        ([0, -1], {}, "The label in row 1 is -1: classes are whole numbers from 0"),
        ([0.0, 0.5], {"task": "classification"}, "The label in row 1 is 0.5"),
        ([0.0, np.nan], {"task": "classification"}, "The label in row 1 is nan"),
        ([1994, 1995], {}, "Labels run up to 1995, but only 2 values occur"),
        (["1", "dog"], {"task": "regression"}, "The label in row 1 is the text 'dog': regression wants numbers"),
        (["cow"], {"classes": ("dog", "cat")}, "The label in row 0 is 'cow', which is not one of"),
        ([[0, 1]], {}, r"Labels have the shape \[1, 2\]"),
        ([1j], {}, "Labels are of type complex128"),
        ([0], {"task": "guess"}, "task='guess'"),
    ],
)
def test_complaints(values, options, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        read(values, **options)


def test_text_files_have_one_type_for_all():
    assert from_text(["1", " 2"], where).tolist() == [1, 2]
    assert from_text(["1", "2.5"], where).tolist() == [1.0, 2.5]
    assert from_text(["1", "other"], where).tolist() == ["1", "other"]


def test_one_word_among_measurements_is_refused():
    with pytest.raises(InvalidInput, match="The label in row 1 is 'n/a' where others are decimal numbers"):
        from_text(["1.5", "n/a"], where)
    with pytest.raises(InvalidInput, match="The label in row 1 is missing"):
        from_text(["1.5", " "], where)
