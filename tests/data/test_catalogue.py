import os
import subprocess
import sys
from pathlib import Path

import pytest

from corymb.data import NAMES, FederatedDataset, load
from corymb.settings import InvalidInput


def test_every_name_has_one_line():
    assert next(iter(NAMES)) == "digits"
    assert all(entry.description and "\n" not in entry.description for entry in NAMES.values())


def test_by_name_and_seed():
    assert load("digits-iid", seed=3).fingerprint() == NAMES["digits-iid"](3).fingerprint()


def test_by_path(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.csv").write_text("x,y\n1,0\n2,1\n")
    own = load(tmp_path / "mine", label="y", test=0)
    assert own.names == ("a",)
    assert load(str(tmp_path / "mine"), label="y", test=0).fingerprint() == own.fingerprint()
    saved = own.save(tmp_path / "own.safetensors")
    assert isinstance(load(saved), FederatedDataset)
    assert load(str(saved)).fingerprint() == own.fingerprint()


def test_a_folder_called_like_a_data_set(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "a.csv").write_text("x,label\n1,0\n2,1\n")
    monkeypatch.chdir(tmp_path)
    assert load("./digits").names == ("a",)
    assert load(Path("digits")).names == ("a",)
    assert len(load("digits")) == 80


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("digts", {}, "There is no data set 'digts', nor a folder of that name. Did you mean 'digits'?"),
        ("zzz", {}, "digits, digits-iid"),
        ("no/such/folder", {}, "no/such/folder is not a folder"),
        ("mine.csv", {}, "mine.csv is not a folder"),
        ("digits", {"label": "y"}, "digits takes no options but the seed: label"),
        ("saved.safetensors", {}, "saved.safetensors is not a file"),
    ],
)
def test_complaints(name, options, complaint):
    with pytest.raises(InvalidInput) as caught:
        load(name, **options)
    assert complaint in str(caught.value)


def test_importing_is_light():
    heavy = "sklearn", "scipy", "pandas", "pyarrow", "pydantic"
    code = f"import sys, corymb.datasets; print([name for name in {heavy} if name in sys.modules])"
    paths = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=paths)
    assert done.stdout.strip() == "[]"
