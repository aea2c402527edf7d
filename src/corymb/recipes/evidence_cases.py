"""The stress matrix for rules that find clusters: realistic data with known groups, or with none.

Every case is a function of a seed. Images are scikit-learn's digits; the three cases on MNIST and Fashion-MNIST need
`CORYMB_DATA`. Training and test images come from separate pools. Each cluster deals out its own copy of the pool, so
that a client never holds the same image twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch

from corymb.data.built_in.synthetic import mixed_regression
from corymb.data.built_in.views import client_names
from corymb.data.dataset import FederatedDataset
from corymb.data.features import Array
from corymb.data.ragged import Ragged, offsets_of

PICTURES = 20_000
"""The number of training images used of each data set: more than any case deals out."""
View = Callable[[Array, Array], tuple[Array, Array]]
"""A cluster's transformation of images (m, height, width) and their labels."""
Generator = np.random.Generator


@dataclass(frozen=True)
class Case:
    """Data with known clusters."""

    make: Callable[[int], FederatedDataset]
    about: str
    clusters: int
    needs_files: bool = False


def _turned(quarters: int) -> View:
    return lambda x, y: (np.rot90(x, quarters, axes=(-2, -1)), y)


def _inverted(view: View) -> View:
    def seen(x: Array, y: Array) -> tuple[Array, Array]:
        x, y = view(x, y)
        return x.max() - x, y

    return seen


def _relabelled(order: Sequence[int] | Array) -> View:
    return lambda x, y: (x, np.asarray(order)[y])


def _contrast(power: float) -> View:
    return lambda x, y: (x.max() * (x / x.max()) ** power, y)


def _rotated_by(angle: float) -> View:
    def seen(x: Array, y: Array) -> tuple[Array, Array]:
        from scipy.ndimage import rotate

        return (rotate(x, angle, axes=(1, 2), reshape=False, order=1) if angle else x), y

    return seen


ROTATIONS = [_turned(quarters) for quarters in range(4)]


def _permutations(count: int) -> list[View]:
    rng = np.random.default_rng(99)
    return [_relabelled(np.arange(10)), *(_relabelled(rng.permutation(10)) for _ in range(count - 1))]


def _digits() -> tuple[Array, Array]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images.astype(np.float32) / 16, bunch.target


def _files(name: str) -> Callable[[], tuple[Array, Array]]:
    def read() -> tuple[Array, Array]:
        import os

        with np.load(f"{os.environ['CORYMB_DATA']}/{name}/{name}.npz") as packed:
            return packed["x_train"][:PICTURES].astype(np.float32) / 255, packed["y_train"][:PICTURES]

    return read


def _pictures(
    name: str,
    views: Sequence[View],
    members: Sequence[int],
    size: int | Callable[[Generator, int], Array] = 60,
    *,
    test: int = 40,
    dirichlet: float | None = None,
    mixed: float = 0.0,
    source: Callable[[], tuple[Array, Array]] = _digits,
) -> Callable[[int], FederatedDataset]:
    """Clients whose clusters transform images differently; a share `mixed` of each client's uses the next cluster's."""

    def make(seed: int) -> FederatedDataset:
        rng = np.random.default_rng([seed, 12])
        x, y = source()
        order = rng.permutation(len(x))
        pools = np.split(order, [round(len(x) * 0.7)])
        n = sum(members)
        truth = np.repeat(np.arange(len(members)), members)
        sizes = np.full(n, size) if isinstance(size, int) else np.minimum(size(rng, n), len(pools[0]))
        skew = None if dirichlet is None else rng.dirichlet(np.full(10, dirichlet), n)
        parts = []
        for pool, counts in ((pools[0], sizes), (pools[1], np.full(n, test))):
            dealers = [_Dealer(pool, y, rng) for _ in views]
            rows_x, rows_y = [], []
            for client in range(n):
                rows = dealers[truth[client]].deal(int(counts[client]), None if skew is None else skew[client])
                other = rng.random(len(rows)) < mixed
                seen, labels = views[truth[client]](x[rows], y[rows])
                if other.any():
                    elsewhere = views[(truth[client] + 1) % len(views)](x[rows], y[rows])
                    seen = np.where(other[:, None, None], elsewhere[0], seen)
                    labels = np.where(other, elsewhere[1], labels)
                rows_x.append(np.ascontiguousarray(seen).reshape(len(rows), -1))
                rows_y.append(labels)
            parts.append(
                Ragged(
                    torch.from_numpy(np.concatenate(rows_x).astype(np.float32)),
                    torch.from_numpy(np.concatenate(rows_y).astype(np.int64)),
                    offsets_of(torch.tensor([len(rows) for rows in rows_y])),
                )
            )
        return FederatedDataset(
            name=name,
            names=client_names(n),
            train=parts[0],
            test=parts[1],
            task="classification",
            classes=tuple("0123456789"),
            truth=torch.from_numpy(truth.astype(np.int64)),
        )

    return make


