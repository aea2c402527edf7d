"""Further networks for `benchmarks.zoo`, which were not considered when the kernels were written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from benchmarks.zoo.networks import (
    CLASSES,
    WORDS,
    Case,
    Mean,
    Recurrent,
    Turned,
    applied,
    codes_then,
    dense,
    linear,
    residual,
    sequence,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

TABLE, PICTURE, SERIES, TEXT = (20,), (1, 14, 14), (12, 6), (12,)


class Padded(nn.Module):
    """A recurrent layer on texts of different lengths, pooled over the words of each; codes 0 to 2 are padding.

    Without `total`, texts are padded to the longest of each batch; with `mean`, outputs are averaged over that length.
    """

    def __init__(self, kind: type[nn.RNNBase], *, total: bool, mean: bool = False, **options: Any) -> None:
        super().__init__()
        self.embed, self.cells = nn.Embedding(WORDS, 6), kind(6, 16, batch_first=True, **options)
        self.out, self.total, self.mean = nn.Linear(32 if self.cells.bidirectional else 16, CLASSES), total, mean

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 2).sum(1).clamp_min(1).cpu()
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        total = x.shape[1] if self.total else None
        states, lengths = pad_packed_sequence(self.cells(packed)[0], batch_first=True, total_length=total)
        over = states.shape[1] if self.mean else lengths.to(states.device).unsqueeze(1)
        return self.out(states.sum(1) / over)


class Masked(nn.Module):
    """A transformer encoder that ignores padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.encode = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        padding = x < 3
        padding = padding & ~padding.all(1, keepdim=True)
        return self.out(self.encode(self.embed(x), src_key_padding_mask=padding).mean(1))


class Attended(nn.Module):
    """Causal attention as many write it: one product for queries, keys and values, and dropout in torch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(WORDS, 16), nn.Linear(16, 48), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        rate = 0.1 if self.training else 0.0
        found = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return self.out((x + found.transpose(1, 2).flatten(2)).mean(1))


class Translated(nn.Module):
    """An encoder and a decoder with attention over its states, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.GRU(6, 16, batch_first=True), nn.GRUCell(16, 16)
        self.score, self.out = nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.encode(x)
        h = last[0]
        for _ in range(3):
            shares = torch.einsum("bth,bh->bt", self.score(states), h).softmax(1)
            h = self.decode(torch.einsum("bt,bth->bh", shares, states), h)
        return self.out(h)


class Adapted(nn.Module):
    """A frozen layer with a trained update of low rank, and a trained head."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(20, 64).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(4, 20) / 5), nn.Parameter(torch.randn(64, 4) / 2)
        self.out = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.base(x) + x @ self.down.T @ self.up.T).relu())


class Hyper(nn.Module):
    """A network whose last layer is generated from the example by another network."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.maker = nn.Linear(20, 8), nn.Linear(20, 8 * CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,bio->bo", self.body(x).tanh(), self.maker(x).unflatten(1, (8, CLASSES)))


class Integrated(nn.Module):
    """An ordinary differential equation, by Euler steps that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.slope, self.out = nn.Linear(20, 16), dense(16, 32, 16, act=nn.Tanh)(), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for _ in range(5):
            x = x + 0.2 * self.slope(x)
        return self.out(x)


class Spectral(nn.Module):
    """A layer that multiplies in the frequency domain."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.out = nn.Parameter(torch.ones(7, 6)), nn.Linear(72, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.fft.irfft(torch.fft.rfft(x, dim=1) * self.filter, n=12, dim=1).flatten(1).relu())


class Graph(nn.Module):
    """Two graph convolutions on a fixed graph of the time steps."""

    def __init__(self) -> None:
        super().__init__()
        ring = torch.eye(12) + torch.eye(12).roll(1, 0) + torch.eye(12).roll(-1, 0)
        self.register_buffer("graph", ring / 3)
        self.one, self.two, self.out = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = (self.graph @ self.one(x)).relu()
        return self.out((self.graph @ self.two(x)).relu().mean(1))


class Dense(nn.Module):
    """Convolutions of which each gets the outputs of all preceding ones."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(1 + 4 * i, 4, 3, padding=1) for i in range(3))
        self.out = nn.Linear(13, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, conv(x).relu()], 1)
        return self.out(x.mean((2, 3)))


class Recalled(nn.Module):
    """A query over learned memory slots."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.keys = nn.Linear(20, 16), nn.Parameter(torch.randn(32, 16))
        self.values, self.scale = nn.Parameter(torch.randn(32, CLASSES)), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (self.scale * self.query(x) @ self.keys.T).softmax(-1) @ self.values


