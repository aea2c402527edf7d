"""The one road from a user's cells to the numbers of clients, whichever door they came in by.

`cells` reads what a cell is, `columns` turns columns into numbers, `pictures` scales pictures, `road` puts it together.
Each step is what every client could answer for itself and a vote or a sum over the answers: see
docs/decisions/0009-one-road-for-data.md.
"""
