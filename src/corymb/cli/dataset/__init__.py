"""`corymb data`: get data sets, and look at them."""
