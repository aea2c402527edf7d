"""Tuning of an algorithm's settings on held-out training examples."""
