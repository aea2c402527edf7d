"""Whole runs: fit, save, compare, report; the command line."""