class _Dealer:
    """Deals out a pool of images, by class or regardless of class; reshuffles it when it is used up."""

    def __init__(self, pool: Array, y: Array, rng: Generator) -> None:
        self.rng = rng
        self.decks: dict[int | None, Array] = {None: pool, **{c: pool[y[pool] == c] for c in range(10)}}
        self.left = {deck: rng.permutation(cards) for deck, cards in self.decks.items()}

    def deal(self, count: int, skew: Array | None) -> Array:
        if skew is None:
            return self._from(None, count)
        wanted = self.rng.multinomial(count, skew)
        return np.concatenate([self._from(c, min(int(wanted[c]), len(self.decks[c]))) for c in range(10)])

    def _from(self, deck: int | None, count: int) -> Array:
        cards, self.left[deck] = self.left[deck][:count], self.left[deck][count:]
        if len(cards) < count:  # no client gets an image twice
            again = self.rng.permutation(np.setdiff1d(self.decks[deck], cards))
            cards = np.concatenate([cards, again[: count - len(cards)]])
            self.left[deck] = self.rng.permutation(self.decks[deck])
        return cards


def _power_law(least: int, most: int) -> Callable[[Generator, int], Array]:
    def draw(rng: Generator, n: int) -> Array:
        """Sizes with density ∝ 1/m between the bounds: as many clients from 5 to 50 as from 50 to 500."""
        return np.round(least * (most / least) ** rng.random(n)).astype(np.int64)

    return draw


def _regression(name: str, **settings: object) -> Callable[[int], FederatedDataset]:
    return lambda seed: mixed_regression(seed + 1200, name=name, **settings)  # type: ignore[arg-type]


def _uneven(seed: int) -> FederatedDataset:
    sizes = _power_law(5, 500)(np.random.default_rng([seed, 13]), 150)
    pairs = [(1, int(size)) for size in sizes]
    return mixed_regression(seed + 1200, m=pairs, d=20, k=3, name="regression, sizes 5 to 500")


