"""Runs from start to end: fit, save, resume, compare and predict."""
