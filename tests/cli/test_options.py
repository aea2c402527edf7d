from dataclasses import dataclass, make_dataclass
from typing import Annotated, Literal

import pytest
from cyclopts import App, CycloptsError, Parameter

from corymb.cli.options import field_texts, given, options_of
from corymb.local import Descent
from corymb.settings import InvalidInput, as_options


def test_the_docstring_below_a_field_is_its_help():
    assert field_texts(Descent)["lr"] == "Step size γ."


def test_a_class_that_a_function_made_has_no_source_and_no_help():
    assert field_texts(make_dataclass("Made", [("rounds", int, 2)])) == {}


@dataclass(frozen=True, kw_only=True)
class Several:
    sizes: tuple[int, ...] = (1, 2)
    names: tuple[str, ...] | None = None
    parts: list[float] | None = None
    betas: tuple[float, float] = (0.9, 0.99)
    mixed: tuple[int, str] | None = None


def read(*tokens, kind=Several):
    """What is given by some tokens of a command line."""
    app, kind = App(), options_of(kind)

    def take(options=kind()):  # noqa: B008
        return given(options)

    take.__annotations__["options"] = Annotated[kind, Parameter(name="*")]
    app.default(take)
    return app(tokens, exit_on_error=False, print_error=False, result_action="return_value")


def test_settings_of_several_values_are_given_with_commas_or_one_by_one():
    assert read("--sizes", "3,4", "--names", "a, b")["sizes"] == [3, 4]
    assert read("--sizes", "3", "--sizes", "4") == {"sizes": [3, 4]}
    assert read("--names", "a,b") == {"names": ["a", "b"]}
    assert read("--parts", "0.5") == {"parts": [0.5]}


def test_one_wrong_value_of_several_is_reported():
    with pytest.raises(CycloptsError, match=r"wanted a whole number.*got '3,x'"):
        read("--sizes", "3,x")


def test_a_tuple_of_fixed_length_is_given_in_the_same_way():
    assert read("--betas", "0.5,0.75") == {"betas": [0.5, 0.75]}
    assert read("--mixed", "3, few") == {"mixed": [3, "few"]}
    with pytest.raises(CycloptsError, match=r"wanted 2 values separated by commas \(got '0.5'\)"):
        read("--betas", "0.5")
    with pytest.raises(CycloptsError, match="empty-betas"):
        read("--empty-betas")


def test_a_setting_that_is_a_name_or_settings_takes_either():
    @dataclass(frozen=True, kw_only=True)
    class Start:
        k: int = 3
        fresh: bool = False

    @dataclass(frozen=True, kw_only=True)
    class Method:
        init: Literal["random", "one-shot"] | Start = "random"
        whiten: bool = True

    assert read("--init", "one-shot", kind=Method) == {"init": "one-shot"}
    assert read("--init.k", "2", kind=Method) == {"init": {"k": 2}}
    assert read(kind=Method) == {}
    with pytest.raises(CycloptsError, match=r"'random' or 'one-shot' \(got 'one'\)"):
        read("--init", "one", kind=Method)
    with pytest.raises(InvalidInput, match=r"Give --init one-shot or --init.k, not both\."):
        read("--init", "one-shot", "--init.k", "2", kind=Method)


def test_every_switch_is_turned_off_in_the_way_that_suggested_commands_say():
    @dataclass(frozen=True, kw_only=True)
    class Work:
        safe: bool = False
        fast: bool = True

    @dataclass(frozen=True, kw_only=True)
    class Method:
        local: Work = Work()
        repair: bool = True
        keep: bool = False

    off = {"local": {"safe": False, "fast": False}, "repair": False, "keep": False}
    assert read(*as_options(off), kind=Method) == off
    assert read("--no_repair", "--local.no_fast", kind=Method) == {"repair": False, "local": {"fast": False}}
