"""What clusters mean on a table: the coefficients of each cluster's linear model, in the table's own units."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pandas

import corymb

rng = np.random.default_rng(0)
shops = np.repeat([f"shop-{i}" for i in range(12)], 80)
effect = {0: (0.8, -2.0, 0.0), 1: (-0.5, -2.0, 15.0)}  # of price, distance and weekends, in two kinds of shop
price, distance, weekend = rng.uniform(10, 50, 960), rng.uniform(0, 10, 960), rng.integers(0, 2, 960)
kind = np.array([int(shop.split("-")[1]) % 2 for shop in shops])
slopes = np.array([effect[one] for one in kind])
sold = 60 + (slopes * np.stack([price, distance, weekend], 1)).sum(1) + rng.normal(0, 3, 960)
table = pandas.DataFrame({"client": shops, "price": price, "distance": distance, "weekend": weekend, "label": sold})

data = corymb.datasets.FederatedDataset.from_dataframe(table)
run = corymb.fit(corymb.configure("moment-descent", data, k=2), data, "linear-regression", evaluate_every=0)

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for cluster, row in enumerate(run.coefficients[:, :3].numpy()):
    axes.bar(
        np.arange(3) + 0.4 * cluster - 0.2, row, 0.38, color=["#2f6db5", "#e07b29"][cluster], label=f"cluster {cluster}"
    )
axes.axhline(0, color="#22272e", linewidth=0.8)
axes.set_xticks(range(3), ["price", "distance", "weekend"])
axes.set(ylabel="sold, for one unit more")
axes.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "what_clusters_mean.png", dpi=100)
