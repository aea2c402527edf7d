"""Clusters against true ones: by hand, and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score

from corymb.clustering.agreement import agreement, matched_accuracy, normalised_information, purity

TABLE = torch.tensor([[4.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 2.0]])


def test_by_hand():
    assert purity(TABLE) == pytest.approx(0.9)
    accuracy, of_each = matched_accuracy(TABLE)
    assert accuracy == pytest.approx(0.6)  # 4 + 0 + 2 or 3 + 1 + 2 of 10
    assert float(of_each[2]) == 1


def test_information_is_scikit_learns():
    rng = np.random.default_rng(0)
    labels, truth = rng.integers(4, size=200), rng.integers(3, size=200)
    labels = np.where(rng.random(200) < 0.5, truth, labels)
    table = torch.zeros(4, 3)
    for one, other in zip(labels, truth, strict=True):
        table[one, other] += 1
    assert normalised_information(table) == pytest.approx(normalized_mutual_info_score(truth, labels))
    assert normalised_information(torch.eye(3)) == pytest.approx(1)
    assert normalised_information(torch.ones(1, 1)) == 1


def test_every_measure_has_a_name_and_absent_classes_none():
    found = agreement(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), ("a", "b"), "test_")
    assert set(found) == {"test_purity", "test_nmi", "test_matched_accuracy", "test_accuracy_of_a"}
