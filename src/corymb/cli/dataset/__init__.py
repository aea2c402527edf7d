"""`corymb data`: download and inspect data sets."""
