"""`corymb new`: template files."""
