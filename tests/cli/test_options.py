from dataclasses import make_dataclass

from corymb.cli.options import field_texts
from corymb.local import Descent


def test_what_is_written_below_a_field_is_its_help():
    assert field_texts(Descent)["lr"] == "Step size γ."


def test_a_class_that_a_function_made_has_no_source_and_no_help():
    assert field_texts(make_dataclass("Made", [("rounds", int, 2)])) == {}
