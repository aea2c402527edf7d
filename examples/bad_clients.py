"""Bad clients: a growing share of clients flips the sign of its updates; compares two ways to average."""

import sys

import matplotlib.pyplot as plt

import corymb

data = corymb.datasets.digits(clients=40, train=40)
bad = [0, 4, 8]
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for aggregate, colour in (("mean", "#e07b29"), ("multi-krum", "#2f6db5")):
    scores = []
    for number in bad:
        # Clients stand in the order of their rotations: the bad ones are spread over all four groups.
        who = ",".join(f"sign-flip@client-{(10 * i) % 40 + i // 4:02d}" for i in range(number))
        algorithm = corymb.configure("ifca", data, k=4, rounds=10, init="one-shot", aggregate=aggregate)
        run = corymb.fit(algorithm, data, faults=who or None, evaluate_every=0)
        scores.append(100 * run.metrics["test_accuracy"])
    axes.plot([100 * number / 40 for number in bad], scores, "o-", color=colour, label=aggregate)
axes.set(xlabel="bad clients, %", ylabel="test accuracy, %", xticks=[0, 10, 20])
axes.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "bad_clients.png", dpi=100)
