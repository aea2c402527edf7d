import math

import pytest
import torch
from sklearn import metrics as known
from torch.func import vmap

from corymb.core.objective import Examples
from corymb.objectives.measures.classes import CONFIDENCES, MOST_CLASSES_RANKED, OfClasses

EXACT = 1e-9


def predicted(classes, m=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (m,), generator=generator)
    logits = torch.randn(m, classes, generator=generator).double() + torch.nn.functional.one_hot(y, classes)
    logits[::7] = logits[0].clone()  # ties
    return logits, y


def on(y, weight=None):
    return Examples(torch.zeros(len(y), 1), y, torch.ones(len(y)) if weight is None else weight)


def values(classes, logits, examples):
    measures = OfClasses(classes)
    found = measures.values(logits, examples)
    names = [metric.name for metric in measures.metrics]
    return dict(zip(names, found.value.tolist(), strict=True)), dict(zip(names, found.defined.tolist(), strict=True))


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_clients_metrics_are_scikit_learns(classes):
    logits, y = predicted(classes)
    chances, answer = logits.softmax(-1), logits.argmax(-1)
    found, defined = values(classes, logits, on(y))
    ranked = chances[:, 1] if classes == 2 else chances
    assert all(defined.values())
    assert found == pytest.approx(
        {
            "accuracy": known.accuracy_score(y, answer),
            "balanced_accuracy": known.balanced_accuracy_score(y, answer),
            "macro_f1": known.f1_score(y, answer, average="macro"),
            "auc": known.roc_auc_score(y, ranked, multi_class="ovr"),
            "log_loss": known.log_loss(y, chances),
        },
        abs=EXACT,
    )


def test_only_classes_that_occur_count():
    logits, y = predicted(5)
    some = y < 3
    logits, y = logits[some], y[some]
    found, _ = values(5, logits, on(y))
    areas = [known.roc_auc_score(y == c, logits.softmax(-1)[:, c]) for c in range(3)]
    recalls = [float((logits.argmax(-1) == c)[y == c].double().mean()) for c in range(3)]
    assert found["auc"] == pytest.approx(sum(areas) / 3, abs=EXACT)
    assert found["balanced_accuracy"] == pytest.approx(sum(recalls) / 3, abs=EXACT)
    assert found["macro_f1"] == pytest.approx(known.f1_score(y, logits.argmax(-1), average="macro"), abs=EXACT)


def test_a_client_with_one_class_has_no_auc():
    logits, y = predicted(2)
    _, defined = values(2, logits, on(torch.ones_like(y)))
    assert defined == {"accuracy": True, "balanced_accuracy": True, "macro_f1": True, "auc": False, "log_loss": True}
    _, defined = values(2, logits[:0], on(y[:0]))
    assert not any(defined.values())


@pytest.mark.parametrize("classes", [2, 3])
def test_rows_of_weight_0_count_for_nothing_and_clients_can_be_stacked(classes):
    measures = OfClasses(classes)
    rows = [predicted(classes, m, seed=m) for m in (20, 31)]
    trivial = torch.arange(classes).double()
    stacked = [
        torch.stack([torch.cat([t, t[:1].expand(31 - len(t), *t.shape[1:])]) for t in part])
        for part in zip(*rows, strict=True)
    ]
    weight = torch.stack([(torch.arange(31) < m).double() for m in (20, 31)])
    both = vmap(lambda p, y, w: (measures.values(p, on(y, w)), measures.sums(p, trivial, on(y, w))))(*stacked, weight)
    for place, (logits, y) in enumerate(rows):
        alone = measures.values(logits, on(y))
        assert torch.equal(both[0].defined[place], alone.defined)
        assert both[0].value[place].tolist() == pytest.approx(alone.value.tolist(), abs=EXACT)
        for name, total in measures.sums(logits, trivial, on(y)).items():
            assert torch.allclose(both[1][name][place], total)


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_over_all_examples_are_made_of_sums(classes):
    measures = OfClasses(classes)
    rows = [predicted(classes, m, seed=m) for m in (5, 30, 200)]
    trivial = torch.zeros(classes)
    sums = [measures.sums(logits, trivial, on(y)) for logits, y in rows]
    total = {name: sum(one[name] for one in sums) for name in sums[0]}
    logits, y = (torch.cat(part) for part in zip(*rows, strict=True))
    found = measures.over_examples(total, {}, {})
    whole, _ = values(classes, logits, on(y))
    assert found["balanced_accuracy"] == pytest.approx(whole["balanced_accuracy"], abs=EXACT)
    assert found["macro_f1"] == pytest.approx(whole["macro_f1"], abs=EXACT)
    assert abs(found["auc"] - whole["auc"]) <= found["auc_error"] + EXACT < 0.02
    chances = logits.softmax(-1)
    place = (chances.amax(-1) * CONFIDENCES).ceil()
    error = sum(
        float((chances.amax(-1)[place == b] - (logits.argmax(-1) == y)[place == b].double()).sum().abs())
        for b in range(1, CONFIDENCES + 1)
    )
    assert found["calibration_error"] == pytest.approx(error / len(y), abs=EXACT)


def test_the_trivial_prediction_is_the_share_of_each_class():
    measures, (_, y) = OfClasses(3), predicted(3)
    y = torch.where(y == 2, 1, y)  # class 2 never occurs
    trivial = measures.trivial(measures.labels(on(y)))
    counts = y.bincount(minlength=3)
    assert trivial.softmax(-1).tolist() == pytest.approx((counts / len(y)).tolist())
    logits = measures.repeated(trivial, len(y))
    found, _ = values(3, logits, on(y))
    most = int(counts.argmax())
    answer = torch.full_like(y, most)
    assert found["accuracy"] == pytest.approx(float(counts.max() / len(y)))
    assert found["auc"] == found["balanced_accuracy"] == 0.5
    assert found["macro_f1"] == pytest.approx(known.f1_score(y, answer, average="macro"))
    sums = measures.sums(logits + torch.randn(3), trivial, on(y))
    over = measures.over_examples(measures.if_constant(sums, trivial), {}, {})
    assert over == pytest.approx(
        {**{name: found[name] for name in ("balanced_accuracy", "macro_f1", "auc")}, "auc_error": 0.5}
    )
    assert math.isfinite(values(3, logits, on(torch.full_like(y, 2)))[0]["log_loss"])


def test_very_many_classes_have_no_auc():
    measures = OfClasses(MOST_CLASSES_RANKED + 1)
    assert "auc" not in [metric.name for metric in measures.metrics]
    logits, y = torch.zeros(4, measures.classes), torch.arange(4)
    assert "histogram" not in measures.sums(logits, logits[0], on(y))
    assert len(measures.values(logits, on(y)).value) == len(measures.metrics)
