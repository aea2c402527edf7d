"""Mixed regression from any start: moment descent compared with IFCA from random starts, by coefficient error."""

import sys

import matplotlib.pyplot as plt
import torch

import corymb


def error(run, data):
    """The largest distance of a true parameter vector from the nearest one found."""
    true, found = data.true_parameters["weight"].double(), run.models["weight"].double()
    return float(torch.cdist(true, found).amin(1).max())


errors = {"IFCA, random start": [], "moment descent": []}
for seed in range(3):
    data = corymb.datasets.mixed_regression(seed, n=60, m=40, d=10, k=3, sigma=0.2, test=5)
    plain = corymb.IFCA(k=3, rounds=40, repair=False, local=corymb.Descent(lr=0.1, steps=5))
    moments = corymb.MomentDescent(k=3, then=corymb.FedX(refinement="whitened", averaging="members", rounds=10))
    for name, algorithm in zip(errors, (plain, moments), strict=True):
        run = corymb.fit(algorithm, data, seed=seed, evaluate_every=0)
        errors[name].append(error(run, data))

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for place, values in enumerate(errors.values()):
    spread = [place + 0.02 * (number - 1) for number in range(3)]
    axes.plot(spread, values, "o", color=["#e07b29", "#2f6db5"][place], alpha=0.8)
axes.set_xticks([0, 1], errors)
axes.set(ylabel="worst error of the coefficients", yscale="log", xlim=(-0.5, 1.5), ylim=(0.01, 1))
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "any_start.png", dpi=100)
