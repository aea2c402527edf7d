"""Preparation of users' data: the single path from cells to the features of clients, for all input formats.

`cells` parses cells, `columns` converts columns to numbers, `pictures` scales images, and `road` combines them. Each
step consists of computations that every client could do on its own data, and a vote or a sum over their results: see
docs/decisions/0009-one-road-for-data.md.
"""
