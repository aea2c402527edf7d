import dataclasses

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from corymb.data import FederatedDataset, Ragged, validate
from corymb.data.schema import DataSchema
from corymb.settings import InvalidInput


def ragged(*sizes, d=2, dtype=torch.int64):
    rows = sum(sizes)
    x = torch.arange(rows * d, dtype=torch.float32).reshape(rows, d)
    return Ragged(x, torch.zeros(rows, dtype=dtype), torch.tensor([0, *np.cumsum(sizes)]))


def small(**changes):
    fields = {
        "name": "small",
        "names": ("a", "b"),
        "train": ragged(2, 1),
        "test": ragged(1, 0),
        "task": "classification",
        "classes": ("no", "yes"),
    }
    return FederatedDataset(**(fields | changes))


def test_a_data_set_describes_itself():
    data = small()
    assert len(data) == data.clients == 2
    assert data.sizes.tolist() == [2, 1]
    assert data.features == (2,)
    assert repr(data) == ("FederatedDataset('small': 2 clients, 3 train and 1 test examples, features [2], 2 classes)")
    x, y = data.train.of(1)
    assert x.tolist() == [[4, 5]]
    assert y.tolist() == [0]


def changed(part, row, value):
    part = part._replace(x=part.x.clone(), y=part.y.clone())
    if isinstance(row, tuple):
        part.x[row] = value
    else:
        part.y[row] = value
    return part


NAN = changed(ragged(2, 1), (2, 1), torch.nan)
BAD = {
    "The data set has no clients": {"names": (), "train": ragged(), "test": ragged()},
    "Two clients are called 'a'": {"names": ("a", "a")},
    "names must be text": {"names": ("a", "")},
    "train.offsets is torch.int64 [3]": {"names": ("a", "b", "c")},
    "Client 'b' has no training examples": {"train": ragged(3, 0)},
    "Client 'b', train example 0: feature 1 is nan": {"train": NAN},
    "Client 'b', train example 0: feature 'age' is nan": {"train": NAN, "feature_names": ("height", "age")},
    "Client 'a', test example 0: feature 0 is -inf": {"test": changed(ragged(1, 0), (0, 0), -torch.inf)},
    "Client 'a', train example 1: the label is -1": {"train": changed(ragged(2, 1), 1, -1)},
    "the label is 2, but there are 2 classes": {"test": changed(ragged(1, 0), 0, 2)},
    "Classification needs the names of the classes": {"classes": ()},
    "Two classes have the same name": {"classes": ("no", "no")},
    "train.x has 3 rows and train.y 2": {"train": ragged(2, 1)._replace(y=torch.zeros(2, dtype=torch.int64))},
    "train.x has the shape [3]": {"train": ragged(2, 1)._replace(x=torch.zeros(3))},
    "train.y has the shape [3, 1]": {"train": ragged(2, 1)._replace(y=torch.zeros(3, 1))},
    "of test.x torch.float32 [3]": {"test": ragged(1, 0, d=3)},
    "train.offsets must rise from 0": {"train": ragged(2, 1)._replace(offsets=torch.tensor([0, 4, 3]))},
    "Class labels are torch.float32": {
        "train": ragged(2, 1, dtype=torch.float32),
        "test": ragged(1, 0, dtype=torch.float32),
    },
    "Regression targets are torch.int64": {"task": "regression", "classes": ()},
    "task='guessing'": {"task": "guessing"},
    "truth is torch.int64 [3]": {"truth": torch.tensor([0, 1, 0])},
    "truth is torch.float32 [2]": {"truth": torch.tensor([0.0, 1.0])},
    "true_parameters['weight'] has 1 rows for 2": {
        "truth": torch.tensor([0, 1]),
        "true_parameters": {"weight": torch.zeros(1, 2)},
    },
    "There are 3 feature names": {"feature_names": ("a", "b", "c")},
}


@pytest.mark.parametrize("complaint", BAD)
def test_each_fault_is_reported_in_one_line(complaint):
    with pytest.raises(InvalidInput) as caught:
        small(**BAD[complaint])
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_target_that_is_not_finite_is_named():
    train = changed(ragged(2, 1, dtype=torch.float32), 2, torch.inf)
    with pytest.raises(InvalidInput, match="Client 'b', train example 0: label is inf"):
        small(task="regression", classes=(), train=train, test=ragged(1, 0, dtype=torch.float32))


def test_huge_numbers_are_not_taken_for_infinite():
    train = changed(ragged(2, 1)._replace(x=torch.zeros(3, 2, dtype=torch.float64)), (slice(None), 0), 1.7e308)
    test = ragged(1, 0)._replace(x=torch.zeros(1, 2, dtype=torch.float64))
    assert small(train=train, test=test).train.x.sum().isinf()


