"""Corymb: clustered federated learning. Finds the groups of clients and trains one model a group, at the same time."""
