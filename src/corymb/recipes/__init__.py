"""Experiments of the papers as Python functions, one file a paper."""
