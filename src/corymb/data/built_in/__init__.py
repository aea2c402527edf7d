"""Data sets that come by name: embedded, downloaded or made."""
