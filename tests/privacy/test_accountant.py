"""ε compared with published figures, and with integrals that are computed here."""

import math
import sys

import numpy as np
import pytest
from scipy.stats import norm

from corymb import Privacy
from corymb.privacy.accountant import WHOLE, Release, affords, release_of, spent
from corymb.settings import InvalidInput

pytest.importorskip("dp_accounting")


def rdp(z, rate, order):
    """The Rényi divergence of a Gaussian mechanism with Poisson sampling, as an integral (Mironov et al. 2019)."""

    x = np.arange(-12 * z, order + 12 * z, 0.01 * z)
    ratio = np.log1p(rate * np.expm1((2 * x - 1) / (2 * z**2)))  # of the densities with and without one client
    return math.log(0.01 * z * np.exp(order * ratio + norm.logpdf(x, scale=z)).sum()) / (order - 1)


def published(z, rate, rounds, delta):
    """ε as it was converted when these were published: min over orders of T·RDP + ln(1/δ) / (α − 1)."""
    return min(rounds * rdp(z, rate, a) + math.log(1 / delta) / (a - 1) for a in range(2, 41))


def converted(z, rate, rounds, delta):
    """ε by the conversion of Canonne, Kamath and Steinke (2020), Proposition 12, as accountants do today."""
    return min(rounds * rdp(z, rate, a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in WHOLE if a <= 40)


PUBLISHED = {
    "Abadi et al. 2016": ((4.0, 0.01, 10_000), 1.26),
    "TensorFlow Privacy, MNIST, first line": ((1.3, 256 / 60_000, 15 * 234), 1.19),
    "TensorFlow Privacy, MNIST, second line": ((1.1, 256 / 60_000, 60 * 234), 3.01),
}


@pytest.mark.parametrize(("setting", "figure"), PUBLISHED.values(), ids=PUBLISHED)
def test_epsilon_is_the_published_figure_but_for_the_better_conversion(setting, figure):
    z, rate, rounds = setting
    assert published(z, rate, rounds, 1e-5) == pytest.approx(figure, abs=0.006)
    ours = spent(Release(z, rate), rounds, 1e-5)
    assert ours == pytest.approx(converted(z, rate, rounds, 1e-5), rel=1e-3)
    assert 0.8 * figure < ours < figure


@pytest.mark.parametrize(("z", "rounds"), [(1.1, 1), (10.0, 100), (5.0, 60)])
def test_without_sampling_it_is_just_above_the_exact_epsilon(z, rounds):
    """Of T Gaussian mechanisms together: Balle and Wang (2018), Theorem 8."""
    mu = math.sqrt(rounds) / z

    def delta(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)

    found = spent(Release(z, 1.0), rounds, 1e-5)
    assert delta(found) <= 1e-5 < delta(0.85 * found)


def test_labels_cost_what_randomised_response_does():
    plain, blurred = (spent(Release(3.0, 1.0, labels, 4), 1, 1e-5) for labels in (None, 0.5))
    assert plain < blurred <= plain + 0.5
    release = Release(3.0, 1.0, 0.5, 4)
    stays = 1 - release.blur + release.blur / 4
    assert stays / (release.blur / 4) == pytest.approx(math.exp(0.5))


def test_labels_show_who_was_drawn_so_that_drawing_gains_nothing():
    assert spent(Release(2.0, 0.1, 0.1, 2), 5, 1e-5) >= spent(Release(2.0, 1.0), 5, 1e-5)
    assert release_of(Privacy(noise=1.0, clip=1.0, labels=1.0), rate=0.1, k=1).labels is None


def test_no_rounds_cost_nothing_and_no_noise_costs_everything():
    assert spent(Release(1.0, 0.5), 0, 1e-5) == 0
    assert spent(Release(0.0, 0.5), 1, 1e-5) == math.inf


def test_a_budget_lasts_for_so_many_rounds():
    privacy = Privacy(noise=1.0, clip=1.0, epsilon=8.0)
    lasts = [rounds for rounds in range(1, 10) if affords(privacy, Release(1.0, 1.0), rounds)]
    assert lasts == list(range(1, len(lasts) + 1))
    assert 1 <= len(lasts) < 9
    assert affords(Privacy(noise=1.0, clip=1.0), Release(1.0, 1.0), 10**6)


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InvalidInput, match=r"corymb\[privacy\]"):
        spent(Release(1.234, 1.0), 1, 1e-5)
