import numpy as np
import pytest
import torch
from torch import nn

import corymb
from corymb.core.federation import Federation
from corymb.core.objective import Draws, Examples
from corymb.keys import root
from corymb.local import Descent
from corymb.models import Network
from corymb.objectives import Classification
from corymb.objectives.class_weight import as_text, class_weights
from corymb.runs.fit import fit
from corymb.settings import InvalidInput
from tests.runs import small
from tests.tiny import ENGINES, classification, federation

FAST = corymb.FedAvg(rounds=3, local=Descent(lr=0.3, steps=5))


def rare(clients: int = 4, rows: int = 60):
    """(x, y, client): one example in ten is of the class `yes`, and the classes overlap."""
    rng = np.random.default_rng(0)
    y = np.arange(clients * rows) % 10 == 0
    x = rng.normal(size=(len(y), 2)) + 1.2 * y[:, None]
    return x, np.where(y, "yes", "no"), np.repeat(np.arange(clients), rows)


@pytest.mark.parametrize("engine", [*ENGINES, "wired"])
def test_balanced_weights_come_from_the_sums_of_all_clients(engine):
    data = classification((5, 7, 2))
    fed: Federation = federation(engine, Classification(Network(lambda: nn.Linear(4, 3)), 3), data)
    counts = torch.bincount(data.train.y, minlength=4)
    weights = class_weights(fed, "balanced", ["a", "b", "c", "never"])
    present = int((counts > 0).sum())
    assert weights == {
        name: 1.0 if not count else pytest.approx(len(data.train.y) / (present * count), rel=1e-5)
        for name, count in zip(weights, counts.tolist(), strict=True)
    }
    assert fed.ledger.rounds == 1


def test_weights_count_in_training_alone():
    plain, weighed = (Classification(Network(lambda: nn.Linear(2, 2)), 2, weight) for weight in (None, (1.0, 4.0)))
    params = plain.init(root(0))
    on, draws = Examples(torch.ones(3, 2), torch.tensor([0, 1, 1]), torch.ones(3)), Draws(root(0))
    assert torch.equal(weighed.losses(params, on), plain.losses(params, on))
    assert torch.equal(weighed.scores(params, on), plain.scores(params, on))
    assert torch.equal(plain.training_losses(params, on, draws), plain.losses(params, on))
    assert torch.equal(weighed.training_losses(params, on, draws), plain.losses(params, on) * torch.tensor([1.0, 4, 4]))
    assert weighed.describe() != plain.describe()


def test_a_rare_class_is_found_and_the_weights_are_in_the_folder(tmp_path):
    def found(run):
        x, y, _ = rare()
        answers = run.predict(x, cluster=0)
        return float(np.mean(answers[y == "yes"] == "yes"))

    plain = fit(FAST, rare(), model="linear")
    balanced = fit(FAST, rare(), model="linear", class_weight="balanced", out=tmp_path / "run")
    assert found(balanced) > found(plain) + 0.3
    loaded = corymb.Run.load(tmp_path / "run")
    weights = loaded.config["record"]["class_weight"]
    assert weights["yes"] == pytest.approx(5, rel=0.2)
    assert weights["no"] == pytest.approx(5 / 9, rel=0.2)
    given = fit(FAST, rare(), model="linear", class_weight=weights)
    assert torch.equal(given.models["1.weight"], balanced.models["1.weight"])
    assert balanced.ledger.rounds == given.ledger.rounds + 1


def test_a_weighed_run_is_resumed_bit_for_bit(tmp_path):
    want = fit(FAST, rare(), class_weight="balanced")
    fit(FAST, rare(), class_weight="balanced", out=tmp_path / "run", max_seconds=0)
    got = fit(FAST, rare(), resume=tmp_path / "run")
    assert all(torch.equal(got.models[name], want.models[name]) for name in want.models)


WRONG = {
    "a word": ("balance", "class_weight is 'balanced' or a positive weight"),
    "no weight": ({"yes": 0}, "a positive weight"),
    "no class": ({"yess": 2}, "an unknown class 'yess'. Did you mean 'yes'"),
}


@pytest.mark.parametrize(("given", "line"), WRONG.values(), ids=WRONG)
def test_an_invalid_weight_is_refused_in_a_line(given, line):
    with pytest.raises(InvalidInput, match=line) as error:
        fit(FAST, rare(), class_weight=given)
    assert "\n" not in str(error.value)


def test_numbers_have_no_classes():
    with pytest.raises(InvalidInput, match="numbers have no classes"):
        fit(FAST, small.prices(), class_weight="balanced")


def test_text_and_mapping_are_the_same_setting():
    assert as_text({"a=b": 2}) == "a=b=2"
    assert corymb.RunSettings(class_weight={"no": 1, "yes": 5}) == corymb.RunSettings(class_weight="no=1,yes=5")
