"""What the nodes of the tests' federation hold: the clients of the contract suite, in turn."""

from corymb.data import FederatedDataset, Ragged
from corymb.testing.cases import CASES

LINE, CLASSES = CASES["IFCA"], CASES["IFCA, momentum"]


def dataset(case):
    """A case's data set as a node has it."""
    data = case.data()
    task = "regression" if data.train.y.is_floating_point() else "classification"
    classes = ("0", "1", "2") if task == "classification" else ()
    rows = {"train": Ragged(*data.train), "test": Ragged(*data.test)}
    return FederatedDataset(name="small", names=tuple(data.names), task=task, classes=classes, **rows)


def clients(node, number, of):
    """The clients of one node."""
    return shard(dataset(LINE), number, of)


def classified(node, number, of):
    """Those of a node whose examples have classes."""
    return shard(dataset(CLASSES), number, of)


def shard(data, number, of):
    """The clients of one node of some."""
    return data.subset(list(range(number, len(data), of)))