class Pooled(nn.Module):
    """A set network: the order of time steps does not matter."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.all = dense(6, 32, 32)(), dense(64, 32, CLASSES)()

    def forward(self, x: Tensor) -> Tensor:
        x = self.each(x)
        return self.all(torch.cat([x.mean(1), x.amax(1)], 1))


def maxout(x: Tensor, into: nn.Module, out: nn.Module) -> Tensor:
    return out(into(x).unflatten(1, (16, 3)).amax(2))


def shuffled(x: Tensor, up: nn.Module, out: nn.Module) -> Tensor:
    return out(functional.pixel_shuffle(up(x), 2).relu().flatten(2).mean(2))


def after(head: int, *layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return sequence(*layers, nn.Flatten, linear(head, CLASSES))


CASES: dict[str, Case] = {
    "lstm 16, packed": Case(partial(Padded, nn.LSTM, total=True), TEXT, codes=True),
    "gru 16, packed, both ways": Case(partial(Padded, nn.GRU, total=True, bidirectional=True), TEXT, codes=True),
    "gru 16, packed, longest": Case(partial(Padded, nn.GRU, total=False), TEXT, codes=True),
    "lstm 16, packed, longest": Case(partial(Padded, nn.LSTM, total=False), TEXT, codes=True),
    "gru 16, packed, mean of longest": Case(partial(Padded, nn.GRU, total=False, mean=True), TEXT, codes=True),
    "lstm 16, packed, mean of longest": Case(partial(Padded, nn.LSTM, total=False, mean=True), TEXT, codes=True),
    "transformer, masked": Case(Masked, TEXT, codes=True),
    "transformer layer, dropout": Case(
        codes_then(16, partial(nn.TransformerEncoderLayer, 16, 2, 32, batch_first=True), Mean, linear(16, CLASSES)),
        TEXT,
        codes=True,
    ),
    "causal attention, dropout": Case(Attended, TEXT, codes=True),
    "lstm 32, two layers, dropout": Case(partial(Recurrent, nn.LSTM, 32, num_layers=2, dropout=0.3), SERIES),
    "gru 16, both ways, dropout": Case(
        partial(Recurrent, nn.GRU, 16, num_layers=2, bidirectional=True, batch_first=False, dropout=0.3), SERIES
    ),
    "encoder, decoder": Case(Translated, SERIES),
    "low-rank update": Case(Adapted, TABLE),
    "hypernetwork": Case(Hyper, TABLE),
    "euler steps": Case(Integrated, TABLE),
    "fourier layer": Case(Spectral, SERIES),
    "graph convolutions": Case(Graph, SERIES),
    "memory slots": Case(Recalled, TABLE),
    "set network": Case(Pooled, SERIES),
    "maxout": Case(applied(maxout, linear(20, 48), linear(16, CLASSES)), TABLE),
    "mlp selu, alpha dropout": Case(sequence(linear(20, 32), nn.SELU, nn.AlphaDropout, linear(32, CLASSES)), TABLE),
    "mlp, normalised twice": Case(
        sequence(linear(20, 64), nn.Mish, partial(nn.LayerNorm, 64), linear(64, 64), nn.Hardswish, linear(64, CLASSES)),
        TABLE,
    ),
    "temporal convolutions": Case(
        sequence(
            Turned,
            lambda: weight_norm(nn.Conv1d(6, 16, 3, dilation=1)),
            nn.ReLU,
            lambda: weight_norm(nn.Conv1d(16, 16, 3, dilation=2)),
            nn.ReLU,
            partial(nn.AdaptiveAvgPool1d, 1),
            nn.Flatten,
            linear(16, CLASSES),
        ),
        SERIES,
    ),
    "cnn dense": Case(Dense, PICTURE),
    "cnn circular": Case(
        after(392, partial(nn.Conv2d, 1, 8, 3, padding=1, padding_mode="circular"), nn.ReLU, partial(nn.MaxPool2d, 2)),
        PICTURE,
    ),
    "cnn pixel shuffle": Case(
        applied(shuffled, partial(nn.Conv2d, 1, 16, 3, padding=1), linear(4, CLASSES)),
        PICTURE,
    ),
    "cnn grouped, 2 blocks": Case(
        after(
            8 * 49,
            partial(nn.Conv2d, 1, 8, 3, padding=1),
            residual(
                partial(nn.GroupNorm, 2, 8), nn.SiLU, partial(nn.Conv2d, 8, 8, 3, padding=1, groups=4), nn.Hardtanh
            ),
            partial(nn.AvgPool2d, 2),
        ),
        PICTURE,
    ),
    "text mixture": Case(
        codes_then(
            16,
            residual(partial(nn.LayerNorm, 16), linear(16, 32), nn.GELU, linear(32, 16)),
            *(nn.Flatten,),
            linear(192, CLASSES),
        ),
        TEXT,
        codes=True,
    ),
}
