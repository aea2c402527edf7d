"""Ghosh, Chung, Yin, Ramchandran (NeurIPS 2020, TIT 2022): IFCA."""
