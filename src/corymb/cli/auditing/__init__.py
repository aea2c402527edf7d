"""The command that verifies a run's audit log."""
