"""What users bring to a run of their own: algorithms, callbacks and metrics."""
