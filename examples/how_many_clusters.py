"""How many clusters? IFCA with k = "auto" finds the number with held-out examples; the evidence is in the run."""

import sys

import matplotlib.pyplot as plt

import corymb

data = corymb.datasets.mixed_regression(k=3, n=60, m=60, d=10, sigma=0.3)
run = corymb.fit(corymb.configure("ifca", data, k="auto", rounds=15), data, evaluate_every=0)
found = run.evidence
print(f"{run.clusters} clusters, {found['gain']:.2f} of held-out loss saved")

clusters = [row["clusters"] for row in run.history]
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3), layout="constrained")
left.step(range(1, len(clusters) + 1), clusters, where="mid", color="#2f6db5")
left.axhline(3, color="#b9bec6", linestyle="--", zorder=0, label="true number")
left.legend()
left.set(xlabel="round", ylabel="clusters", yticks=range(0, max(clusters) + 1, 2))
gain, error = found["gain_by_cluster"], found["gain_error_by_cluster"]
right.bar(range(len(gain)), gain, yerr=error, color="#3a9b62", capsize=4)
right.set(xlabel="cluster", ylabel="held-out loss saved", xticks=range(len(gain)))
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "how_many_clusters.png", dpi=100)
