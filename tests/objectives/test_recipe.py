"""Objectives are sent as recipes: equal on both sides, and a reader runs nothing that it was not allowed to."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from corymb.models import Network, mlp
from corymb.models.adversarial import Convolutional, Dense
from corymb.models.flows import Affine, Pixels, Planar, Projected, RealNVP
from corymb.objectives import Classification, Density, LinearRegression
from corymb.objectives.adversarial import ClusterGame
from corymb.objectives.contrastive import Contrastive
from corymb.objectives.features import Polynomial
from corymb.objectives.null import NullObjective
from corymb.objectives.recipe import made_from, recipe_of
from corymb.runs.standardise.objective import Standard, Standardised
from corymb.settings import InvalidInput
from corymb.testing.learners import LEARNERS
from corymb.testing.remote import ALLOW
from corymb.wire import WireError, pack, unpack

OURS = ("corymb",)
STANDARD = Standard(torch.zeros(3), torch.ones(3) * 2, torch.tensor(1.0), torch.tensor(4.0))
OBJECTIVES = {
    **{name: learner.objective() for name, learner in LEARNERS.items()},
    "standardised": Standardised(LinearRegression(3, features=Polynomial(degree=2)), STANDARD),
    "flows": Density(Projected(Planar(2, layers=3), 5)),
    "pixels": Density(Pixels(RealNVP(16, side=4, mask="cyclic", layers=2, hidden=8))),
    "contrastive": Contrastive(Network(mlp(4, [3], 2)), 0.5),
    "game": ClusterGame(Dense(4, hidden=8, noise=2, bounded=True), critic_steps=2, penalty=3.0),
    "game of pictures": ClusterGame(Convolutional(1, 8, width=2, hidden=4, noise=2), cluster_weight=2.0),
    "nothing": NullObjective(),
}


def travelled(objective, allow=(*OURS, *ALLOW)):
    return made_from(unpack(pack(recipe_of(objective)), allow), allow)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_rebuilt_objective_equals_the_one_sent(name):
    there = travelled(OBJECTIVES[name])
    assert there.describe() == OBJECTIVES[name].describe()
    assert type(there) is type(OBJECTIVES[name])


def test_the_state_of_standardising_travels():
    there = travelled(OBJECTIVES["standardised"])
    assert [value.tolist() for value in there.standard] == [value.tolist() for value in STANDARD]


def frozen_first_layer():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    module[:2].requires_grad_(False)
    return module


def test_frozen_parameters_travel_and_win_over_those_of_the_node(monkeypatch):
    here = Classification(Network(frozen_first_layer), 3)
    here.network.module[0].weight.data.fill_(7.0)  # a backbone that was trained elsewhere
    here.network.module[1].running_mean.fill_(2.0)
    there = travelled(here, (*OURS, "tests"))
    assert there.network.module[0].weight.unique().tolist() == [7.0]
    assert there.network.module[1].running_mean.unique().tolist() == [2.0]
    assert there.to("cpu", torch.float64).network.module[0].weight.unique().tolist() == [7.0]
    with pytest.raises(InvalidInput, match="both sides must make the same model"):
        Network(frozen_first_layer, frozen={"0.weight": torch.zeros(1)})


def test_a_function_of_a_package_that_is_not_allowed_is_refused():
    sent = unpack(pack(recipe_of(LEARNERS["cnn"].objective())), OURS)
    with pytest.raises(WireError, match="not in a package that may be named here"):
        made_from(sent, OURS)


@pytest.mark.parametrize(
    "place", ["corymb.cli.app:main", "corymb.objectives.recipe:made_from", "os:abort", "corymb:fit"]
)
def test_no_message_calls_a_function_of_this_library_or_of_another(place):
    for tree in ({"function": place}, {"made": place, "of": {}}):
        with pytest.raises(WireError):
            made_from({"describes": "", "recipe": tree}, OURS)


def test_an_objective_that_is_another_one_there_is_refused():
    sent = recipe_of(LinearRegression(3))
    with pytest.raises(WireError, match=r"differs here: .*4 features.*3 features"):
        made_from({**sent, "recipe": recipe_of(LinearRegression(4))["recipe"]}, OURS)


@dataclass(frozen=True)
class Own:
    inner: object

    def describe(self):
        return "own"


class Secret:
    def describe(self):
        return "secret"


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        (Secret(), "a Secret, which has no recipe"),
        (Classification(Network(nn.Linear(2, 2)), 2), "the module Linear itself: give the model as a function"),
        (LinearRegression(2, features=lambda x: x), "is not at the top level of a module"),
    ],
)
def test_objectives_that_cannot_be_sent_are_refused_in_one_line(objective, says):
    with pytest.raises(InvalidInput, match=says):
        recipe_of(objective)


def test_a_frozen_dataclass_of_the_users_travels_where_it_is_allowed():
    own = Own(Density(Affine(2)))
    assert travelled(own, (*OURS, "tests")).inner.describe() == own.inner.describe()
    with pytest.raises(WireError, match="not in a package"):
        made_from(unpack(pack(recipe_of(own))), OURS)
    assert replace(own, inner=None).inner is None


@pytest.mark.parametrize(
    "tree", [None, {}, {"describes": "x", "recipe": {"made": 3, "of": {}}}, {"recipe": 1, "describes": 2}]
)
def test_a_tree_from_anywhere_gives_an_objective_or_an_error(tree):
    with pytest.raises(WireError):
        made_from(tree, OURS)
