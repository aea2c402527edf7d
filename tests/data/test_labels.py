import re

import numpy as np
import pytest

import corymb
from corymb.data.clients import Clients
from corymb.data.labels import read_labels
from corymb.data.prepare.cells import as_column
from corymb.settings import InvalidInput


def labels(values, clients=1, **options):
    """Labels of clients that hold equally many rows, one after another."""
    column = as_column(np.array(values))
    codes = np.repeat(np.arange(clients), len(column.kinds) // clients)
    return read_labels(column, Clients(tuple("abcdefghij"[:clients]), codes), **options)


def read(values, clients=1, **options):
    found = labels(values, clients, **options)
    return found.task, found.y.tolist(), found.classes


@pytest.mark.parametrize(
    ("values", "options", "wanted"),
    [
        ([2, 0], {}, ("classification", [1, 0], ("0", "2"))),
        ([1, 2, 1], {}, ("classification", [0, 1, 0], ("1", "2"))),
        ([-1, 1], {}, ("classification", [0, 1], ("-1", "1"))),
        ([1.0, 0.0], {}, ("classification", [1, 0], ("0", "1"))),
        ([10, 9], {}, ("classification", [1, 0], ("9", "10"))),
        (["dog", "cat", "dog"], {}, ("classification", [1, 0, 1], ("cat", "dog"))),
        (["1", "other"], {}, ("classification", [0, 1], ("1", "other"))),
        ([True, False], {}, ("classification", [1, 0], ("false", "true"))),
        ([True, True], {}, ("classification", [1, 1], ("false", "true"))),
        (["True", "false"], {}, ("classification", [1, 0], ("false", "true"))),
        ([0.5, 2.0], {}, ("regression", [0.5, 2], ())),
        ([1.0, 0.0], {"task": "regression"}, ("regression", [1, 0], ())),
        ([3, -1], {"task": "regression"}, ("regression", [3, -1], ())),
        (["cat"], {"classes": ("dog", "cat")}, ("classification", [1], ("dog", "cat"))),
        ([0], {"classes": ("dog", "cat")}, ("classification", [0], ("dog", "cat"))),
        ([2, 1], {"classes": ("1", "2")}, ("classification", [1, 0], ("1", "2"))),
    ],
)
def test_what_occurs_decides(values, options, wanted):
    assert read(values, **options) == wanted


@pytest.mark.parametrize(
    ("values", "options", "complaint"),
    [
        ([0.0, 0.5], {"task": "classification"}, "The label in row 1 is 0.5: classes are integers or text"),
        ([0.0, 0.5], {"task": "density"}, "row 1 is 0.5: where examples are clustered, labels are their true clusters"),
        ([0.0, np.nan], {}, "The label in row 1 is missing"),
        ([0.0, -np.inf], {}, "The label in row 1 is -inf: wanted a finite number or text"),
        (["1", "dog"], {"task": "regression"}, "The label in row 1 is the text 'dog': regression needs numbers"),
        (["cow"], {"classes": ("dog", "cat")}, "The label in row 0 is 'cow', which is not one of"),
        ([2], {"classes": ("dog", "cat")}, "The label in row 0 is '2', which is not one of"),
        ([0], {"task": "guess"}, "task='guess'"),
        (range(1980, 2001), {}, "21 different integers, 1980 to 2000: give task='classification'"),
    ],
)
def test_complaints(values, options, complaint):
    with pytest.raises(InvalidInput, match=complaint):
        read(values, **options)


def test_up_to_twenty_integers_are_classes_and_more_need_a_task():
    assert len(labels(range(1981, 2001)).classes) == 20
    assert len(labels(range(1980, 2001), task="classification").classes) == 21
    assert labels(range(1980, 2001), task="regression").task == "regression"
    assert labels([*range(30), 0.5], clients=1).task == "regression"


ODD = {
    "text among whole numbers": (
        [0, 1, 0, 1, "no", "yes"],
        3,
        "Client 'c' has the label 'no' .*most clients have integers",
    ),
    "decimals among whole numbers": ([0, 1, 0, 1, 0.5, 1], 3, "Client 'c' has the label '0.5' .*have integers"),
    "text among decimals": ([0.5, 1, 1.5, 1, "low", 1], 3, "Client 'c' has the label 'low' .*have decimal numbers"),
    "decimals among text": (["u", "v", "u", "v", 0.5, 1], 3, "Client 'c' has the label '0.5' .*have text"),
    "classes of its own": ([0, 1, 0, 0, 1, 0, 5, 6, 7], 3, "Client 'c' has 3 classes that no other client has, while"),
}


@pytest.mark.parametrize("odd", ODD)
def test_the_client_that_would_change_the_labels_of_all_is_named(odd):
    values, clients, complaint = ODD[odd]
    with pytest.raises(InvalidInput, match=complaint) as caught:
        labels(np.array(values, dtype=object), clients)
    assert "\n" not in str(caught.value)
    assert "task='classification'" in str(caught.value)


def test_a_client_with_labels_written_as_decimals_has_the_same_classes():
    values = np.array([0, 1, 1, 0, 1.0, 0.0], dtype=object)
    assert read(values, 3) == ("classification", [0, 1, 1, 0, 1, 0], ("0", "1"))


def test_a_class_at_a_single_client_is_kept_and_reported():
    found = labels([0, 1, 0, 1, 0, 998], 3)
    assert found.classes == ("0", "1", "998")
    assert found.notes == ("class '998' occurs only at client 'c'",)
    assert labels([0, 1, 0, 1], 2).notes == ()


def test_one_class_a_client_is_no_reason_to_refuse():
    found = labels(list(range(10)), 10)
    assert len(found.classes) == 10
    assert found.notes == ("10 classes occur only at a single client; class '0' occurs only at client 'a'",)
    assert len(labels(["u", "v"], 2).classes) == 2


@pytest.mark.parametrize(("label", "expected"), [(5.5, "5.5"), ("yes", "yes"), (3, "3")])
def test_identical_labels_are_reported(label, expected):
    data = corymb.FederatedDataset.from_arrays(np.eye(8), [label] * 8, [0, 1] * 4)
    assert data.notes == (f"every label is {expected}: there is nothing to learn",)


def test_classes_that_floats_cannot_tell_apart_are_refused():
    with pytest.raises(InvalidInput, match=r"row 1 is 4.61169e\+18: integers beyond 2\*\*53"):
        labels([5, 2**62, 2**62 + 1])


def test_two_spellings_of_a_class_are_reported_as_two_classes():
    (note,) = labels(["Yes", "yes", "no"]).notes
    assert "classes 'Yes' and 'yes' differ only in capitals" in note
    assert labels(["yes", "no", "yes!"]).notes == ()


@pytest.mark.parametrize(
    ("values", "looks"),
    [
        ([f"{i}%" for i in range(30)], "numbers ('0%')"),
        ([f"${i},000.50" for i in range(30)], "numbers ('$0,000.50')"),
        ([f"{i},5" for i in range(30)], "numbers ('0,5')"),
        ([f"2020-01-{i + 1:02}" for i in range(30)], "dates ('2020-01-01')"),
        ([f"{i + 1}.1.2020" for i in range(30)], "dates ('1.1.2020')"),
    ],
)
def test_many_texts_that_look_like_numbers_or_dates_are_asked_about(values, looks):
    with pytest.raises(
        InvalidInput, match=re.escape(f"30 different texts that look like {looks}: write plain numbers")
    ):
        labels(values)
    assert len(labels(values, task="classification").classes) == 30
    assert len(labels(values[:5]).classes) == 5
    assert len(labels([f"id {i}" for i in range(30)]).classes) == 30


def test_classes_that_occur_only_in_test_examples_are_reported():
    x, test = np.arange(12.0)[:, None], [False, False, True] * 4
    data = corymb.FederatedDataset.from_arrays(x, list("abcabcabdabd"), [0, 1] * 6, test=np.array(test))
    assert data.notes == ("classes 'c', 'd': only test examples have them, so that no model can learn them",)
    assert corymb.FederatedDataset.from_arrays(x, list("abaabaabaaba"), [0, 1] * 6, test=np.array(test)).notes == ()


def test_labels_that_may_be_counts_get_a_note():
    counts = np.repeat(np.arange(9), [12, 30, 40, 41, 30, 18, 9, 4, 2])
    expected = "the labels 0 to 8 are taken as 9 classes: if they are counts or grades, use task='regression'"
    assert any(note.startswith(expected) for note in labels(counts).notes)
    assert labels(counts, task="classification").notes == ()
    assert labels(np.repeat(np.arange(10), 20)).notes == ()  # digits
    assert labels(np.repeat(np.arange(8), [50, 3, 40, 5, 60, 9, 44, 2])).notes == ()  # classes in no order
    assert labels(np.repeat([0, 1, 2], [50, 30, 5])).notes == ()


def test_classes_with_zeros_in_front():
    found = labels(["01", "02", "01"])
    assert found.classes == ("1", "2")
    assert "'01' and '1' are one class, named '1'" in found.notes[0]
    assert labels(["1", "2", "1"]).notes == ()
    given = read(["01", "02", "01"], classes=("01", "02", "03"))
    assert given == ("classification", [0, 1, 0], ("01", "02", "03"))
