"""Partitions of flwr-datasets: fakes with its protocol here; the package itself where it is installed."""

import numpy as np
import pytest

from corymb.data import FederatedDataset, from_flwr_datasets
from corymb.settings import InvalidInput
from tests.data.test_loading import HuggingFace

COLUMNS = {
    "height": np.linspace(0, 1, 24),
    "width": np.linspace(1, 3, 24) ** 2,
    "label": np.arange(24) % 3,
}
OWNER = np.repeat([0, 1, 2], [10, 6, 8])


def part(number):
    return HuggingFace({name: values[number == OWNER] for name, values in COLUMNS.items()})


class Partitioner:
    """What a partitioner of flwr-datasets offers."""

    num_partitions = 3

    def load_partition(self, partition_id):
        return part(partition_id)


class Natural(Partitioner):
    """One whose partitions are known only after one was loaded, as in flwr-datasets."""

    partition_id_to_natural_id: dict

    def load_partition(self, partition_id):
        self.partition_id_to_natural_id = {0: "anna", 1: "ben", 2: "carl"}
        return part(partition_id)


class Federated:
    """What a FederatedDataset of flwr-datasets offers."""

    def __init__(self, **partitioners):
        self.partitioners = partitioners

    def load_partition(self, partition_id, split=None):
        return self.partitioners[split].load_partition(partition_id)


def want():
    x = np.column_stack([COLUMNS["height"], COLUMNS["width"]])
    return FederatedDataset.from_arrays(x, COLUMNS["label"], OWNER, feature_names=("height", "width"))


@pytest.mark.parametrize(
    "partitions",
    [Partitioner(), Federated(train=Partitioner()), [part(i) for i in range(3)], {i: part(i) for i in range(3)}],
    ids=["partitioner", "federated", "list", "mapping"],
)
def test_the_same_as_by_any_other_door(partitions):
    data = from_flwr_datasets(partitions)
    assert data.fingerprint() == want().fingerprint()
    assert data.names == ("0", "1", "2")
    assert data.feature_names == ("height", "width")


def test_clients_are_named_by_the_ids_of_their_partitions():
    assert from_flwr_datasets(Natural(), test=0).names == ("anna", "ben", "carl")
    assert from_flwr_datasets(Federated(train=Natural()), clients=2, test=0).names == ("anna", "ben")


def test_pictures_and_class_names():
    pictures = np.random.default_rng(0).integers(0, 256, (6, 4, 4), dtype=np.uint8)
    data = HuggingFace({"image": list(pictures), "character": [0, 1, 1, 0, 1, 0], "writer_id": ["a"] * 6})
    data.features = {"character": type("ClassLabel", (), {"names": ["cat", "dog"]})}
    made = from_flwr_datasets([data], label="character", features="image", test=0)
    assert made.features == (1, 4, 4)
    assert made.classes == ("cat", "dog")
    assert made.train.y.tolist() == [0, 1, 1, 0, 1, 0]


def test_an_empty_partition_is_left_out_and_reported():
    data = from_flwr_datasets([part(0), part(7), part(1)])
    assert data.names == ("0", "2")
    assert data.notes == ("partition '1' has no rows and is left out",)
    with pytest.raises(InvalidInput, match="All partitions are empty"):
        from_flwr_datasets([part(7)])


def test_complaints():
    both = Federated(train=Partitioner(), test=Partitioner())
    assert len(from_flwr_datasets(both, split="test")) == 3
    for partitions, options, complaint in (
        (both, {}, "partitions of 'train', 'test'; name one"),
        (both, {"split": "tran"}, "split='tran'"),
        (Partitioner(), {"split": "train"}, "partitions of one split"),
        (Partitioner(), {"clients": 4}, "there are 3 partitions; ask for 1 to 3"),
        ([part(0)], {"clients": 0}, "there are 1 partitions"),
        ([part(0), 3], {}, "Partition '1' is a int: wanted a Hugging Face data set"),
        (3, {}, "The partitions are a int"),
        ([part(0)], {"label": "colour"}, "colour"),
    ):
        with pytest.raises(InvalidInput, match=complaint):
            from_flwr_datasets(partitions, **options)


def test_the_real_flwr_datasets_package():
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    datasets = pytest.importorskip("datasets")
    columns = COLUMNS | {"owner": np.array(["anna", "ben", "carl"])[OWNER]}
    whole = datasets.Dataset.from_dict({name: values.tolist() for name, values in columns.items()})
    natural = partitioners.NaturalIdPartitioner(partition_by="owner")
    natural.dataset = whole
    data = from_flwr_datasets(natural, features=["height", "width"], test=0)
    assert data.names == ("anna", "ben", "carl")
    assert data.sizes.tolist() == [10, 6, 8]
    even = partitioners.IidPartitioner(num_partitions=4)
    even.dataset = whole.remove_columns("owner")
    assert from_flwr_datasets(even, test=0).sizes.tolist() == [6] * 4
    skewed = partitioners.DirichletPartitioner(
        num_partitions=3, partition_by="label", alpha=1.0, min_partition_size=1, seed=1
    )
    skewed.dataset = whole.remove_columns("owner")
    assert int(from_flwr_datasets(skewed, test=0).sizes.sum()) == 24
