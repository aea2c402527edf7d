"""The data, networks and budgets of the experiments of SR-FCA (Vardhan, Ghosh, Mazumdar, TMLR 2024).

All methods of a setting share one budget: every model that is served has been trained for `rounds` rounds of `local`
work. papers/sr-fca/README.md documents departures from the paper's settings, and the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType

from corymb.data.built_in import images
from corymb.data.built_in.digits import digits, digits_inverted
from corymb.data.built_in.roles import by_role
from corymb.data.built_in.sources import CIFAR10, FEMNIST, MNIST, SHAKESPEARE
from corymb.data.built_in.writers import by_writer
from corymb.data.dataset import FederatedDataset
from corymb.local import Descent
from corymb.models import ModelLike, Network, char_lstm, cnn, mlp, resnet9
from corymb.objectives import Augmented, Classification, Cutout, Flip, Translate
from corymb.recipes.quick_data import IN_PACKAGE
from corymb.runs.settings import Precision
from corymb.settings import did_you_mean, require

ORIGINAL = "original"
QUICK_TEST = 2000
PART_OF_MNIST = f"MNIST: 40 and 20 clients of 100 images, {QUICK_TEST:,} test images"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The data, network and budget of a column of the tables."""

    data: Callable[[int], FederatedDataset]
    """The data for a seed."""
    model: Callable[[], ModelLike | Augmented]
    k: int
    """The number of clusters, for methods that need it."""
    rounds: int
    local: Descent
    """A client's training in a round."""
    alone_lr: float | None = None
    """The step size of long local training, if it differs from that of `local`."""
    alone_steps: int | None = None
    """The steps of long local training, if they differ from `rounds` times those of a round."""
    each: int | None = None
    """Clients per cluster and round; None is all of them."""
    trim: float = 0.15
    threshold: float | None = None
    """The paper's λ as a mean cross-entropy, if it applies to our data; the gap rule is run in every setting."""
    quiet: tuple[float, float] = (0.2, 0.5)
    """CFL splits if the mean update is shorter, and a member's longer, than these fractions of the first round's."""
    precision: Precision = "float32"
    """The precision on a GPU; on a CPU it is always float32."""
    source: str = ORIGINAL

    @property
    def alone(self) -> Descent:
        """Local training with as many steps as all rounds together."""
        steps = self.alone_steps or self.rounds * (self.local.steps or 1)
        return replace(self.local, lr=self.alone_lr or self.local.lr, decay=1.0, linear_decay=None, steps=steps)

    @property
    def participants(self) -> int | None:
        """Clients per round over all clusters; None is all of them."""
        return None if self.each is None else self.each * self.k


# ---- data


def rotated_mnist(seed: int) -> FederatedDataset:
    """Four rotations with 25 clients each; 600 images per client, disjoint between clients."""
    return images.rotated(*MNIST.load(), clients=100, per_client=600, seed=seed, flat=True, disjoint=True)


def inverted_mnist(seed: int) -> FederatedDataset:
    """Original and inverted images with 50 clients each; 600 images per client, disjoint between clients."""
    return images.inverted(*MNIST.load(), clients=100, per_client=600, seed=seed, flat=True, disjoint=True)


def part_of_mnist(seed: int, deal: Callable[..., FederatedDataset], clients: int) -> FederatedDataset:
    """A small version of either: 100 images per client."""
    x, y, x_test, y_test = MNIST.load()
    tested = x_test[:QUICK_TEST], y_test[:QUICK_TEST]
    return deal(x, y, *tested, clients=clients, per_client=100, seed=seed, flat=True, disjoint=True)


def rotated_cifar(seed: int) -> FederatedDataset:
    """Upright and upside down, 8 clients each; 3,125 images per client, as many as with 16 clients per cluster."""
    return images.rotated(*CIFAR10.load(), clients=16, per_client=3125, rotations=2, seed=seed)


def labelled_cifar(seed: int) -> FederatedDataset:
    """The first seven classes and the last seven, 8 clients each, 4,375 images per client, as the paper states."""
    return images.label_sets(*CIFAR10.load(), clients=16, per_client=4375, seed=seed)


def labelled_cifar_as_coded(seed: int) -> FederatedDataset:
    """Classes 0 to 5, and 4 and 5 alone, as in the authors' code."""
    sets = (range(6), range(4, 6))
    return images.label_sets(*CIFAR10.load(), sets=sets, clients=16, per_client=625, seed=seed)


def femnist(seed: int) -> FederatedDataset:
    """50 writers with 100 characters or more."""
    return by_writer(FEMNIST.load(), clients=50, least=100, seed=seed, classes=FEMNIST.classes, name="femnist")


def shakespeare(seed: int, stride: int = 3) -> FederatedDataset:
    """50 roles with 10,000 characters or more; an example every third character."""
    return by_role(SHAKESPEARE.load(), clients=50, least=10_000, stride=stride, seed=seed, name="shakespeare")


