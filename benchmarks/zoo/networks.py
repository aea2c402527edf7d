"""The networks that `benchmarks.zoo` compares: those that users are likely to bring, small and large, by family.

A case is a function that makes a module, and the shape of its examples: `table` d, `picture` channels × side × side,
`series` time × channels, `codes` time (of a vocabulary of 50), `volume` 1 × side × side × side.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

WORDS = 50
CLASSES = 10


class Case(NamedTuple):
    """A network, the shape of an example, and whether its features are codes or its targets are numbers."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    codes: bool = False
    regression: bool = False


class Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Applied(nn.Module):
    """A function applied to the output of some layers."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)


def sequence(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A function that returns new layers each time."""
    return lambda: nn.Sequential(*(layer() for layer in layers))


def applied(function: Callable[..., Tensor], *layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Applied(function, *(layer() for layer in layers))


def linear(i: int, o: int, **options: Any) -> Callable[[], nn.Module]:
    return partial(nn.Linear, i, o, **options)


def dense(*widths: int, act: Callable[[], nn.Module] = nn.ReLU) -> Callable[[], nn.Module]:
    layers: list[Callable[[], nn.Module]] = []
    for i, o in itertools.pairwise(widths):
        layers += [linear(i, o), act]
    return sequence(*layers[:-1])


def residual(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Residual(*(layer() for layer in layers))


# ---- tables


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair, self.out = nn.Bilinear(10, 10, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.pair(x[:, :10], x[:, 10:]).tanh())


class Experts(nn.Module):
    """Softmax-gated mixture of three perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(20, 3)
        self.experts = nn.ModuleList(dense(20, 16, CLASSES)() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        return sum(shares[:, j : j + 1] * expert(x) for j, expert in enumerate(self.experts))  # type: ignore[return-value]


class Tied(nn.Module):
    """An autoencoder with one weight used twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 20) / 5)
        self.head = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.linear(functional.linear(x, self.weight).relu(), self.weight.T))


class Factorised(nn.Module):
    """A factorisation machine."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.pairs = nn.Linear(20, CLASSES), nn.Parameter(torch.randn(20, 8, CLASSES) / 10)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.einsum("bi,ijc->bjc", x, self.pairs).square()
        squares = torch.einsum("bi,ijc->bjc", x.square(), self.pairs.square())
        return self.flat(x) + 0.5 * (mixed - squares).sum(1)


class Fourier(nn.Module):
    """Fixed random features, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(20, 64, generator=torch.Generator().manual_seed(0)))
        self.out = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        phase = x @ self.frequencies  # type: ignore[operator]
        return self.out(torch.cat([phase.sin(), phase.cos()], -1))


class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.gate, self.out = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            gate = self.gate(x).sigmoid()
            x = gate * self.mix(x).relu() + (1 - gate) * x
        return self.out(x)


class Normed(nn.Module):
    """Cosine logits of normalised features with a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.centres = dense(20, 32, 16)(), nn.Parameter(torch.randn(CLASSES, 16))
        self.scale = nn.Parameter(torch.tensor(5.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * functional.normalize(self.body(x), dim=-1) @ functional.normalize(self.centres, dim=-1).T


class Distances(nn.Module):
    """Radial basis functions."""

    def __init__(self) -> None:
        super().__init__()
        self.centres, self.out = nn.Parameter(torch.randn(24, 20)), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        far = (x[:, None] - self.centres).square().sum(-1)
        return self.out((-far / 20).exp())


class Centred(nn.Module):
    """Subtracts the batch's mean: an example's loss depends on the others."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.body = dense(*widths)()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x - x.mean(0))


class Frozen(nn.Module):
    """A frozen body and a head that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = dense(20, 64, 64)(), nn.Linear(64, CLASSES)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


class Trees(nn.Module):
    """A soft decision tree of depth 3."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.leaves = nn.Linear(20, 7), nn.Parameter(torch.randn(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        right, reach = self.nodes(x).sigmoid(), torch.ones_like(x[:, :1])
        for level in range(3):
            here = right[:, 2**level - 1 : 2 ** (level + 1) - 1]
            reach = torch.stack([reach * (1 - here), reach * here], -1).flatten(1)
        return reach @ self.leaves


