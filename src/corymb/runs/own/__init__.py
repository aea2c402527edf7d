"""User-defined parts of a run: algorithms, callbacks and metrics; and the checks of private runs."""
