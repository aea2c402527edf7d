import pytest

from corymb.runs.advising.pairs import Judge
from corymb.runs.advising.verdict import choose, verdict_of
from tests.runs.advising.test_pairs import paired

LOSS = Judge("loss", higher=False, of_objective=False)
NAMES = ("fedavg", "ifca", "sr-fca", "alone")


def chosen(**losses):
    """The choice, were these the losses at each of 20 clients, a little different at each."""
    values = {
        name.replace("_", "-"): [loss * (1 + place / 200) for place in range(20)] for name, loss in losses.items()
    }
    tried = [name for name in NAMES if name in values]
    pairs = {(a, b): paired(values[a], values[b], number=1000.0) for a in tried for b in tried}
    return choose(pairs, tried, LOSS)


@pytest.mark.parametrize(
    ("losses", "wanted"),
    [
        ({"fedavg": 1.0, "ifca": 0.5, "sr_fca": 0.5, "alone": 0.5}, "ifca"),
        ({"fedavg": 1.0, "ifca": 0.95, "sr_fca": 0.94, "alone": 0.93}, "fedavg"),
        ({"fedavg": 1.0, "ifca": 0.5, "sr_fca": 0.3, "alone": 0.29}, "sr-fca"),
        ({"fedavg": 1.0, "ifca": 0.5, "sr_fca": 0.5, "alone": 0.2}, "alone"),
        ({"fedavg": 1.0, "ifca": 1.0, "alone": 0.5}, "alone"),
        ({"fedavg": 1.0, "ifca": 1.5, "alone": 1.5}, "fedavg"),
        ({"ifca": 1.0, "alone": 0.95}, "ifca"),
    ],
)
def test_the_simplest_way_that_nothing_beats_by_enough(losses, wanted):
    assert chosen(**losses) == wanted


def test_a_gain_that_may_be_chance_does_not_count():
    ours = [0.1 if place % 2 else 1.7 for place in range(20)]
    pairs = {("alone", "fedavg"): paired(ours, [1.0] * 20)}
    assert pairs["alone", "fedavg"].gain(LOSS).size > 0.09
    assert choose(pairs, ["fedavg", "alone"], LOSS) == "fedavg"


def test_names_of_verdicts():
    assert verdict_of("alone", 0) == "alone"
    assert verdict_of("sr-fca", 3) == "clusters"
    assert verdict_of("ifca", 1) == verdict_of("fedavg", 1) == "one-model"
