"""`corymb tune`."""
