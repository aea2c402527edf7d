"""The papers' experiments as Python functions, one package per paper."""