def test_the_schema_is_what_an_engine_hands_over():
    assert small().schema == {
        "task": "classification",
        "features": (2,),
        "classes": ("no", "yes"),
        "standardise": False,
        "codes": False,
        "linear": False,
        "feature_names": (),
        "preparation": None,
        "notes": (),
        "clients": {"few_examples": 2, "one_class": 2, "no_test_example": 1},
    }
    assert DataSchema.read(small().schema).size == 2


def test_clients_in_the_order_of_engines():
    data = small(names=("site-10", "site-9"), truth=torch.tensor([1, 0]))
    ordered = data.in_order()
    assert ordered.names == ("site-9", "site-10")
    assert ordered.truth.tolist() == [0, 1]
    assert ordered.train.of(0)[0].tolist() == data.train.of(1)[0].tolist()
    assert ordered.test.sizes.tolist() == [0, 1]
    assert ordered.in_order() is ordered
    assert data.names == ("site-10", "site-9")


def test_examples_are_checked_once(monkeypatch):
    looked = []
    check = validate._check_finite
    monkeypatch.setattr(validate, "_check_finite", lambda part, *rest: (looked.append(part), check(part, *rest)))
    data = small(names=("b", "a"))
    data.in_order()
    data.subset([1])
    assert looked == ["train", "test"]
    with pytest.raises(InvalidInput, match="Two clients are called 'a'"):
        data.subset([1, 1])
    with pytest.raises(InvalidInput, match="no clients"):
        data.subset([False, False])


def test_subset_by_mask_and_what_it_refuses():
    data = small(truth=torch.tensor([1, 0]))
    assert data.subset(torch.tensor([False, True])).names == ("b",)
    assert data.subset(np.array([1, 0])).truth.tolist() == [0, 1]
    for wrong in ([2], [-1], [True]):
        with pytest.raises(InvalidInput):
            data.subset(wrong)


def test_saving_views_of_one_tensor(tmp_path):
    rows = torch.rand(4, 2, generator=torch.Generator().manual_seed(0))
    data = small(train=ragged(2, 1)._replace(x=rows[:3]), test=ragged(1, 0)._replace(x=rows[3:]))
    assert FederatedDataset.load(data.save(tmp_path / "d")).fingerprint() == data.fingerprint()


def test_loading_something_other_than_a_data_set(tmp_path):
    from safetensors.torch import save_file

    (tmp_path / "noise").write_bytes(b"noise")
    save_file({"x": torch.zeros(1)}, tmp_path / "tensors")
    for name, complaint in (
        ("noise", "cannot be read"),
        ("tensors", "not a Corymb data set"),
        ("absent", "not a file"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            FederatedDataset.load(tmp_path / name)


def test_from_torch():
    x = torch.arange(12, dtype=torch.float32).reshape(6, 2)
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    data = FederatedDataset.from_torch(TensorDataset(x, y), ["b", "a"] * 3, test=0)
    assert data.names == ("a", "b")
    assert data.train.of(0)[0].tolist() == x[1::2].tolist()
    items = FederatedDataset.from_torch([(row.numpy(), int(label)) for row, label in zip(x, y, strict=True)], [0] * 6)
    assert items.train.x.dtype == torch.float32
    assert items.sizes.tolist() == [5]
    pair = FederatedDataset.from_torch(TensorDataset(x, y), [0] * 6, test=(TensorDataset(x[:2], y[:2]), [0, 0]))
    assert pair.test.sizes.tolist() == [2]


def test_from_torch_complaints():
    for items, complaint in (
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], "Item 1 has shape"),
        ([torch.zeros(2)], "wanted a pair"),
        ([], "is empty"),
        (iter([]), "has no length"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            FederatedDataset.from_torch(items, [0] * 2)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().name = "other"


def test_floats_that_no_file_takes_are_refused():
    x = torch.ones(2, 1, dtype=torch.bfloat16)
    for task, part, line in (
        ("classification", Ragged(x, torch.zeros(2, dtype=torch.int64), torch.tensor([0, 2])), "x is torch.bfloat16: "),
        ("regression", Ragged(x.float(), x[:, 0], torch.tensor([0, 2])), "targets are torch.bfloat16: "),
    ):
        classes = ("n",) if task == "classification" else ()
        with pytest.raises(InvalidInput, match=line):
            FederatedDataset(name="h", names=("a",), train=part, test=part, task=task, classes=classes)
