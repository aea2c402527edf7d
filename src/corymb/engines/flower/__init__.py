"""Clients on a Flower federation: one Flower message a node a call. Only this package imports flwr."""
