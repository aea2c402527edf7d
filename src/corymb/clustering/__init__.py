"""Clusters from numbers: points, distances, thresholds."""
