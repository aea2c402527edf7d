"""Reports of runs as self-contained pages."""
