"""`corymb data show`."""

import shlex

import numpy as np
import pytest
import torch

from corymb.cli.app import main
from corymb.cli.dataset.pictures import drawn, strips_of
from corymb.cli.dataset.show import describe
from corymb.data import FederatedDataset, Roles, by_role, concept_shift, digits, rotated
from tests.runs import small


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    """A working folder with the user's data in `clinic`."""
    small.folder(tmp_path / "clinic")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def test_data_are_shown(clinic, capsys):
    assert main(shlex.split("data show clinic --label outcome")) == 0
    printed = capsys.readouterr().out
    assert "6 (hospital-0, hospital-1, hospital-2, ...)" in printed
    assert "age, dose" in printed
    assert "well" in printed
    assert "▄" not in printed


def test_targets_are_shown_in_bins(clinic, capsys):
    x, y, client = small.prices(clients=2)
    np.savez("prices.npz", x=x, y=y, client=client)
    assert main(shlex.split("data show prices.npz")) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if ".." in line and "%" in line]) == 10


def test_examples_without_labels_are_reported(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["data", "show", "gaussians"]) == 0
    printed = capsys.readouterr().out
    assert "density" in printed
    assert "regression" not in printed
    assert "4 clusters of examples, used only to score; there are no labels" in printed
    assert [line.split()[:2] for line in printed.splitlines() if "%" in line] == [[str(j), "25.0%"] for j in range(4)]
    x = np.random.default_rng(0).normal(size=(20, 3))
    describe(FederatedDataset.from_arrays(x, None, np.arange(20) % 2))
    printed = capsys.readouterr().out
    assert "unknown; there are no labels" in printed
    assert "%" not in printed


def test_pictures_are_shown_in_half_blocks(clinic, capsys):
    for name, shape in (("flat", (4, 64)), ("square", (4, 8, 8)), ("odd", (4, 3, 7, 7))):
        picture = np.zeros(shape, np.uint8)
        picture[..., ::2] = 255
        np.savez(f"{name}.npz", x=picture, y=np.arange(4) % 2, client=np.arange(4) % 2)
        assert main(["data", "show", f"{name}.npz", "--test", "0", "--scale", "pixels"]) == 0
        assert "█ █ █ █" in capsys.readouterr().out


def test_many_classes_are_shown_by_the_commonest(clinic, capsys):
    y = np.concatenate([np.arange(71), np.arange(71), np.zeros(58, int)])
    np.savez("many.npz", x=np.random.default_rng(0).normal(size=(200, 3)), y=y, client=np.arange(200) % 2)
    assert main(shlex.split("data show many.npz --test 0 --task classification")) == 0
    shares = [line for line in capsys.readouterr().out.splitlines() if "%" in line]
    assert len(shares) == 20
    assert shares[0].split()[:2] == ["0", "30.0%"]
    assert shares[-1].split()[:3] == ["52", "others", "52.0%"]


@pytest.mark.parametrize("side", [28, 100])
def test_pictures_fit_into_eighty_columns(side, clinic, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    picture = np.full((12, side, side), 255, np.uint8)
    np.savez("pictures.npz", x=picture, y=np.arange(12) % 2, client=np.arange(12) % 6)
    assert main(shlex.split("data show pictures.npz --test 0")) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "█" in line and "%" not in line]
    assert len(rows) == {28: 14, 100: 25}[side]  # none was broken in two
    assert max(map(len, rows)) <= 80


def test_each_true_cluster_is_shown_by_the_same_classes():
    data = digits(clients=8, train=60, test=10)
    strips = strips_of(data)
    assert [strip.title for strip in strips] == [f"cluster {j}, 2 clients" for j in range(4)]
    assert all(strip.captions == ("0", "1", "3", "5", "7", "9") for strip in strips)
    for j, strip in enumerate(strips):
        assert strip.pictures.shape == (6, 1, 8, 8)
        for picture, caption in zip(strip.pictures, strip.captions, strict=True):
            same = (data.train.x == picture.flatten()).all(1)
            assert (data.classes[data.train.y[same][0]], int(same.nonzero()[0, 0]) // 120) == (caption, j)


def test_pictures_kept_as_bytes_in_colour():
    x = np.zeros((4, 3, 4, 4), dtype=np.uint8)
    x[:, 0] = 255
    y = np.arange(4)
    (strip, _) = strips_of(rotated(x, y, x, y, clients=2, per_client=4, rotations=2))
    assert strip.pictures.aminmax() == (0, 1)
    text = drawn(strip, 80, colour=True)
    assert {span.style for span in text.spans} == {"rgb(255,0,0) on rgb(255,0,0)"}
    assert "█" not in drawn(strip, 80, colour=False).plain  # red is dark


def test_more_clusters_than_are_shown(capsys):
    x, y = np.full((20, 4, 4), 200, dtype=np.uint8), np.arange(20) % 10
    describe(concept_shift(x, y, x, y, clusters=10, clients=10, per_client=20))
    printed = capsys.readouterr().out
    assert "cluster 7, 1 client (and 2 more clusters)" in printed
    assert "cluster 8" not in printed


def test_clients_are_named_where_clusters_are_not_known():
    x = torch.rand(4, 5, 5)
    data = FederatedDataset.from_arrays(x, [0, 1, 0, 1], ["b", "a", "a", "b"], test=0)
    (strip,) = strips_of(data)
    assert (strip.title, strip.captions) == ("", ("a", "b"))
    assert torch.equal(strip.pictures[0, 0], x[1])


def test_text_is_shown_as_text(capsys):
    describe(by_role(Roles({"play/ROLE": "so shaken as we are, so wan with care, " * 9}), clients=1, least=1))
    printed = " ".join(capsys.readouterr().out.split())
    assert "'char-lstm' does" in printed
    assert "play/ROLE: so shaken as we are, so wan with care, so shaken" in printed
    assert printed.endswith("→ ␣")
