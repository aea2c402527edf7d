"""Readers of users' own data: arrays, files, folders and tables."""
