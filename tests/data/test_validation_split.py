import torch

from corymb.core.objective import Examples
from corymb.data import FederatedDataset
from corymb.data.validation_split import validation_split
from corymb.local.held_out import hold_out


def made():
    x = torch.arange(23.0)[:, None]
    client = [0] * 12 + [1] * 1 + [2] * 10
    return FederatedDataset.from_arrays(x, x[:, 0], client, test=0, task="regression")


def test_training_examples_are_dealt_out_as_clients_do_it_and_test_examples_are_gone():
    data = made()
    for turn in (0, 1):
        apart = validation_split(data, turn)
        for client in range(3):
            x, y = data.train.of(client)
            kept, held = hold_out(Examples(x, y, torch.ones(len(y))), turn=turn)
            assert torch.equal(apart.train.of(client)[1], y[kept.weight > 0])
            assert torch.equal(apart.test.of(client)[1], y[held.weight > 0])
    assert apart.test.sizes.tolist() == [3, 0, 2]


def test_a_turn_is_another_split():
    assert validation_split(made(), 0).test.y.tolist() != validation_split(made(), 1).test.y.tolist()
