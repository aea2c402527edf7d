"""Vardhan, Ghosh, Mazumdar (TMLR 2024): SR-FCA."""
