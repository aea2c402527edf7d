import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corymb.algorithms import IFCA, FedAvg, FedProx, FedSoft, OneShot, Oracle, Restarts, Then
from corymb.core.driver import fingerprint_of
from corymb.local import Descent
from corymb.settings import InvalidInput, check_all_types, did_you_mean, fingerprint, from_dict, require, to_dict
from tests.contracts.cases import CASES


@dataclass(frozen=True, kw_only=True)
class Inner:
    width: int = 3
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.width >= 1, f"width must be at least 1, got {self.width}.")


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner  # no default
    other: Inner | None = None
    made: Inner = field(default_factory=Inner)
    several: tuple[Inner, ...] = ()
    rate: float = 0.5
    share: int | float | None = None


positive = st.floats(1e-6, 1e3)
descents = st.builds(
    Descent,
    lr=positive | st.integers(1, 5),
    decay=st.floats(0.1, 1),
    batch=st.none() | st.integers(1, 50),
    weight_decay=st.floats(0, 1),
    proximal=st.floats(0, 1),
    steps=st.none() | st.integers(1, 9),
)
ifcas = st.builds(
    IFCA,
    k=st.integers(1, 9),
    rounds=st.integers(1, 99),
    local=descents,
    averaging=st.sampled_from(["models", "gradients"]),
    participants=st.none() | st.integers(1, 50) | st.floats(0.01, 1),
    restarts=st.integers(1, 5),
)


@given(ifcas)
def test_settings_survive_a_trip_through_plain_values(settings):
    again = from_dict(IFCA, to_dict(settings))
    assert again == settings
    assert type(again.participants) is type(settings.participants)  # 1 is one client, 1.0 is all of them


@given(ifcas)
def test_equal_settings_have_equal_fingerprints(settings):
    again = from_dict(IFCA, to_dict(settings))
    assert fingerprint_of(again, "data") == fingerprint_of(settings, "data")


@pytest.mark.parametrize("name", [n for n in CASES if not isinstance(CASES[n].algorithm, (Restarts, Then))])
def test_every_algorithm_survives_a_trip_through_plain_values(name):
    settings = CASES[name].algorithm
    plain = json.loads(json.dumps(to_dict(settings)))
    assert from_dict(type(settings), plain) == settings
    assert fingerprint_of(from_dict(type(settings), plain), "data") == fingerprint_of(settings, "data")


@pytest.mark.parametrize("inner", [FedAvg(rounds=2), FedProx(mu=0.2), FedProx(), IFCA(k=2), IFCA(k="auto", soft=2)])
def test_which_of_several_classes_is_meant_is_seen_from_the_names(inner):
    settings = OneShot(k=2, inner=inner)
    again = from_dict(OneShot, to_dict(settings))
    assert again == settings
    assert type(again.inner) is type(inner)


def test_a_whole_number_for_a_float_is_the_same_setting():
    assert fingerprint_of(FedAvg(local=Descent(lr=1)), "") == fingerprint_of(FedAvg(local=Descent(lr=1.0)), "")


def test_one_client_is_not_all_of_them():
    assert fingerprint_of(FedAvg(participants=1), "") != fingerprint_of(FedAvg(participants=1.0), "")


@given(ifcas, ifcas)
def test_different_settings_have_different_fingerprints(a, b):
    same = {**to_dict(a), "rounds": 0} == {**to_dict(b), "rounds": 0}
    assert (fingerprint_of(a, "data") == fingerprint_of(b, "data")) == same
    assert fingerprint_of(a, "data") != fingerprint_of(a, "other data")


def test_rounds_are_no_part_of_a_fingerprint():
    assert fingerprint_of(IFCA(k=2, rounds=3), "") == fingerprint_of(IFCA(k=2, rounds=9), "")


def test_a_fingerprint_does_not_depend_on_the_process_or_the_order():
    assert fingerprint({"a": 1, "b": [2, None]}) == fingerprint({"b": [2, None], "a": 1}) == "9d10a9653b7f8d8d"


UNKNOWN = {
    "at the top": (IFCA, {"k": 2, "rouds": 3}, "'rouds' for IFCA", "'rounds'"),
    "nested": (IFCA, {"k": 2, "local": {"step": 3}}, "'local.step' for Descent", "'steps'"),
    "nested, no default": (Outer, {"inner": {"widths": 3}}, "'inner.widths' for Inner", "'width'"),
    "nested, optional": (Outer, {"inner": {}, "other": {"widths": 3}}, "'other.widths' for Inner", "'width'"),
    "nested, factory": (Outer, {"inner": {}, "made": {"widths": 3}}, "'made.widths' for Inner", "'width'"),
    "one of several classes": (OneShot, {"k": 2, "inner": {"rouds": 3}}, "'inner.rouds' for FedAvg", "'rounds'"),
    "in a list": (Outer, {"inner": {}, "several": [{}, {"widths": 3}]}, "'several.1.widths' for Inner", "'width'"),
}


