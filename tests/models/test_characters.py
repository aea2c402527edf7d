"""LEAF's character LSTM."""

import torch

from corymb.keys import root
from corymb.models import Network, char_lstm


def test_it_predicts_the_next_character_from_codes():
    network = Network(char_lstm(30, width=12))
    params, codes = network.init(root(0)), torch.randint(30, (4, 9))
    output = network(params, codes)
    assert output.shape == (4, 30)
    changed = codes.clone()
    changed[0, 0] = (codes[0, 0] + 1) % 30
    assert (network(params, changed) != output).any(1).tolist() == [True, False, False, False]
