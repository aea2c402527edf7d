"""Clusters of examples without labels: UIFCA with Gaussians, where every client has points of several clusters."""

import sys

import matplotlib.pyplot as plt
import torch

import corymb
from corymb.data.built_in.points import gaussians

data = gaussians(m=200, test=100)
run = corymb.fit(corymb.UIFCA(k=4, density="gaussian", rounds=5, init="kfed"), data, evaluate_every=0)
points = data.test.x
labels = torch.as_tensor(run.assign_points(points.numpy()))  # of each point by itself
flat = points.reshape(len(points), -1)
_, _, directions = torch.pca_lowrank(flat, q=2)
plane = (flat - flat.mean(0)) @ directions

figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
for cluster, colour in enumerate(["#2f6db5", "#e07b29", "#3a9b62", "#8e5bb0"]):
    mine = labels == cluster
    axes.scatter(
        plane[mine, 0], plane[mine, 1], s=8, color=colour, label=f"cluster {cluster}: {int(mine.sum())} points"
    )
axes.set(xlabel="first principal component", ylabel="second", title=f"purity {run.metrics['purity']:.3f}")
axes.legend(fontsize=8)
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "clusters_of_examples.png", dpi=100)
