"""Runs whose clients are in other processes: a Flower federation, a Ray cluster."""
