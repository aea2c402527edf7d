"""Laws that hold for every embedded data set."""

import dataclasses

import pytest
import torch

from corymb.data import NAMES, FederatedDataset

EMBEDDED = [name for name, named in NAMES.items() if named.source is None]


@pytest.fixture(scope="module", params=EMBEDDED)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def data(name):
    return NAMES[name](0)


def test_shapes_and_types(data, name):
    n = len(data)
    assert data.name == name
    assert data.clients == n == len(data.names) == len(set(data.names)) == len(data.sizes)
    assert data.names[0].startswith("client-0")
    for part in (data.train, data.test):
        assert part.x.dtype == torch.float32
        assert part.x.shape == (len(part.y), *data.features)
        assert part.y.dtype == (torch.float32 if data.task == "regression" else torch.int64)
        assert part.offsets.dtype == torch.int64
        assert part.offsets[0] == 0
        assert part.offsets[-1] == len(part.y)
        shares = data.truth is None and data.task == "classification"  # may leave a client without a test example
        assert bool((part.sizes > 0).all()) or (shares and part is data.test)


def test_truth_and_classes_are_in_range(data):
    if data.task == "density":  # every example has a true cluster, clients have none
        assert data.truth is None
        assert data.train.y.unique().tolist() == list(range(len(data.classes)))
        return
    clusters = [] if data.truth is None else data.truth.unique().tolist()
    assert clusters == list(range(len(clusters)))
    assert data.truth is None or data.truth.dtype == torch.int64
    if data.task == "classification":
        assert data.train.y.unique().tolist() == list(range(len(data.classes)))
    else:
        assert data.classes == ()
        assert data.true_parameters["weight"].shape == (len(clusters), *data.features)


def test_same_seed_same_contents(data, name):
    assert NAMES[name](0).fingerprint() == data.fingerprint()


def test_another_seed_other_contents(data, name):
    other = NAMES[name](1)
    assert other.fingerprint() != data.fingerprint()
    assert other.train.x.shape == data.train.x.shape


def test_nothing_reads_or_moves_the_global_generators(name):
    import numpy as np

    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - looked at, not used
    NAMES[name](3)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


def test_save_and_load(data, tmp_path):
    again = FederatedDataset.load(data.save(tmp_path / "deep" / "data.safetensors"))
    assert again.fingerprint() == data.fingerprint()
    assert (again.name, again.names, again.classes) == (data.name, data.names, data.classes)
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["data.safetensors"]


def test_fingerprint_follows_the_contents_and_not_the_name(data):
    before = data.fingerprint()
    assert dataclasses.replace(data, name="other").fingerprint() == before
    x = data.train.x.clone()
    x[-1, 0] += 1
    changed = [
        dataclasses.replace(data, train=data.train._replace(x=x)),
        dataclasses.replace(data, names=("another", *data.names[1:])),
    ]
    if data.truth is not None:
        changed += [
            dataclasses.replace(data, truth=1 - data.truth.clamp(max=1)),
            dataclasses.replace(data, truth=None, true_parameters=None),
        ]
    assert len({before, *(one.fingerprint() for one in changed)}) == 1 + len(changed)


def test_subset_keeps_whole_clients(data):
    some = data.subset([3, 0])
    assert some.names == (data.names[3], data.names[0])
    assert torch.equal(some.train.of(0)[0], data.train.of(3)[0])
    assert torch.equal(some.test.of(1)[1], data.test.of(0)[1])
    assert some.truth is None or some.truth.tolist() == data.truth[[3, 0]].tolist()
