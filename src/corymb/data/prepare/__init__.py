"""Preparation of users' data: the single path from cells to the features of clients, for all input formats.

`cells` parses cells, `columns` converts columns to numbers, `pictures` scales images, and `pipeline` joins them. Every
step is a computation that each client could do on its own data, then a vote or a sum over their results: see
docs/decisions/0009-one-pipeline-for-data.md.
"""
