"""What users bring to a run of their own: callbacks and metrics."""