def _columns_as_tokens(x: Tensor, embed: nn.Module, attend: nn.Module, out: nn.Module) -> Tensor:
    return out(attend(embed(x.unsqueeze(-1))).mean(1))


def heads(x: Tensor, body: nn.Module, mean: nn.Module, width: nn.Module) -> Tensor:
    seen = body(x).tanh()
    return mean(seen) * functional.softplus(width(seen))


TABLES: dict[str, Case] = {
    "logistic": Case(linear(20, CLASSES), (20,)),
    "logistic without bias": Case(linear(20, CLASSES, bias=False), (20,)),
    "linear regression": Case(linear(20, 1), (20,), regression=True),
    "mlp 20-32": Case(dense(20, 32, CLASSES), (20,)),
    "mlp regression": Case(dense(20, 32, 1), (20,), regression=True),
    "mlp tanh, deep": Case(dense(20, *[24] * 6, CLASSES, act=nn.Tanh), (20,)),
    "mlp gelu": Case(dense(20, 64, 64, CLASSES, act=nn.GELU), (20,)),
    "mlp silu": Case(dense(20, 64, 64, CLASSES, act=nn.SiLU), (20,)),
    "mlp elu": Case(dense(20, 64, 64, CLASSES, act=nn.ELU), (20,)),
    "mlp leaky": Case(dense(20, 64, CLASSES, act=partial(nn.LeakyReLU, 0.1)), (20,)),
    "mlp prelu": Case(dense(20, 64, CLASSES, act=nn.PReLU), (20,)),
    "mlp softplus": Case(dense(20, 64, CLASSES, act=nn.Softplus), (20,)),
    "mlp in place": Case(dense(20, 64, 64, CLASSES, act=partial(nn.ReLU, inplace=True)), (20,)),
    "mlp glu": Case(sequence(linear(20, 64), nn.GLU, linear(32, CLASSES)), (20,)),
    "mlp dropout": Case(sequence(linear(20, 64), nn.ReLU, partial(nn.Dropout, 0.3), linear(64, CLASSES)), (20,)),
    "mlp layer norm": Case(sequence(linear(20, 64), partial(nn.LayerNorm, 64), nn.ReLU, linear(64, CLASSES)), (20,)),
    "mlp rms norm": Case(sequence(linear(20, 64), partial(nn.RMSNorm, 64), nn.ReLU, linear(64, CLASSES)), (20,)),
    "mlp group norm": Case(sequence(linear(20, 64), partial(nn.GroupNorm, 4, 64), nn.ReLU, linear(64, CLASSES)), (20,)),
    "mlp weight norm": Case(sequence(lambda: weight_norm(nn.Linear(20, 64)), nn.ReLU, linear(64, CLASSES)), (20,)),
    "mlp residual": Case(
        sequence(linear(20, 32), *[residual(linear(32, 32), nn.ReLU, linear(32, 32))] * 3, linear(32, CLASSES)), (20,)
    ),
    "bilinear": Case(Bilinear, (20,)),
    "experts": Case(Experts, (20,)),
    "tied autoencoder": Case(Tied, (20,)),
    "factorisation machine": Case(Factorised, (20,)),
    "fourier features": Case(Fourier, (20,)),
    "highway": Case(Highway, (20,)),
    "cosine logits": Case(Normed, (20,)),
    "radial basis": Case(Distances, (20,)),
    "soft tree": Case(Trees, (20,)),
    "two heads": Case(applied(heads, linear(20, 32), linear(32, CLASSES), linear(32, CLASSES)), (20,)),
    "frozen body": Case(Frozen, (20,)),
    "columns as tokens": Case(
        applied(
            _columns_as_tokens,
            linear(1, 16),
            lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
            linear(16, CLASSES),
        ),
        (20,),
    ),
    "coupled 20": Case(partial(Centred, 20, CLASSES), (20,)),
    "coupled 20-64-64": Case(partial(Centred, 20, 64, 64, CLASSES), (20,)),
    "mlp 784-200": Case(dense(784, 200, CLASSES), (784,)),
    "mlp 784-400-400, layer norm": Case(
        sequence(
            linear(784, 300),
            partial(nn.LayerNorm, 300),
            nn.ReLU,
            linear(300, 300),
            partial(nn.LayerNorm, 300),
            nn.ReLU,
            linear(300, CLASSES),
        ),
        (784,),
    ),
    "mlp 784-200, dropout": Case(
        sequence(linear(784, 200), nn.ReLU, partial(nn.Dropout, 0.5), linear(200, CLASSES)), (784,)
    ),
    "mlp 784-300, layer norm, dropout": Case(
        sequence(linear(784, 300), partial(nn.LayerNorm, 300), nn.ReLU, partial(nn.Dropout, 0.5), linear(300, CLASSES)),
        (784,),
    ),
    "coupled, dropout": Case(
        sequence(partial(Centred, 20, 64), nn.ReLU, partial(nn.Dropout, 0.3), linear(64, CLASSES)), (20,)
    ),
    "mlp 784-512-512-512": Case(dense(784, 512, 512, 512, CLASSES), (784,)),
    "mlp 784-200, prelu": Case(dense(784, 200, CLASSES, act=nn.PReLU), (784,)),
    "coupled 784-200": Case(partial(Centred, 784, 200, CLASSES), (784,)),
}


