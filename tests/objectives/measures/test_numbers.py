import pytest
import torch
from sklearn import metrics as known
from torch.func import vmap

from corymb.core.objective import Examples
from corymb.objectives.measures.numbers import ENOUGH, NAMES, OfNumbers


def predicted(m, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = 1e6 + 100 * torch.randn(m, generator=generator).double()
    return y + 50 * torch.randn(m, generator=generator).double(), y


def on(y, weight=None):
    return Examples(torch.zeros(len(y), 1), y, torch.ones(len(y)).double() if weight is None else weight)


def by_hand(said, y):
    squared = known.mean_squared_error(y, said)
    return [squared, known.r2_score(y, said), known.mean_absolute_error(y, said), squared**0.5]


def test_a_clients_metrics_are_scikit_learns():
    said, y = predicted(40)
    found = OfNumbers().values(said, on(y))
    assert found.value.tolist() == pytest.approx(by_hand(said, y), rel=1e-9)
    assert found.defined.all()


@pytest.mark.parametrize("y", [[0.1] * 7, [1e6], [0.0, 0.0]])
def test_targets_that_are_all_the_same_have_no_r2(y):
    y = torch.tensor(y).double()
    found = OfNumbers().values(y + 1, on(y))
    assert dict(zip(NAMES, found.defined.tolist(), strict=True)) == {**dict.fromkeys(NAMES, True), "r2": False}
    assert not OfNumbers().values(y[:0], on(y[:0])).defined.any()


def test_a_client_with_few_test_examples_has_no_r2():
    said, y = predicted(9)
    weight = torch.ones(9).double()
    for few in (2, ENOUGH - 1):  # rows of weight 0 do not count
        found = OfNumbers().values(said, on(y, weight.where(torch.arange(9) < few, 0)))
        assert dict(zip(NAMES, found.defined.tolist(), strict=True)) == {**dict.fromkeys(NAMES, True), "r2": False}
        assert found.value[NAMES.index("r2")] == 0
    assert OfNumbers().values(said[:ENOUGH], on(y[:ENOUGH])).defined.all()


def test_means_of_r2_over_clients_settle_with_enough_test_examples():
    """Of clients whose true R² is 0.5."""
    generator = torch.Generator().manual_seed(0)

    def r2(m, clients=400):
        said = torch.randn(clients, m, generator=generator).double()
        y = said + torch.randn(clients, m, generator=generator).double()
        weight = torch.ones(m).double()
        return vmap(lambda p, t: OfNumbers().values(p, on(t, weight)))(said, y)

    place = NAMES.index("r2")
    few, enough = r2(2), r2(20)
    assert not few.defined[:, place].any()
    assert enough.defined[:, place].all()
    assert float(enough.value[:, place].mean()) == pytest.approx(0.45, abs=0.05)


def test_rows_of_weight_0_count_for_nothing():
    said, y = (torch.stack(rows) for rows in zip(predicted(9), predicted(9, seed=1), strict=True))
    weight = torch.ones(2, 9).double()
    weight[0, 6:] = 0
    found = vmap(lambda p, t, w: OfNumbers().values(p, on(t, w)))(said, y, weight)
    assert found.value[0].tolist() == pytest.approx(by_hand(said[0, :6], y[0, :6]), rel=1e-9)
    assert found.value[1].tolist() == pytest.approx(by_hand(said[1], y[1]), rel=1e-9)


def test_metrics_over_all_examples_are_made_of_sums_and_means():
    measures, rows = OfNumbers(), [predicted(m, seed=m) for m in (1, 8, 90)]
    said, y = (torch.cat(part) for part in zip(*rows, strict=True))
    trivial = measures.trivial(measures.labels(on(y[:20])))
    sums = [measures.sums(p, trivial, on(t)) for p, t in rows]
    total = {name: sum(one[name] for one in sums) for name in sums[0]}
    squared, r2, _, rmse = by_hand(said, y)
    constant, constant_r2, *_ = by_hand(trivial.expand(len(y)), y)
    means, trivial_means = {"squared_error": squared}, {"squared_error": constant}
    assert measures.over_examples(total, means, trivial_means) == pytest.approx({"r2": r2, "rmse": rmse}, rel=1e-9)
    of_trivial = measures.over_examples(measures.if_constant(total, trivial), trivial_means, trivial_means)
    assert of_trivial["r2"] == pytest.approx(constant_r2, abs=1e-9)
    same = measures.sums(said, trivial, on(torch.full_like(y, 3.0)))
    assert "r2" not in measures.over_examples(same, means, {"squared_error": float((3.0 - trivial).square())})
