import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from corymb.data import NAMES, FederatedDataset, load
from corymb.data.built_in import sources
from corymb.settings import InvalidInput


def test_every_name_has_one_line():
    assert next(iter(NAMES)) == "digits"
    assert all(entry.description and "\n" not in entry.description for entry in NAMES.values())


def test_by_name_and_seed():
    assert load("digits-iid", seed=3).fingerprint() == NAMES["digits-iid"](3).fingerprint()


def test_named_data_sets_follow_their_options():
    assert load("digits", clients=8, per_client=30).sizes.tolist() == [30] * 8
    assert load("digits-iid", clients=3, per_client=10).sizes.tolist() == [10] * 3
    assert load("mixed-regression", clients=7, per_client=12).sizes.tolist() == [12] * 7
    few, even = (load("digits-skewed", clients=10, alpha=alpha, least=5).sizes for alpha in (0.1, 100.0))
    assert int(few.min()) >= 5
    assert float(few.double().std()) > 3 * float(even.double().std())
    kinds = [len(load("digits-dirichlet", clients=10, alpha=alpha).train.of(0)[1].unique()) for alpha in (0.01, 100.0)]
    assert kinds[0] < kinds[1] == 10


def test_every_partitioner_has_a_name():
    wanted = {"rotated", "dirichlet", "skewed", "shifted"}
    for prefix in ("mnist", "fashion", "cifar"):
        assert wanted <= {name.removeprefix(f"{prefix}-") for name in NAMES if name.startswith(prefix)}
    assert wanted - {"rotated"} <= {name.removeprefix("digits-") for name in NAMES}
    assert {"femnist", "shakespeare", "cifar-labels", "mnist-inverted"} <= set(NAMES)


@pytest.mark.parametrize("name", [name for name, named in NAMES.items() if named.partitioned])
def test_downloads_are_dealt_by_the_same_options(name, monkeypatch):
    rng = np.random.default_rng(0)
    named = NAMES[name]
    shape = (3, 8, 8) if named.of == "CIFAR10" else (8, 8)
    images = [(rng.integers(0, 256, (rows, *shape), dtype=np.uint8), np.arange(rows) % 10) for rows in (400, 80)]
    monkeypatch.setattr(sources.Source, "load", lambda self: (*images[0], *images[1]))
    dealt = {"clients": 4, "per_client": 20} if "per_client" in named.takes else {"clients": 4, "alpha": 1.0}
    data = load(name, **dealt)
    assert (data.name, len(data), len(data.classes)) == (name, 4, 10)
    assert "per_client" not in dealt or data.sizes.tolist() == [20] * 4


def test_a_list_of_names_needs_no_torch():
    code = "import sys; from corymb.cli.list import names_of; names_of('data'); print('torch' in sys.modules)"
    paths = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=paths)
    assert done.stdout.strip() == "False"


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
        ("digts", {}, "There is no data set or folder 'digts'. Did you mean 'digits'?"),
        ("zzz", {}, "digits, digits-dirichlet"),
        ("no/such/folder", {}, "no/such/folder does not exist"),
        ("mine.csv", {}, "mine.csv does not exist"),
        ("digits", {"label": "y"}, "label only applies to your own data, not to the built-in digits"),
        ("digits", {"alpha": 1.0}, "digits does not take alpha: it takes clients (--deal.clients) and per_client"),
        ("mnist-digits", {"clients": 5}, "mnist-digits does not take clients: it takes only a seed"),
        (".", {"clients": 5}, "clients only applies to built-in data"),
        ("digts", {"clients": 5}, "Did you mean 'digits'?"),
        ("digits", {"clients": 5}, "clients=5: wanted a multiple of the 4 clusters"),
        ("digits-skewed", {"alpha": "much"}, "alpha='much': wanted a number"),
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
