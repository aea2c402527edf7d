"""Who moves when: the cluster of every client in every round, from the history of a run."""

import sys

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap

import corymb

data = corymb.datasets.digits()
run = corymb.fit(corymb.configure("ifca", data, k=4, rounds=12), data, evaluate_every=0)

labels = np.full((len(run.names), len(run.history)), -1)  # clients, rounds
for number, row in enumerate(run.history):
    for place, label in row["moves"].items():  # whoever changed its cluster, and the new one
        labels[int(place), number:] = label
order = np.argsort(data.truth.numpy(), kind="stable")  # neighbours share a rotation

figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
colours = ListedColormap(["#2f6db5", "#e07b29", "#3a9b62", "#8e5bb0"])
axes.imshow(labels[order], aspect="auto", cmap=colours, interpolation="nearest", extent=(0.5, 12.5, 80, 0))
axes.set(xlabel="round", ylabel="client, sorted by true group", xticks=range(1, 13))
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "who_moves_when.png", dpi=100)
