"""Advice on whether to cluster: one model, clusters and local training, compared on held-out training examples."""
