import sys
from dataclasses import dataclass, fields

import pytest

import corymb
from corymb.algorithms.catalogue import CATALOGUE
from corymb.cli.run import Output
from corymb.lazy import is_place
from corymb.local import serve_assigned
from corymb.runs.defaults import configure, name_of
from corymb.runs.own.algorithm import TAKEN, check_names, class_at, place_of
from corymb.settings import InvalidInput

MODULE = """
from dataclasses import dataclass
from corymb.algorithms import FedAvg
from corymb.core.snapshot import Algorithm
from corymb.local import serve_assigned

thing = FedAvg()

class Plain:
    serve = serve_assigned
    def run(self, fed, start=None): ...

@dataclass(frozen=True, kw_only=True)
class Endless(Plain):
    k: int = 2

@dataclass(frozen=True, kw_only=True)
class Odd(Plain):
    rounds: "Nowhere" = 3

@dataclass(frozen=True, kw_only=True)
class Good(FedAvg):
    share: float = 0.5

@dataclass(frozen=True, kw_only=True)
class Patient(FedAvg):
    patience: int = 3

@dataclass(frozen=True, kw_only=True)
class Around(Plain):
    inner: Algorithm
    rounds: int = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "corymb_own_algorithms.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield "corymb_own_algorithms"
    sys.modules.pop("corymb_own_algorithms", None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Nothing", "has no 'Nothing'"),
        ("thing", "is a FedAvg: wanted an algorithm's class"),
        ("dataclass", "is a function"),
        ("Plain", "is not a dataclass"),
        ("Endless", "has no number of rounds"),
        ("Odd", "types that cannot be read: name 'Nowhere'"),
        ("Patient", "has a setting 'patience', which is also an option of every run"),
        ("Around", r"has settings that cannot be given as text \(inner\): create it in Python"),
    ],
)
def test_an_invalid_algorithm_is_refused_in_one_line(module, name, expected):
    with pytest.raises(InvalidInput, match=expected) as caught:
        class_at(f"{module}:{name}")
    assert "\n" not in str(caught.value)


def test_one_that_serves_nobody_is_refused(tmp_path, monkeypatch):
    (tmp_path / "corymb_own_mute.py").write_text("class Mute:\n    def run(self, fed, start=None): ...\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="is not an algorithm: it has no serve"):
        class_at("corymb_own_mute:Mute")


def test_a_custom_algorithm_is_configured_and_named_by_its_import_path(module):
    data = corymb.datasets.digits(clients=8, train=20, test=10)
    algorithm = configure(f"{module}:Good", data, share=0.25)
    assert (algorithm.share, algorithm.local.lr, algorithm.rounds) == (0.25, 0.3, 40)  # as suits digits
    assert name_of(algorithm) == f"{module}:Good"
    with pytest.raises(InvalidInput, match="Unknown setting 'shar' for Good"):
        configure(f"{module}:Good", data, shar=0.25)


def test_a_class_that_nobody_can_import_goes_by_its_name():
    @dataclass(frozen=True, kw_only=True)
    class Local:
        serve = serve_assigned

    assert place_of(Local) == "Local"
    assert not is_place(place_of(Local))


def test_a_setting_that_would_take_the_place_of_a_runs_own_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Seeded(corymb.FedAvg):
        seed: int = 3

    data = corymb.datasets.digits(clients=8, train=20, test=10)
    with pytest.raises(InvalidInput, match="rename the setting, for example to own_seed"):
        corymb.fit(Seeded(rounds=1), data, seed=4)


def test_no_setting_of_ours_is_called_as_an_option_and_every_option_is_known():
    assert {field.name for field in fields(Output)} <= TAKEN
    for entry in CATALOGUE.values():
        check_names(entry.algorithm)
