"""A run as one offline page."""
