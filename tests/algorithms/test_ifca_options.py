"""IFCA's options: weight sharing, communication saving, k too large; bytes as docs/algorithms/ifca.md counts them."""

import pytest
import torch

from corymb.algorithms import IFCA, FedAvg, Saving
from corymb.algorithms.parts.sharing import mean_models, pack, step_along
from corymb.core.driver import drive
from corymb.core.federation import Federation
from corymb.core.intake import Sums
from corymb.data.built_in.digits import digits
from corymb.engines import Placement, VectorisedEngine
from corymb.evaluate import adjusted_rand_index, evaluate
from corymb.local import Descent
from corymb.models import Network, mlp
from corymb.objectives import Classification
from corymb.settings import InvalidInput

LOCAL = Descent(lr=0.3, steps=10)
N, K, FLOAT = 80, 4, 4
SIZES = {"1.weight": 64 * 32, "1.bias": 32, "3.weight": 32 * 10, "3.bias": 10}
MODEL = sum(SIZES.values())
REPLY = FLOAT * (MODEL + K + K) + 8  # the model, a weight for each sum, every model's loss, the label


@pytest.fixture(scope="module")
def data():
    return digits(seed=1)


def federation(data, dtype=torch.float32):
    return Federation(
        VectorisedEngine(Classification(Network(mlp(64, [32], 10), dtype=dtype), 10), data, Placement(dtype=dtype))
    )


def last(algorithm, fed, seed=1):
    for at in drive(algorithm, fed, seed=seed):
        final = at
    return final


def test_plain_bytes(data):
    fed = federation(data)
    last(IFCA(k=K, rounds=2, local=LOCAL), fed)
    assert fed.ledger.bytes_down == 2 * N * K * MODEL * FLOAT
    assert fed.ledger.bytes_up == 2 * N * REPLY


def test_shared_parameters_travel_once_and_are_the_same_in_all_models(data):
    fed = federation(data)
    final = last(IFCA(k=K, rounds=2, local=LOCAL, shared=("1.*",)), fed)
    common = SIZES["1.weight"] + SIZES["1.bias"]
    assert fed.ledger.bytes_down == 2 * N * (common + K * (MODEL - common)) * FLOAT
    assert fed.ledger.bytes_up == 2 * N * REPLY
    for name in ("1.weight", "1.bias"):
        assert torch.equal(final.models[name], final.models[name][:1].expand_as(final.models[name]))
    assert not torch.equal(final.models["3.weight"][0], final.models["3.weight"][1])


def test_sharing_the_whole_of_one_cluster_changes_nothing(data):
    """With one cluster every parameter is shared by nature: weight sharing must give the very same run."""
    plain = last(IFCA(k=1, rounds=3, local=LOCAL), federation(data, torch.float64))
    tied = last(IFCA(k=1, rounds=3, local=LOCAL, shared=("1.*",)), federation(data, torch.float64))
    for name, value in plain.models.items():
        assert torch.allclose(value, tied.models[name], rtol=0, atol=1e-12)


def test_shared_parameters_are_the_mean_over_all_participants():
    """Two clusters of one and three clients: the shared row weighs all four replies alike."""
    total = {"shared": torch.tensor([[1.0], [9.0]]), "own": torch.tensor([[1.0], [9.0]])}
    sums = Sums(total, torch.tensor([1.0, 3.0]), None, torch.zeros(4, 2))
    models = mean_models(total, sums, ("shared",))
    assert models["shared"].flatten().tolist() == [2.5, 2.5]
    assert models["own"].flatten().tolist() == [1.0, 3.0]


def test_shared_parameters_take_a_step_along_the_gradients_of_all_participants():
    """Two clusters with gradients 1 and 9 in all and a step of 0.1: the shared row moves by 0.1 × 10 in both."""
    total = {"shared": torch.tensor([[1.0], [9.0]]), "own": torch.tensor([[1.0], [9.0]])}
    sums = Sums(total, torch.tensor([1.0, 3.0]), None, torch.zeros(4, 2))
    start = {"shared": torch.tensor([[5.0], [5.0]]), "own": torch.tensor([[2.0], [3.0]])}
    models = step_along(start, sums, 0.1, ("shared",))
    assert models["shared"].flatten().tolist() == pytest.approx([4.0, 4.0])
    assert models["own"].flatten().tolist() == pytest.approx([1.9, 2.1])


def test_gradient_averaging_with_shared_layers_trains(data):
    """One cluster shares everything with itself: with and without sharing it is the same run, and the loss falls."""
    settings = {"k": 1, "rounds": 3, "local": Descent(lr=0.5), "averaging": "gradients", "participants": 0.5}
    plain = last(IFCA(**settings), federation(data, torch.float64))
    tied = last(IFCA(**settings, shared=("1.*",)), federation(data, torch.float64))
    for name, value in plain.models.items():
        assert torch.allclose(value, tied.models[name], rtol=0, atol=1e-12)
    two = list(drive(IFCA(**{**settings, "k": 2, "rounds": 30}, shared=("1.*",)), federation(data), seed=1))
    assert two[-1].notes["train_loss"] < two[0].notes["train_loss"] - 0.1


