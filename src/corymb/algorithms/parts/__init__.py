"""Parts that several algorithms are made of."""
