"""`corymb new`: files to begin with."""
