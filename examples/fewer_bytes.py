"""Fewer bytes: IFCA sends all models in every round; with `saving`, settled clients are sent only their own."""

import sys

import matplotlib.pyplot as plt
import numpy as np

import corymb

data = corymb.datasets.digits()
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
ways = {"all four models": None, "settled clients: their own": corymb.Saving(stable_rounds=2, recheck_every=10)}
for (name, saving), colour in zip(ways.items(), ("#e07b29", "#2f6db5"), strict=True):
    algorithm = corymb.IFCA(k=4, rounds=25, local=corymb.Descent(lr=0.3, steps=10), saving=saving)
    run = corymb.fit(algorithm, data, evaluate_every=0)
    sent = np.array([row["bytes_down"] for row in run.history])
    label = f"{name}: {100 * run.metrics['test_accuracy']:.1f} %"
    axes.plot(range(1, len(sent) + 1), sent / 1e6, color=colour, label=label)
axes.set(xlabel="round", ylabel="sent to clients in the round, MB", ylim=(0, 4.6))
axes.legend(title="test accuracy", loc="upper right")
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "fewer_bytes.png", dpi=100)
