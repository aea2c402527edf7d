"""Building blocks of algorithms that cluster examples instead of clients."""
