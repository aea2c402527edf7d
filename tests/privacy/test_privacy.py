import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    place = ROOT / "docs" / "what_the_server_learns.py"
    spec = importlib.util.spec_from_file_location(place.stem, place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_on_what_the_server_learns_is_up_to_date(script):
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), f"run python docs/{script.__name__}.py"


def test_every_client_function_of_the_algorithms_is_on_it(script):
    text = script.page()
    for name, source in script.sources().items():
        for body in source.split("@on_client\ndef ")[1:] if name.startswith("corymb.algorithms") else []:
            assert f"| `{body.partition('(')[0]}` |" in text


def test_private_rounds_send_an_update_and_a_label_alone(script):
    from corymb.algorithms.privately.clients import choose_and_work_privately, work_on_own_privately

    for fn in (choose_and_work_privately, work_on_own_privately):
        assert script.returned(fn) == "`Share[tuple[()]]`"
