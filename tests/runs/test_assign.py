"""New clients: rotated digits that no client of the run ever had, five examples each."""

import json
from collections import Counter

import numpy as np
import pytest
import torch

import corymb
from corymb.cli.app import main
from corymb.runs.assign import CHECKED, SIZES, Calibration, _thresholds
from corymb.runs.defaults import configure
from corymb.settings import InvalidInput
from tests.runs import small

NEW, FEW = 400, 5


def turned(images, quarter):
    return np.rot90(images, quarter, (1, 2)).reshape(len(images), 64).astype(np.float32)


@pytest.fixture(scope="module")
def images():
    """Digits for the run, and others for new clients."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x, y = bunch.images[order] / 16, bunch.target[order]
    return (x[500:], y[500:]), (x[:500], y[:500])


@pytest.fixture(scope="module")
def run(images):
    (x, y), _ = images
    rng = np.random.default_rng(1)
    rows = []
    for quarter in range(4):
        dealt = np.concatenate([rng.permutation(len(x)), rng.permutation(len(x))])[:1200].reshape(12, 100)
        rows += [(turned(x[mine], quarter), y[mine]) for mine in dealt]
    client = np.repeat(np.arange(48), 100)
    data = corymb.FederatedDataset.from_arrays(
        np.concatenate([x for x, _ in rows]),
        np.concatenate([y for _, y in rows]),
        client,
        test=0.4,
        truth=np.arange(48) // 12,
    )
    run = corymb.fit(configure("ifca", data, k=4, restarts=2, rounds=20), data, threads=1, evaluate_every=0)
    assert run.metrics["ari"] == 1.0
    return run


def newcomers(images, m=FEW, labels=None):
    """(quarter, x, y) of many new clients; `labels` makes custom labels."""
    _, (x, y) = images
    rng = np.random.default_rng(2)
    for number in range(NEW):
        mine = rng.choice(len(x), m, replace=False)
        yield number % 4, turned(x[mine], number % 4), y[mine] if labels is None else labels(rng, m)


@pytest.mark.parametrize("seed", [3, 9, 10])
def test_targets_without_noise_fit_to_the_last_digits(seed):
    rng = np.random.default_rng(seed)
    x, client = rng.normal(size=(300, 2)), np.arange(300) % 6
    y = 1e9 * (x[:, 0] * np.where(client % 2, 1, -1) + x[:, 1])
    run = corymb.fit(corymb.configure("ifca", (x, y, client), k=2), (x, y, client))
    answers = [run.assign(x[client == one], y[client == one]) for one in range(6)]
    assert [answer.cluster for answer in answers] == list(run.labels.values())
    assert run.assign(x[client == 0] * [2.0, 0.5], y[client == 0]).cluster is None


def test_new_clients_find_their_cluster(run, images):
    labels = {quarter: run.snapshot.labels[12 * quarter].item() for quarter in range(4)}
    answers = [(labels[quarter], run.assign(x, y)) for quarter, x, y in newcomers(images)]
    right = np.mean([answer.nearest == wanted for wanted, answer in answers])
    outliers = np.mean([answer.cluster is None for _, answer in answers])
    print(f"right {right:.1%}, called outliers {outliers:.1%}")
    assert right >= 0.98
    assert outliers <= 0.03
    assert np.mean([answer.cluster == wanted for wanted, answer in answers]) >= 0.97


def test_clients_with_random_labels_are_outliers(run, images):
    strange = newcomers(images, labels=lambda rng, m: rng.integers(0, 10, m))
    caught = np.mean([run.assign(x, y).cluster is None for _, x, y in strange])
    print(f"caught {caught:.1%}")
    assert caught >= 0.95


@pytest.mark.parametrize("m", [1, 3, 20])
def test_genuine_clients_are_hardly_ever_outliers_whatever_they_have(m, run, images):
    assert np.mean([run.assign(x, y).cluster is None for _, x, y in newcomers(images, m)]) <= 0.03


def test_probabilities_grow_with_examples_and_are_honest(run, images):
    sure = {}
    for m in (1, 5):
        answers = [(quarter, run.assign(x, y)) for quarter, x, y in newcomers(images, m)]
        sure[m] = np.mean([answer.probability for _, answer in answers])
        assert all(0.25 <= answer.probability <= 1 for _, answer in answers)
    assert sure[1] < sure[5]


def test_an_answer_survives_the_folder_and_the_command_line(run, images, tmp_path, capsys):
    run.save(tmp_path / "run")
    _, x, y = next(iter(newcomers(images)))
    want = run.assign(x, y)
    assert corymb.Run.load(tmp_path / "run").assign(x, y) == want
    np.savez(tmp_path / "new.npz", x=x, y=y)
    assert main(["assign", str(tmp_path / "run"), str(tmp_path / "new.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == want._asdict()
    assert main(["assign", str(tmp_path / "run"), str(tmp_path / "new.npz")]) == 0
    assert capsys.readouterr().out.startswith(f"new: cluster {want.cluster}, probability ")
    np.savez(tmp_path / "strange.npz", x=x, y=(y + 3) % 10)
    assert main(["assign", str(tmp_path / "run"), str(tmp_path / "strange.npz")]) == 0
    assert "no cluster fits" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x80\x04."])
def test_an_invalid_file_is_refused_in_a_line(content, run, tmp_path, capsys):
    run.save(tmp_path / "run")
    (tmp_path / "new.npz").write_bytes(content)
    assert main(["assign", str(tmp_path / "run"), str(tmp_path / "new.npz")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


WRONG = {
    "no examples": (np.zeros((0, 64)), [], "label for each example"),
    "too few labels": (np.zeros((2, 64)), [1], "got 2 examples and 1 labels"),
    "a class": (np.zeros((1, 64)), [11], "no class '11'"),
    "a shape": (np.zeros((1, 3)), [1], "shape"),
}


@pytest.mark.parametrize(("x", "y", "line"), WRONG.values(), ids=WRONG)
def test_clients_that_cannot_be_assigned_are_refused(x, y, line, run):
    with pytest.raises(InvalidInput, match=line):
        run.assign(x, y)


def test_regression_in_raw_units():
    x, y, client = small.prices(clients=12, rows=60)
    data = corymb.FederatedDataset.from_arrays(x, y, client, standardise=True)
    run = corymb.fit(configure("ifca", data, k=2, restarts=3, rounds=15), data, evaluate_every=0)
    new = small.prices(clients=40, rows=5, seed=9)
    answers = [run.assign(new[0][new[2] == c], new[1][new[2] == c]) for c in range(40)]
    assert len({answer.nearest for answer in answers[::2]}) == len({answer.nearest for answer in answers[1::2]}) == 1
    assert answers[0].nearest != answers[1].nearest
    assert Counter(answer.cluster is None for answer in answers)[True] <= 2
    assert run.assign(new[0][:5], new[1][:5] + 500_000).cluster is None


def test_clients_with_models_of_their_own_have_no_clusters():
    run = corymb.fit(corymb.Alone(rounds=1), small.arrays())
    with pytest.raises(InvalidInput, match="its own model"):
        run.assign([[1.0, 2.0]], [1])


def test_without_test_examples_nobody_is_an_outlier():
    x, y, client = small.arrays()
    data = corymb.FederatedDataset.from_arrays(x, y, client, test=0, standardise=True)
    run = corymb.fit(corymb.IFCA(k=2, rounds=2), data)
    assert run.calibration is None
    answer = run.assign(x[:3], y[:3])
    assert answer.cluster is not None
    assert "is unknown" in str(answer)


def test_thresholds_are_interpolated():
    calibration = Calibration(torch.arange(len(SIZES), 0, -1.0), torch.ones(()))
    assert _thresholds(calibration, (1, 2, 50, 500)) == [6.0, 5.0, 1.0, 1.0]
    assert 4.0 < _thresholds(calibration, [3])[0] < 5.0


def counted_losses(run, monkeypatch):
    """The numbers of examples with which the run's objective is asked for losses."""
    asked, whole = [], type(run.objective).losses
    monkeypatch.setattr(type(run.objective), "losses", lambda *given: asked.append(len(given[2].y)) or whole(*given))
    return asked


