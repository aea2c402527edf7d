"""`corymb advise`."""
