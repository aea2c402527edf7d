"""Many clients at once on one CPU or GPU."""
