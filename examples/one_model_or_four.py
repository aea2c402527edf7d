"""One model or four? IFCA compared with FedAvg, training alone and the oracle, on digits rotated by hidden angles."""

import sys

import matplotlib.pyplot as plt

import corymb

data = corymb.datasets.digits(clients=40)
names = {"fedavg": "one model", "alone": "alone", "ifca": "IFCA, k = 4", "oracle": "true groups"}
scores = {}
for name in names:
    given = {"k": 4} if name == "ifca" else {}
    run = corymb.fit(corymb.configure(name, data, **given), data, until="converged", evaluate_every=0)
    scores[name] = run.metrics["test_accuracy"], run.metrics["worst_decile_accuracy"]

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for place, (mean, worst) in enumerate(scores.values()):
    axes.bar(place - 0.2, 100 * mean, 0.38, color="#2f6db5", label="mean of clients" if place == 0 else None)
    axes.bar(place + 0.2, 100 * worst, 0.38, color="#e07b29", label="worst tenth" if place == 0 else None)
axes.set_xticks(range(len(names)), names.values())
axes.set(ylabel="test accuracy, %", ylim=(0, 125), yticks=range(0, 101, 20))
axes.legend(loc="upper left", ncols=2)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "one_model_or_four.png", dpi=100)