class Asked:
    """An engine that counts whom it asks."""

    def __init__(self, engine) -> None:
        self.engine, self.calls = engine, []

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def run(self, call, ids):
        self.calls.append(len(ids))
        return self.engine.run(call, ids)


def test_a_start_from_loss_vectors_asks_no_more_than_participants(data):
    asked = Asked(VectorisedEngine(Classification(Network(mlp(64, [32], 10)), 10), data))
    snapshots = list(drive(IFCA(k=4, rounds=2, local=LOCAL, init="loss-vectors", participants=24), Federation(asked)))
    assert asked.calls == [24] * 8
    for at in snapshots[0:6:2]:
        assert int((at.labels >= 0).sum()) == 24  # others' numbers mean other models now


@pytest.mark.parametrize("init", ["one-shot", "loss-vectors"])
def test_a_number_of_clusters_to_be_found_goes_with_no_other_start(init):
    with pytest.raises(InvalidInput, match="k='auto' finds its own start: leave init out, or give k"):
        IFCA(k="auto", init=init)


@pytest.mark.parametrize(
    ("shared", "words"), [(("9.*",), "no parameter is called"), (("*",), "covers every parameter")]
)
def test_sharing_nothing_or_everything_is_refused(data, shared, words):
    with pytest.raises(InvalidInput, match=words):
        last(IFCA(k=2, rounds=1, shared=shared), federation(data))


def test_saving_gives_the_same_run_for_fewer_bytes(data):
    """Seed 1 settles after two rounds: from then on labels do not change, and neither may anything else."""
    rounds, saving = 12, Saving(stable_rounds=3, recheck_every=5)
    plain, saved = federation(data, torch.float64), federation(data, torch.float64)
    want = last(IFCA(k=K, rounds=rounds, local=LOCAL), plain)
    labels, spared = [], 0
    before = 0
    for at in drive(IFCA(k=K, rounds=rounds, local=LOCAL, saving=saving), saved, seed=1):
        labels.append(at.labels)
        sent, before = saved.ledger.bytes_down - before, saved.ledger.bytes_down
        wide = N * K * MODEL * 8
        narrow = N * (MODEL * 8 + 8)  # one model and the label that says whose it is
        assert sent in (wide, narrow)
        spared += wide - sent
    assert torch.equal(at.labels, want.labels)
    for name, value in want.models.items():
        assert torch.allclose(value, at.models[name], rtol=0, atol=1e-9)
    assert spared > 0
    assert plain.ledger.bytes_down - saved.ledger.bytes_down == spared


def test_saving_checks_again_every_few_rounds(data):
    fed, wide, rounds = federation(data), N * K * MODEL * FLOAT, []
    before = 0
    for at in drive(IFCA(k=K, rounds=16, local=LOCAL, saving=Saving(stable_rounds=3, recheck_every=5)), fed, seed=1):
        if fed.ledger.bytes_down - before == wide:
            rounds.append(at.round - 1)
        before = fed.ledger.bytes_down
    settled = next(t for t in range(16) if t not in rounds)
    assert [t for t in rounds if t > settled] == [t for t in range(settled, 16) if t % 5 == 0]


def test_more_clusters_than_groups_do_no_harm(data):
    """k = 6 for four groups: the extra models stay empty or split a group; nobody's accuracy suffers."""
    accuracy = {}
    for k in (4, 6):
        fed = federation(data)
        algorithm = IFCA(k=k, rounds=20, local=LOCAL)
        accuracy[k] = evaluate(fed, algorithm, last(algorithm, fed), truth=data.truth)
    assert accuracy[6]["test_accuracy"] > accuracy[4]["test_accuracy"] - 0.01
    assert accuracy[6]["purity"] > 0.95


def test_soft_assignment_at_a_low_temperature_is_hard(data):
    hard = last(IFCA(k=2, rounds=2, local=LOCAL, repair=False), federation(data, torch.float64))
    soft = last(IFCA(k=2, rounds=2, local=LOCAL, soft=1e-6), federation(data, torch.float64))
    assert torch.equal(hard.labels, soft.labels)
    for name, value in hard.models.items():
        assert torch.allclose(value, soft.models[name], rtol=0, atol=1e-9)


def test_packing_a_model_without_sharing_is_the_model():
    models = {"a": torch.arange(6.0).reshape(2, 3)}
    sent = pack(models, ())
    assert sent.common == {}
    assert torch.equal(sent.models()["a"], models["a"])


def test_global_is_one_model_for_all(data):
    final = last(FedAvg(rounds=1, local=LOCAL), federation(data))
    assert adjusted_rand_index(final.labels, data.truth) == 0
