"""Settings by name, with other budgets, and the one budget that all methods share."""

import pytest

from corymb.recipes.sr_fca.settings import SETTINGS, data_of, setting_named
from corymb.settings import InvalidInput


def test_a_name_may_end_in_another_budget():
    usual, longer = setting_named("cifar-rotated"), setting_named("cifar-rotated@80x62")
    assert (longer.rounds, longer.local.steps) == (80, 62)
    assert longer.local.at(79).lr == pytest.approx(usual.local.lr / 80)
    assert longer.alone.steps == 80 * 62
    usual, longer = setting_named("femnist"), setting_named("femnist@200x5")
    assert longer.local.decay**200 == pytest.approx(usual.local.decay**usual.rounds)
    assert setting_named("rotated").participants == 40


@pytest.mark.parametrize(
    ("name", "expected"), [("rotatedd", "rotated"), ("rotated@60", "60x31"), ("rotated@ax2", "60x31")]
)
def test_an_unknown_setting_is_refused(name, expected):
    with pytest.raises(InvalidInput, match=expected):
        setting_named(name)


def test_clients_alone_take_as_many_steps_as_in_all_rounds():
    for name, setting in SETTINGS.items():
        if setting.alone_steps is None:
            assert setting.alone.steps == setting.rounds * setting.local.steps, name
        assert setting.alone.at(9).lr == setting.alone.lr
        assert setting.local.linear_decay in (None, setting.rounds), name


def test_data_are_in_the_order_of_runs_and_by_seed():
    data = data_of("quick-rotated-digits", 0)
    assert data.in_order() is data
    assert data is data_of("quick-rotated-digits", 0)
    assert data.fingerprint() != data_of("quick-rotated-digits", 1).fingerprint()