CASES: Mapping[str, Case] = MappingProxyType(
    {
        "rotations": Case(_pictures("rotations", ROTATIONS, [20] * 4), "digits, 4 rotations, 80 × 60", 4),
        "57 + 3": Case(_pictures("57 + 3", ROTATIONS[::2], [57, 3]), "digits, 2 rotations, 57 + 3 clients", 2),
        "55/30/10/5": Case(_pictures("55/30/10/5", ROTATIONS, [44, 24, 8, 4]), "digits, 4 rotations, 80 × 60", 4),
        "91/3/3/3": Case(_pictures("91/3/3/3", ROTATIONS, [91, 3, 3, 3]), "digits, 4 rotations, 100 × 60", 4),
        "rotated, inverted": Case(
            _pictures("rotated, inverted", [*ROTATIONS, *map(_inverted, ROTATIONS)], [10] * 8),
            "digits, rotation × inversion, 80 × 60",
            8,
        ),
        "6 permutations": Case(_pictures("6 permutations", _permutations(6), [10] * 6), "digits, labels permuted", 6),
        "12 permutations": Case(
            _pictures("12 permutations", _permutations(12), [10] * 12), "digits, labels permuted, 120 × 60", 12
        ),
        "0 and 1 swapped": Case(
            _pictures("0 and 1 swapped", [_relabelled(np.arange(10)), _relabelled([1, 0, *range(2, 10)])], [20, 20]),
            "digits, labels 0 and 1 swapped in half the clients",
            2,
        ),
        "6 clients": Case(_pictures("6 clients", ROTATIONS[::2], [3, 3], 150), "digits, 2 rotations, 6 × 150", 2),
        "iid 6": Case(_pictures("iid 6", ROTATIONS[:1], [6], 150), "digits, no groups, 6 × 150", 1),
        "iid 12": Case(_pictures("iid 12", ROTATIONS[:1], [12]), "digits, no groups, 12 × 60", 1),
        "iid 40": Case(_pictures("iid 40", ROTATIONS[:1], [40]), "digits, no groups, 40 × 60", 1),
        "400 × 20": Case(_pictures("400 × 20", ROTATIONS, [100] * 4, 20, test=10), "digits, 4 rotations, 400 × 20", 4),
        "sizes, rotations": Case(
            _pictures("sizes, rotations", ROTATIONS, [20] * 4, _power_law(5, 1000)),
            "digits, 4 rotations, 80 clients of 5 to 1,000",
            4,
        ),
        "sizes, iid": Case(
            _pictures("sizes, iid", ROTATIONS[:1], [60], _power_law(5, 1000)), "digits, 60 clients of 5 to 1,000", 1
        ),
        "Dirichlet .1, rotations": Case(
            _pictures("Dirichlet .1, rotations", ROTATIONS, [20] * 4, dirichlet=0.1), "digits, label skew .1", 4
        ),
        "Dirichlet .5, rotations": Case(
            _pictures("Dirichlet .5, rotations", ROTATIONS, [20] * 4, dirichlet=0.5), "digits, label skew .5", 4
        ),
        "Dirichlet .1": Case(
            _pictures("Dirichlet .1", ROTATIONS[:1], [40], dirichlet=0.1), "digits, label skew .1, no groups", 1
        ),
        "Dirichlet .5": Case(
            _pictures("Dirichlet .5", ROTATIONS[:1], [40], dirichlet=0.5), "digits, label skew .5, no groups", 1
        ),
        "25 % mixed": Case(
            _pictures("25 % mixed", ROTATIONS[::2], [20, 20], mixed=0.25), "digits, 25 % from the other cluster", 2
        ),
        "40 % mixed": Case(
            _pictures("40 % mixed", ROTATIONS[::2], [20, 20], mixed=0.4), "digits, 40 % from the other cluster", 2
        ),
        "contrast": Case(
            _pictures("contrast", [_contrast(0.5), _contrast(1.0), _contrast(2.0)], [14] * 3), "digits, 3 contrasts", 3
        ),
        "regression": Case(_regression("regression", n=150), "3 lines, m = 50 < d = 100", 3),
        "regression, one": Case(_regression("regression, one", n=150, k=1), "1 line, m = 50 < d = 100", 1),
        "regression, one, m > d": Case(
            _regression("regression, one, m > d", n=60, k=1, m=120), "1 line, m = 120 > d = 100", 1
        ),
        "regression, 95/5": Case(
            _regression("regression, 95/5", n=150, k=2, shares=(0.95, 0.05)), "2 lines, 95 and 5 % of the clients", 2
        ),
        "regression, 8": Case(_regression("regression, 8", n=240, k=8), "8 lines, m = 50 < d = 100", 8),
        "regression, sizes": Case(_uneven, "3 lines, d = 20, clients of 5 to 500", 3),
        "regression, spread": Case(
            _regression("regression, spread", n=150, within=0.8), "3 lines, each client's own up to .4 away", 3
        ),
        "regression, noise": Case(
            _regression("regression, noise", n=150, m=21, d=20, sigma=1.0), "3 lines, m = 21, d = 20, noise 1", 3
        ),
        "MNIST 0/30": Case(
            _pictures("MNIST 0/30", [_rotated_by(a) for a in (0, 30)], [20, 20], 100, source=_files("mnist")),
            "MNIST turned by 0 and 30 degrees, 40 × 100",
            2,
            needs_files=True,
        ),
        "MNIST 0/15/30": Case(
            _pictures("MNIST 0/15/30", [_rotated_by(a) for a in (0, 15, 30)], [20] * 3, 100, source=_files("mnist")),
            "MNIST turned by 0, 15 and 30 degrees, 60 × 100",
            3,
            needs_files=True,
        ),
        "Fashion, Dirichlet .3": Case(
            _pictures("Fashion, Dirichlet .3", ROTATIONS, [15] * 4, 100, dirichlet=0.3, source=_files("fashion_mnist")),
            "Fashion-MNIST, 4 rotations, label skew .3, 60 × 100",
            4,
            needs_files=True,
        ),
    }
)
WITHOUT = tuple(name for name, case in CASES.items() if case.clusters == 1)