def test_many_clients_are_assigned_together_as_each_alone(run, images, monkeypatch):
    new = [(x[: 1 + i % 5], y[: 1 + i % 5]) for i, (_, x, y) in enumerate(newcomers(images))][:300]
    names = np.repeat([f"new-{i}" for i in range(300)], [len(y) for _, y in new])
    x, y = (np.concatenate(part) for part in zip(*new, strict=True))
    mixed = np.random.default_rng(0).permutation(len(y))
    asked = counted_losses(run, monkeypatch)
    found = run.assign_each(x[mixed], y[mixed], names[mixed])
    assert len(asked) == (1 + CHECKED) * run.snapshot.k  # all at once, and a few alone for comparison
    assert list(found) == sorted(f"new-{i}" for i in range(300))
    for i in range(0, 300, 7):
        alone = run.assign(*new[i])
        assert found[f"new-{i}"].cluster == alone.cluster
        assert found[f"new-{i}"].losses == pytest.approx(alone.losses, rel=1e-4)
        assert found[f"new-{i}"].probability == pytest.approx(alone.probability, rel=1e-3)


def test_clients_whose_losses_depend_on_others_are_assigned_one_by_one(run, images, monkeypatch):
    new = [(x, y) for _, x, y in newcomers(images)][:6]
    x, y = (np.concatenate(part) for part in zip(*new, strict=True))
    whole = type(run.objective).losses

    def of_batch(*given):
        losses = whole(*given)
        return losses + 0.01 * len(losses)

    monkeypatch.setattr(type(run.objective), "losses", of_batch)
    found = run.assign_each(x, y, np.repeat(np.arange(6), FEW))
    for i, (mine, labels) in enumerate(new):
        assert found[str(i)].losses == pytest.approx(run.assign(mine, labels).losses, rel=1e-5)


def test_clients_without_examples_or_names_are_refused(run, images):
    _, x, y = next(newcomers(images))
    with pytest.raises(InvalidInput, match="Give one client for each example: got 5 examples and 2 clients"):
        run.assign_each(x, y, ["a", "b"])


def test_an_unknown_category_is_reported(tmp_path, capsys, caplog):
    rows = "".join(
        f"{name},{'fm'[age % 2]},{age},{'yes' if age > 5 else 'no'}\n" for name in "abc" for age in range(10)
    )
    (tmp_path / "t.csv").write_text(f"client,sex,age,label\n{rows}")
    assert main(["run", str(tmp_path / "t.csv"), "fedavg", "--rounds", "1", "--out", str(tmp_path / "run"), "-q"]) == 0
    said = "column 'sex': 1 cell ('x') is not among the run's categories and without a category"
    run = corymb.Run.load(tmp_path / "run")
    caplog.clear()
    run.predict({"sex": "f", "age": 3}, cluster=0)
    assert not caplog.messages
    run.predict({"sex": "x", "age": 3}, cluster=0)
    assert caplog.messages == [said]
    caplog.clear()
    (tmp_path / "new.csv").write_text("sex,age\nx,3\n")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 0
    assert caplog.messages == [said]  # once
    assert said not in capsys.readouterr().err
