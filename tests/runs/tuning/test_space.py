import pytest

import corymb
from corymb.local import Descent
from corymb.runs.tuning.space import Range, default_space, nested, read_range, read_space
from corymb.settings import InvalidInput


class Lowest:
    """An Optuna trial that takes the lower end, or the last choice."""

    def suggest_float(self, name, low, high, *, log):
        return low

    suggest_int = suggest_float

    def suggest_categorical(self, name, choices):
        return choices[-1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("log:0.00123456:1", 0.001235),
        ("float:0:1", 0.0),
        ("int:2:8", 2),
        ("logint:1:9", 1),
        ("choice:models,3,0.5,true,none", None),
        ("choice:0,0.5", 0.5),
        (["a", "b"], "b"),
    ],
)
def test_ranges_are_read_as_they_are_written(text, value):
    got = read_range("x", text).suggest(Lowest(), "x")
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "text", ["", "log:0:1", "log:1:0.1", "int:1.5:3", "float:a:b", "lin:0:1", "choice:", "int:1", "0.1", "float:0:nan"]
)
def test_an_invalid_range_is_refused_in_a_line(text):
    with pytest.raises(InvalidInput, match=r"^x=.* is not a range: wanted log:LOW:HIGH") as error:
        read_range("x", text)
    assert "\n" not in str(error.value)


def test_the_command_line_requires_names():
    assert read_space(["k=int:2:3", "local.lr=choice:0.1,1"]) == {"k": "int:2:3", "local.lr": "choice:0.1,1"}
    with pytest.raises(InvalidInput, match="--param k: wanted NAME=RANGE"):
        read_space(["k"])


def test_the_default_search_covers_the_main_settings_that_are_not_given():
    ifca = corymb.IFCA(k=2, local=Descent(lr=0.3, steps=10))
    assert default_space(ifca, {}, clients=5) == {
        "k": Range("int", 2, 5),
        "local.lr": Range("log", 0.01, 3),
        "local.steps": Range("logint", 1, 50),
    }
    assert set(default_space(ifca, {"k": 2, "local": {"lr": 0.1}}, clients=50)) == {"local.steps"}
    passes = corymb.FedAvg(local=Descent(epochs=3, batch=8))
    assert default_space(passes, {}, clients=50)["local.epochs"] == Range("logint", 1, 10)
    assert nested({"a.b.c": 1, "a.d": 2}) == {"a": {"b": {"c": 1}, "d": 2}}