# ---- networks


def _perceptron() -> ModelLike:
    return mlp(784, [200], 10)


def _residual() -> Augmented:
    """ResNet9 with group normalisation, trained with random flips, translations by up to 2 and 8 × 8 cutouts."""
    return Augmented(Classification(Network(resnet9()), 10), (Flip(), Translate(2), Cutout(8)))


# ---- settings

_ADAM = Descent(lr=1e-3, steps=20, batch=50, optimiser="adam")
_RESIDUAL = Descent(lr=0.05, linear_decay=100, steps=31, batch=100, momentum=0.9, weight_decay=5e-4)
"""Chosen on held-out training images: see papers/sr-fca/README.md."""
_CIFAR = Setting(
    data=rotated_cifar,
    model=_residual,
    k=2,
    rounds=100,
    local=_RESIDUAL,
    alone_lr=0.02,
    alone_steps=1240,
    trim=0.0,
    quiet=(0.5, 0.3),
    precision="tf32",
)
_MNIST = Setting(data=rotated_mnist, model=_perceptron, k=4, rounds=60, local=_ADAM, each=10, threshold=1.0)
_SHAKESPEARE = Setting(
    data=shakespeare,
    model=lambda: char_lstm(80),
    k=3,
    rounds=60,
    local=Descent(lr=2e-3, decay=0.976, steps=40, batch=50, optimiser="adam"),
    alone_lr=1e-3,
    precision="tf32",
)
_DIGITS = Setting(
    data=lambda seed: digits(seed, clients=40),
    model=lambda: mlp(64, [32], 10),
    k=4,
    rounds=20,
    local=Descent(lr=0.3, steps=5, batch=20),
    alone_steps=60,
    source=IN_PACKAGE,
)
_PART = replace(
    _DIGITS,
    data=partial(part_of_mnist, deal=images.rotated, clients=40),
    model=lambda: mlp(784, [50], 10),
    local=Descent(lr=0.05, steps=5, batch=20),
    alone_steps=100,
    source=PART_OF_MNIST,
)

SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "inverted": replace(_MNIST, data=inverted_mnist, k=2, threshold=None),
        "rotated": _MNIST,
        "cifar-rotated": _CIFAR,
        "cifar-labels": replace(_CIFAR, data=labelled_cifar),
        "femnist": Setting(
            data=femnist,
            model=lambda: cnn(1, 28, 62, width=2048),
            k=4,
            rounds=100,
            local=Descent(lr=0.1, decay=0.985, steps=15, batch=50),
            alone_lr=0.05,
            precision="tf32",
        ),
        "shakespeare": _SHAKESPEARE,
        "rotated-published": replace(
            _MNIST, rounds=42, local=replace(_ADAM, lr=2e-4, steps=5), alone_steps=250, threshold=1.0
        ),
        "rotated-short": replace(_MNIST, alone_steps=250, rounds=10),
        "shakespeare-short": replace(
            _SHAKESPEARE,
            data=partial(shakespeare, stride=10),
            rounds=20,
            local=replace(_SHAKESPEARE.local, decay=0.93),
        ),
        "cifar-labels-coded": replace(_CIFAR, data=labelled_cifar_as_coded),
        "quick-rotated-digits": _DIGITS,
        "quick-inverted-digits": replace(_DIGITS, data=lambda seed: digits_inverted(seed, clients=20), k=2),
        "quick-rotated-mnist": _PART,
        "quick-inverted-mnist": replace(_PART, data=partial(part_of_mnist, deal=images.inverted, clients=20), k=2),
    }
)


def setting_named(name: str) -> Setting:
    """A setting by name, which may end in another budget: `cifar-rotated@60x62` has 60 rounds of 62 steps."""
    plain, _, budget = name.partition("@")
    require(plain in SETTINGS, f"There is no setting {plain!r}. {did_you_mean(plain, SETTINGS)}")
    setting = SETTINGS[plain]
    if not budget:
        return setting
    rounds, _, steps = budget.partition("x")
    good = rounds.isdecimal() and steps.isdecimal()
    require(good, f"{budget!r} is not a budget: give rounds and steps, such as 60x31.")
    local = replace(setting.local, steps=int(steps))
    if local.linear_decay is not None:
        local = replace(local, linear_decay=int(rounds))
    else:
        local = replace(local, decay=local.decay ** (setting.rounds / int(rounds)))  # keeps the final step size
    return replace(setting, rounds=int(rounds), local=local, alone_steps=None)


@lru_cache(maxsize=1)
def data_of(name: str, seed: int) -> FederatedDataset:
    """The data of a setting, with clients in the order of runs; those of the last call are cached."""
    return setting_named(name).data(seed).in_order()
