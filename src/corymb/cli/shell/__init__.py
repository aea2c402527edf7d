"""Help from the shell."""