@pytest.mark.parametrize(("kind", "values", "what", "close"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_names_are_refused_with_a_guess(kind, values, what, close):
    with pytest.raises(InvalidInput) as error:
        from_dict(kind, values)
    assert f"Unknown setting {what}. Did you mean {close}?" in str(error.value)


def test_a_name_far_from_all_lists_them():
    with pytest.raises(InvalidInput, match=r"Known: .*rounds"):
        from_dict(IFCA, {"k": 2, "zzzzzz": 1})


WRONG = {
    "type": (IFCA, {"k": "two"}, "k: "),
    "text for a number": (IFCA, {"k": "2"}, "k: "),
    "truth for a number": (IFCA, {"k": True}, "k: "),
    "fraction for a whole number": (IFCA, {"k": 2.5}, "k: "),
    "none": (FedSoft, {"k": None}, "k: "),
    "missing": (IFCA, {}, "k: "),
    "choice": (IFCA, {"k": 2, "averaging": "medians"}, "averaging: "),
    "nested type": (IFCA, {"k": 2, "local": {"lr": "fast"}}, "local.lr: "),
    "nested range": (IFCA, {"k": 2, "local": {"lr": -1.0}}, "local: lr must be positive and at most 1e+18, got -1.0."),
    "range": (FedAvg, {"rounds": 0}, "rounds must be at least 1, got 0."),
    "not a table": (IFCA, {"k": 2, "local": 3}, "local: "),
    "one of several classes": (OneShot, {"k": 2, "inner": {"mu": -1.0}}, "inner: mu must not be negative, got -1.0."),
    "another of them": (OneShot, {"k": 2, "inner": {"k": 2, "local": {"lr": "x"}}}, "inner: local.lr: "),
    "deep in a list": (Outer, {"inner": {}, "several": [{}, {"width": 0}]}, "several.1: width must be at least 1"),
}


@pytest.mark.parametrize(("kind", "values", "what"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_refused_in_one_line_that_says_where(kind, values, what):
    with pytest.raises(InvalidInput) as error:
        from_dict(kind, values)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_values_as_toml_gives_them_are_taken():
    read = from_dict(Outer, {"inner": {"width": 4, "names": ["a", "b"]}, "several": [{}, {"width": 2}], "rate": 1})
    assert read == Outer(inner=Inner(width=4, names=("a", "b")), several=(Inner(), Inner(width=2)), rate=1.0)
    assert type(read.rate) is float
    assert isinstance(read.several, tuple)


def test_only_instances_have_settings():
    with pytest.raises(TypeError, match="not an instance"):
        to_dict(IFCA)
    with pytest.raises(TypeError, match="not an instance"):
        to_dict({"k": 2})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Descent(lr=0),
        lambda: Descent(lr=float("nan")),
        lambda: Descent(decay=0),
        lambda: Descent(decay=1.1),
        lambda: Descent(steps=1, epochs=1),
        lambda: Descent(steps=0),
        lambda: Descent(epochs=0),
        lambda: Descent(batch=0),
        lambda: Descent(momentum=1),
        lambda: Descent(momentum=-0.1),
        lambda: Descent(optimiser="adam", momentum=0.5),
        lambda: Descent(weight_decay=-1),
        lambda: Descent(proximal=-1),
        lambda: IFCA(k=0),
        lambda: IFCA(k=1, rounds=0),
        lambda: IFCA(k=1, restarts=0),
        lambda: FedAvg(rounds=0),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(InvalidInput):
        make()


def test_a_guess_needs_something_close():
    assert did_you_mean("fedavgg", ["ifca", "fedavg"]) == "Did you mean 'fedavg'?"
    assert did_you_mean("zzz", ["ifca", "fedavg"]) == "Known: fedavg, ifca."


@dataclass(frozen=True, kw_only=True)
class Own:
    """A class of somebody who checks nothing, with a default that its type does not allow."""

    rounds: int = 2
    step: float = None  # type: ignore[assignment]
    inner: Inner = Inner()
    anything: Any = None


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: IFCA(k="two"), "IFCA: k is 'two': wanted a whole number, 'auto' or None."),
        (lambda: IFCA(k=2.5), "IFCA: k is 2.5: wanted a whole number, 'auto' or None."),
        (lambda: IFCA(k=True), "IFCA: k is True: wanted a whole number, 'auto' or None."),
        (lambda: IFCA(k=2, rounds="3"), "IFCA: rounds is '3': wanted a whole number."),
        (lambda: IFCA(k=2, local=3), r"IFCA: local is 3: wanted Descent\(...\)."),
        (lambda: IFCA(k=2, averaging="model"), "IFCA: averaging is 'model': wanted 'models' or 'gradients'."),
        (lambda: IFCA(k=2, participants="all"), "IFCA: participants is 'all': wanted a number or None."),
        (lambda: IFCA(k=2, shared="head"), "IFCA: shared is 'head': wanted a tuple, each item text."),
        (lambda: Descent(lr="fast"), "Descent: lr is 'fast': wanted a number."),
        (lambda: check_all_types(Own(rounds="2")), "Own: rounds is '2': wanted a whole number."),
        (lambda: check_all_types(Own(inner=Inner(names=3))), "Inner: names is 3: wanted a tuple, each item text."),
    ],
)
def test_values_of_a_wrong_type_are_reported_in_a_line(make, line):
    with pytest.raises(InvalidInput, match=f"^{line}$"):
        make()


def test_numbers_of_numpy_and_ints_for_floats_are_taken():
    made = IFCA(k=np.int64(3), rounds=np.int32(2), local=Descent(lr=1, decay=np.float32(0.5)), shared=["a"])
    assert made == IFCA(k=3, rounds=2, local=Descent(lr=1.0, decay=0.5), shared=["a"])
    assert (type(made.k), type(made.rounds), type(made.local.decay)) == (int, int, float)
    assert Oracle(groups=np.array([0, 1, 0])).groups == (0, 1, 0)


def test_fields_without_a_checkable_type_are_not_checked():
    array = np.zeros(3)
    own = Own(anything=array)
    check_all_types(own)
    assert own.anything is array
    assert OneShot(k=2, inner=SomebodysAlgorithm()).inner == SomebodysAlgorithm()


@dataclass(frozen=True, kw_only=True)
class SomebodysAlgorithm:
    rounds: int = 2

    def run(self, fed, start=None): ...
