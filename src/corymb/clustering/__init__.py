"""Clusters from points and pairwise distances, and thresholds for them."""
