import math

import pytest
import torch

from corymb import Privacy
from corymb.keys import fold, root
from corymb.privacy.sums import Released, multipliers, released

TOTAL = {"weight": torch.tensor([[3.0, 0.0], [0.0, 12.0]]), "bias": torch.tensor([1.0, 2.0])}
COUNT = torch.tensor([6.0, 14.0])
PRIVACY = Privacy(noise=2.0, clip=0.5)


def test_sum_and_count_together_cost_what_the_noise_says():
    of_sum, of_count = multipliers(1.7, 81)
    assert of_sum**-2 + of_count**-2 == pytest.approx(1.7**-2)
    assert of_count == pytest.approx(3 * of_sum)


def test_noise_is_as_wide_as_is_said_and_another_one_with_another_key():
    zeros = {"weight": torch.zeros(2, 5000)}
    one, other = (released(zeros, COUNT, PRIVACY, blur=0, known=COUNT, key=root(seed)) for seed in (0, 1))
    assert float(one.total["weight"].std()) == pytest.approx(2.0 * 0.5, rel=0.05)
    assert torch.equal(one.clients, COUNT)
    assert not torch.equal(one.total["weight"], other.total["weight"])
    again = released(zeros, COUNT, PRIVACY, blur=0, known=COUNT, key=root(0))
    assert torch.equal(one.total["weight"], again.total["weight"])


def test_without_noise_nothing_changes():
    found = released(TOTAL, COUNT, Privacy(noise=0.0), blur=0, known=None, key=root(0))
    assert torch.equal(found.total["weight"], TOTAL["weight"])
    assert torch.equal(found.clients, COUNT)


def test_means_of_small_clusters_are_left_alone():
    found = Released(TOTAL, COUNT).mean(least=10)
    assert torch.allclose(found["weight"], torch.tensor([[0.0, 0.0], [0.0, 12 / 14]]))
    assert torch.allclose(found["bias"], torch.tensor([0.0, 2 / 14]))
    assert torch.equal(Released(TOTAL, torch.tensor([-3.0, 14.0])).mean(least=1)["bias"][:1], torch.zeros(1))


def test_the_bias_of_blurred_labels_is_taken_out():
    """Expected sums under randomised response, computed by hand, give the true ones back."""
    blur, k = 0.4, 2
    said = {name: (1 - blur) * leaf + blur / k * leaf.sum(0, keepdim=True) for name, leaf in TOTAL.items()}
    counted = (1 - blur) * COUNT + blur / k * COUNT.sum()
    found = released(said, counted, Privacy(noise=0.0, labels=1.0), blur=blur, known=None, key=root(0))
    assert torch.allclose(found.total["weight"], TOTAL["weight"], atol=1e-5)
    assert torch.allclose(found.clients, COUNT, atol=1e-5)


def test_the_debiased_count_is_right_on_average():
    blur, k, n = 0.5, 4, 40
    truth = torch.arange(n) % k
    found = []
    for seed in range(200):
        draws = torch.rand(n, generator=torch.Generator().manual_seed(seed))
        other = torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed + 1000))
        said = torch.where(draws < blur, other, torch.where(truth == 3, 0, truth))  # nobody is in cluster 3
        count = torch.bincount(said, minlength=k).float()
        found.append(released({"a": torch.zeros(k, 1)}, count, Privacy(noise=0.0), blur=blur, known=None, key=root(0)))
    mean = torch.stack([one.clients for one in found]).mean(0)
    assert torch.allclose(mean, torch.tensor([20.0, 10.0, 10.0, 0.0]), atol=4 * math.sqrt(n) / math.sqrt(200))


def test_keys_of_parameters_differ():
    same = {"a": torch.zeros(1, 8), "b": torch.zeros(1, 8)}
    found = released(same, torch.ones(1), PRIVACY, blur=0, known=torch.ones(1), key=fold(root(0), "x"))
    assert not torch.equal(found.total["a"], found.total["b"])
