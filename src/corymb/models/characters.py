"""The LSTM of LEAF (Caldas et al. 2018) for text: predicts the next character."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


class CharLSTM(nn.Module):
    """An embedding, layers of an LSTM, and a linear layer on the last state."""

    def __init__(self, characters: int, embedding: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, width, num_layers=layers, batch_first=True)
        self.out = nn.Linear(width, characters)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next character, from codes [examples, characters]."""
        logits: Tensor = self.out(self.lstm(self.embed(x))[0][:, -1])
        return logits


@dataclass(frozen=True)
class Characters:
    """Creates the network; has plain values only, so that it can be sent to a node."""

    characters: int
    embedding: int
    width: int
    layers: int

    def __call__(self) -> nn.Module:
        """A module with fresh parameters."""
        return CharLSTM(self.characters, self.embedding, self.width, self.layers)


def char_lstm(characters: int = 80, *, embedding: int = 8, width: int = 256, layers: int = 2) -> Characters:
    """A function that creates an embedding of 8, a 2-layer LSTM of 256 and a linear layer to the next character.

    >>> sum(p.numel() for p in char_lstm()().parameters())
    819920
    """
    return Characters(characters, embedding, width, layers)
