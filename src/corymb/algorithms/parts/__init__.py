"""Building blocks shared by several algorithms."""
