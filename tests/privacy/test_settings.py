import pytest

from corymb import IFCA, SRFCA, FedAvg, Privacy
from corymb.algorithms import Saving
from corymb.settings import InvalidInput, from_dict, to_dict

GOOD = Privacy(noise=1.0, clip=1.0)
WRONG = {
    "no clip": ({"noise": 1.0}, "give privacy.clip"),
    "noise": ({"noise": -1.0}, "noise must be"),
    "clip": ({"noise": 1.0, "clip": 0.0}, "clip must be positive"),
    "budget": ({"noise": 1.0, "clip": 1.0, "epsilon": 0.0}, "epsilon must be positive"),
    "budget without noise": ({"noise": 0.0, "epsilon": 1.0}, "cannot be kept without noise"),
    "delta": ({"noise": 0.0, "delta": 1.0}, "delta must be"),
    "labels": ({"noise": 0.0, "labels": -1.0}, "labels must be"),
    "least": ({"noise": 0.0, "least": 0}, "least must be"),
}


@pytest.mark.parametrize(("values", "why"), WRONG.values(), ids=WRONG)
def test_meaningless_settings_are_refused(values, why):
    with pytest.raises(InvalidInput, match=why):
        from_dict(Privacy, values)


@pytest.mark.parametrize("n", [9, 100_000])
def test_nobody_hides_among_few_and_delta_is_for_fewer_clients(n):
    with pytest.raises(InvalidInput, match=r"fewer than privacy\.least=10|must be below 1 / 100000"):
        GOOD.check_clients(n)


UNCOVERED = {
    "aggregate": (FedAvg, {"aggregate": "median"}),
    "clip": (FedAvg, {"clip": 1.0}),
    "weights": (FedAvg, {"weights": "examples"}),
    "saving": (IFCA, {"k": 2, "saving": Saving()}),
    "soft": (IFCA, {"k": 2, "soft": 1.0}),
    "restarts": (IFCA, {"k": 2, "restarts": 2}),
    "k": (IFCA, {"k": "auto"}),
    "init": (IFCA, {"k": 2, "init": "one-shot"}),
    "finish": (SRFCA, {"finish": FedAvg()}),
    "refinements": (SRFCA, {"refinements": 0}),
}


@pytest.mark.parametrize(("kind", "values"), UNCOVERED.values(), ids=UNCOVERED)
def test_what_the_accounting_does_not_cover_is_refused(kind, values):
    kind(**values)
    with pytest.raises(InvalidInput):
        kind(**values, privacy=GOOD)


def test_settings_are_read_as_they_are_written():
    algorithm = IFCA(k=2, privacy=Privacy(noise=1.1, clip=0.5, epsilon=8.0, labels=2.0))
    assert from_dict(IFCA, to_dict(algorithm)) == algorithm