# ---- pictures


def conv(i: int, o: int, size: int = 3, **options: Any) -> Callable[[], nn.Module]:
    return partial(nn.Conv2d, i, o, size, **{"padding": size // 2, **options})


def head(width: int) -> list[Callable[[], nn.Module]]:
    return [nn.Flatten, linear(width, CLASSES)]


class Squeezed(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(channels, 4), nn.Linear(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.up(self.down(x.mean((2, 3))).relu()).sigmoid()[..., None, None]


class Unet(nn.Module):
    """Down, up and across, then a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.down = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        across = self.into(x).relu()
        return self.out(torch.cat([across, self.up(self.down(across).relu())], 1)).mean((2, 3))


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, stride=4)
        self.places = nn.Parameter(torch.randn(1, 9, width) / 10)
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, activation="gelu")
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.patch(x).flatten(2).mT + self.places).mean(1))


class Mixer(nn.Module):
    """A layer of an MLP-mixer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, stride=4)
        self.tokens, self.channels = dense(9, 16, 9, act=nn.GELU)(), dense(width, 64, width, act=nn.GELU)()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT
        x = x + self.tokens(self.norms[0](x).mT).mT
        return self.out((x + self.channels(self.norms[1](x))).mean(1))


def _pooled(width: int, channels: int = 1) -> list[Callable[[], nn.Module]]:
    return [
        conv(channels, width),
        nn.ReLU,
        partial(nn.MaxPool2d, 2),
        conv(width, 2 * width),
        nn.ReLU,
        partial(nn.MaxPool2d, 2),
    ]


PICTURES: dict[str, Case] = {
    "cnn 4-8": Case(sequence(*_pooled(4), *head(8 * 9)), (1, 12, 12)),
    "cnn 8-16": Case(sequence(*_pooled(8), *head(16 * 9)), (1, 12, 12)),
    "cnn 8-16, colour": Case(sequence(*_pooled(8, 3), *head(16 * 16)), (3, 16, 16)),
    "lenet": Case(
        sequence(
            conv(1, 6, 5),
            nn.Tanh,
            partial(nn.AvgPool2d, 2),
            conv(6, 16, 5, padding=0),
            nn.Tanh,
            partial(nn.AvgPool2d, 2),
            nn.Flatten,
            linear(400, 120),
            nn.Tanh,
            linear(120, 84),
            nn.Tanh,
            linear(84, CLASSES),
        ),
        (1, 28, 28),
    ),
    "cnn group norm": Case(
        sequence(conv(1, 8), partial(nn.GroupNorm, 2, 8), nn.ReLU, partial(nn.AdaptiveAvgPool2d, 2), *head(32)),
        (1, 12, 12),
    ),
    "cnn instance norm": Case(
        sequence(conv(1, 8), partial(nn.InstanceNorm2d, 8, affine=True), nn.ReLU, partial(nn.AvgPool2d, 4), *head(72)),
        (1, 12, 12),
    ),
    "cnn strided": Case(
        sequence(conv(1, 8, stride=2), nn.ReLU, conv(8, 16, stride=2), nn.ReLU, *head(144)), (1, 12, 12)
    ),
    "cnn dilated": Case(
        sequence(conv(1, 8, dilation=2, padding=2), nn.ReLU, partial(nn.AvgPool2d, 3), *head(128)), (1, 12, 12)
    ),
    "cnn depthwise": Case(
        sequence(conv(1, 8), conv(8, 8, groups=8), conv(8, 16, 1), nn.ReLU6, partial(nn.AvgPool2d, 4), *head(144)),
        (1, 12, 12),
    ),
    "cnn residual": Case(
        sequence(conv(1, 8), *[residual(conv(8, 8), nn.ReLU, conv(8, 8))] * 2, partial(nn.AvgPool2d, 4), *head(72)),
        (1, 12, 12),
    ),
    "cnn squeezed": Case(
        sequence(conv(1, 8), nn.ReLU, partial(Squeezed, 8), partial(nn.AvgPool2d, 4), *head(72)), (1, 12, 12)
    ),
    "cnn transposed": Case(
        sequence(partial(nn.ConvTranspose2d, 1, 4, 2, stride=2), nn.ReLU, partial(nn.AvgPool2d, 6), *head(64)),
        (1, 12, 12),
    ),
    "cnn dropout": Case(
        sequence(*_pooled(4), partial(nn.Dropout2d, 0.3), nn.Flatten, partial(nn.Dropout, 0.3), linear(72, CLASSES)),
        (1, 12, 12),
    ),
    "cnn upsampled": Case(
        sequence(conv(1, 4), partial(nn.Upsample, scale_factor=2), conv(4, 4), partial(nn.AvgPool2d, 6), *head(64)),
        (1, 12, 12),
    ),
    "cnn padded": Case(
        sequence(partial(nn.ReflectionPad2d, 1), conv(1, 8, padding=0), nn.ReLU, partial(nn.MaxPool2d, 4), *head(72)),
        (1, 12, 12),
    ),
    "cnn all convolutions": Case(
        sequence(
            conv(1, 8),
            nn.ReLU,
            conv(8, 8, stride=2),
            nn.ReLU,
            conv(8, CLASSES, 1),
            partial(nn.AdaptiveAvgPool2d, 1),
            nn.Flatten,
        ),
        (1, 12, 12),
    ),
    "unet": Case(Unet, (1, 12, 12)),
    "vision transformer": Case(Patches, (1, 12, 12)),
    "mixer": Case(Mixer, (1, 12, 12)),
    "cnn 3d": Case(sequence(partial(nn.Conv3d, 1, 4, 3), nn.ReLU, partial(nn.MaxPool3d, 2), *head(32)), (1, 6, 6, 6)),
    "cnn 16-32, 28": Case(sequence(*_pooled(16), *head(32 * 49)), (1, 28, 28)),
    "cnn 32-64, 28, 128": Case(
        sequence(*_pooled(32), nn.Flatten, linear(64 * 49, 128), nn.ReLU, linear(128, CLASSES)), (1, 28, 28)
    ),
    "cnn 32-64, 28, dropout": Case(
        sequence(
            *_pooled(32),
            partial(nn.Dropout, 0.25),
            nn.Flatten,
            linear(64 * 49, 128),
            nn.ReLU,
            partial(nn.Dropout, 0.5),
            linear(128, CLASSES),
        ),
        (1, 28, 28),
    ),
    "vgg, colour 32": Case(
        sequence(
            conv(3, 16),
            nn.ReLU,
            conv(16, 16),
            nn.ReLU,
            partial(nn.MaxPool2d, 2),
            conv(16, 32),
            nn.ReLU,
            partial(nn.MaxPool2d, 2),
            *head(32 * 64),
        ),
        (3, 32, 32),
    ),
}


# ---- series and text


class Recurrent(nn.Module):
    """A recurrent network on series or codes; its output is that of the last step."""

    def __init__(self, kind: type[nn.RNNBase], width: int, *, codes: bool = False, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 6) if codes else nn.Identity()
        self.drop = nn.Dropout(options.pop("drop", 0.0))
        self.cells = kind(6, width, **{"batch_first": True, **options})
        both = 2 if options.get("bidirectional") else 1
        self.out = nn.Linear(both * (options.get("proj_size") or width), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        out, _ = self.cells(x if self.cells.batch_first else x.transpose(0, 1))
        return self.out(self.drop(out[:, -1] if self.cells.batch_first else out[-1]))


class Packed(nn.Module):
    """A GRU on texts of different lengths; code 0 is padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.cells = nn.Embedding(WORDS, 6), nn.GRU(6, width, batch_first=True)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 2).sum(1).clamp_min(1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.cells(packed)[1][0])


class Stepped(nn.Module):
    """A recurrent cell that the model itself applies step by step."""

    def __init__(self, kind: type[nn.Module], width: int) -> None:
        super().__init__()
        self.cell, self.out, self.width = kind(6, width), nn.Linear(width, CLASSES), width

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), self.width)
        state = (h, h) if isinstance(self.cell, nn.LSTMCell) else h
        for now in x.unbind(1):
            state = self.cell(now, state)
        return self.out(state[0] if isinstance(state, tuple) else state)


class Attention(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.into, self.attend = nn.Linear(6, width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        return self.out(self.attend(x, x, x, need_weights=False)[0].mean(1))


class Causal(nn.Module):
    """A small language model: codes, places, masked attention."""

    def __init__(self, width: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.randn(12, width) / 10)
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(width, 3 * width), nn.Linear(width, width)]) for _ in range(layers)
        )
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.places
        for into, back in self.layers:  # type: ignore[misc]
            q, k, v = into(x).chunk(3, -1)
            x = x + back(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self.out(x[:, -1])


def attended(x: Tensor, score: nn.Module, out: nn.Module) -> Tensor:
    return out((score(x).softmax(1) * x).sum(1))


def codes_then(width: int, *layers: Callable[[], nn.Module], **options: Any) -> Callable[[], nn.Module]:
    return sequence(partial(nn.Embedding, WORDS, width, **options), *layers)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Turned(nn.Module):
    """time × channels to channels × time."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mT


class TwoTables(nn.Module):
    """A wide and deep model of codes."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Embedding(WORDS, CLASSES), nn.Embedding(WORDS, 8)
        self.body = dense(96, 32, CLASSES)()

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x).sum(1) + self.body(self.deep(x).flatten(1))


class Weighted(nn.Module):
    """The mean embedding of all words except padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(WORDS, 16, padding_idx=0), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        real = (x != 0).unsqueeze(-1)
        return self.out((self.embed(x) * real).sum(1) / real.sum(1).clamp_min(1))


SERIES = (12, 6)
LONG = (40, 6)
TEXT = (12,)

SEQUENCES: dict[str, Case] = {
    "rnn 16": Case(partial(Recurrent, nn.RNN, 16), SERIES),
    "rnn relu 16": Case(partial(Recurrent, nn.RNN, 16, nonlinearity="relu"), SERIES),
    "gru 16": Case(partial(Recurrent, nn.GRU, 16), SERIES),
    "gru 16, time first": Case(partial(Recurrent, nn.GRU, 16, batch_first=False), SERIES),
    "gru 16, two layers": Case(partial(Recurrent, nn.GRU, 16, num_layers=2), SERIES),
    "gru 16, both ways": Case(partial(Recurrent, nn.GRU, 16, bidirectional=True), SERIES),
    "gru 16, no bias": Case(partial(Recurrent, nn.GRU, 16, bias=False), SERIES),
    "gru 16, codes": Case(partial(Recurrent, nn.GRU, 16, codes=True), TEXT, codes=True),
    "gru 64, long": Case(partial(Recurrent, nn.GRU, 64), LONG),
    "lstm 16": Case(partial(Recurrent, nn.LSTM, 16), SERIES),
    "lstm 16, two layers": Case(partial(Recurrent, nn.LSTM, 16, num_layers=2), SERIES),
    "lstm 16, both ways": Case(partial(Recurrent, nn.LSTM, 16, bidirectional=True), SERIES),
    "lstm 16, projected": Case(partial(Recurrent, nn.LSTM, 16, proj_size=8), SERIES),
    "lstm 64, long": Case(partial(Recurrent, nn.LSTM, 64), LONG),
    "lstm 64, codes, two layers": Case(partial(Recurrent, nn.LSTM, 64, codes=True, num_layers=2), TEXT, codes=True),
    "rnn 64, long": Case(partial(Recurrent, nn.RNN, 64), LONG),
    "lstm 64, dropout": Case(partial(Recurrent, nn.LSTM, 64, drop=0.3), LONG),
    "gru 16, packed": Case(partial(Packed, 16), TEXT, codes=True),
    "rnn cell": Case(partial(Stepped, nn.RNNCell, 16), SERIES),
    "gru cell": Case(partial(Stepped, nn.GRUCell, 16), SERIES),
    "lstm cell": Case(partial(Stepped, nn.LSTMCell, 16), SERIES),
    "cnn 1d": Case(
        sequence(Turned, partial(nn.Conv1d, 6, 16, 3), nn.ReLU, partial(nn.MaxPool1d, 2), *head(80)), SERIES
    ),
    "cnn 1d, dilated": Case(
        sequence(
            Turned,
            partial(nn.Conv1d, 6, 16, 2, dilation=1),
            nn.ReLU,
            partial(nn.Conv1d, 16, 16, 2, dilation=2),
            nn.ReLU,
            partial(nn.AdaptiveAvgPool1d, 1),
            *head(16),
        ),
        SERIES,
    ),
    "attention": Case(Attention, SERIES),
    "attention pooling": Case(applied(attended, linear(6, 1), linear(6, CLASSES)), SERIES),
    "transformer layer": Case(
        sequence(
            linear(6, 16),
            lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True),
            Mean,
            linear(16, CLASSES),
        ),
        SERIES,
    ),
    "transformer, norm first": Case(
        sequence(
            linear(6, 16),
            lambda: nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True),
                2,
                enable_nested_tensor=False,
            ),
            Mean,
            linear(16, CLASSES),
        ),
        SERIES,
    ),
    "transformer dropout": Case(sequence(linear(6, 16), lambda: Dropped(), Mean, linear(16, CLASSES)), SERIES),
    "causal attention": Case(Causal, TEXT, codes=True),
    "causal attention, 2 × 64": Case(partial(Causal, 64, 2), TEXT, codes=True),
    "bag of words": Case(codes_then(16, Mean, linear(16, CLASSES)), TEXT, codes=True),
    "embedding bag": Case(sequence(partial(nn.EmbeddingBag, WORDS, 16), linear(16, CLASSES)), TEXT, codes=True),
    "embedding, padding": Case(codes_then(16, Mean, linear(16, CLASSES), padding_idx=0), TEXT, codes=True),
    "embedding, masked padding": Case(Weighted, TEXT, codes=True),
    "text cnn": Case(
        codes_then(16, Turned, partial(nn.Conv1d, 16, 16, 3), nn.ReLU, partial(nn.AdaptiveMaxPool1d, 1), *head(16)),
        TEXT,
        codes=True,
    ),
    "wide and deep": Case(TwoTables, TEXT, codes=True),
    "embedding mlp": Case(codes_then(8, nn.Flatten, linear(96, 32), nn.ReLU, linear(32, CLASSES)), TEXT, codes=True),
}


class Dropped(nn.Module):
    """A transformer's feed-forward part with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down, self.drop = (
            nn.LayerNorm(16),
            nn.Linear(16, 32),
            nn.Linear(32, 16),
            nn.Dropout(0.1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(self.drop(self.up(self.norm(x)).relu())))


CASES: dict[str, Case] = TABLES | PICTURES | SEQUENCES
