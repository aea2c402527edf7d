"""Clusters by evidence: held-out losses of clients decide which models are needed."""
