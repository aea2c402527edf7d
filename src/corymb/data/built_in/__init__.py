"""Built-in data sets: embedded, downloaded or generated."""
