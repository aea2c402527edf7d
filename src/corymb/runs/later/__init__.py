"""What can be done with a run once it has ended."""
